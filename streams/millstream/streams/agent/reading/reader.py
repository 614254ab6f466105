"""Reading one queue: when to open a receiver, to read, to acknowledge, and to take another one.

Owns: the position of reading, what was read and has no room yet, the time limits of reads, the
replacement of receivers. Not: the calls (`receiving`), what is acknowledged or given back when
(`settling`), what becomes of a message (`subscribers`, `dispatch`). Pure: `step(event, now_s) ->
actions`.
Invariants:
- one receiver is in use at a time; of it one read, and one other call, are out;
- a receiver whose call failed (other than an acknowledgement) or was late is closed, and what it
  says after that is ignored; the next one begins behind what was read last;
- where tokens tell, no message is appended twice; a message is appended in the order of reading;
- while paused nothing is read; what a read brings that was out waits here, unseen, or goes back to
  a queue that has no order.

    starting ──Opened──▶ reading ◀──room──▶ full       any ──Hold──▶ paused ──GoOn──▶ any
    reading, full ──Failed, late──▶ starting (next receiver)        any ──Overtaken──▶ fenced
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from millstream.runtime.extending import Backoff
from millstream.streams.agent.cache.lagging import Laggards
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.positions import BEGINNING
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.options import StreamOptions
from millstream.streams.contracts.answers import AdapterFault, checked_messages
from millstream.streams.contracts.capability import Capability, has_positions
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token

from .relief import Relief
from .settling import Settling
from .stages import Stage
from .steps import (
    Ack,
    Acked,
    Action,
    Bound,
    Bounded,
    Closed,
    Discard,
    Event,
    Extended,
    Failed,
    Fence,
    Forget,
    Gap,
    Gone,
    GoOn,
    Got,
    Hold,
    Offer,
    Open,
    Opened,
    Overtaken,
    Progressed,
    Read,
    ReaderState,
    Release,
    Released,
    Return,
    Returned,
    Say,
    Tick,
)
from .stops import Stops

__all__ = ["ReaderCore"]

CLOCKS_APART_S = 60.0  # wall clocks of silos and queue servers differ by less


class ReaderCore:
    """The state of reading one queue in one epoch.

    Args:
        where: names provider and queue in what is said.
        after: everything up to here was read, and is done or listed, by former owners.
        may_repeat: what is read may have been delivered by a former owner.
        asks_bounds: no former owner can deliver messages that are stored after the receiver has
            started, and the adapter says which message was stored last.
        wall_s: when the queue was acquired, by the wall clock.
    """

    __slots__ = (
        "_acks",
        "_asks_bounds",
        "_behind",
        "_cache",
        "_empty_reads",
        "_failures",
        "_gap_first",
        "_given",
        "_has_wakeup",
        "_is_log",
        "_is_paused",
        "_now_s",
        "_open_at_s",
        "_options",
        "_out",
        "_polls",
        "_read_at_s",
        "_read_begun_s",
        "_read_until_s",
        "_read_wait_s",
        "_relief",
        "_repeats_waiting",
        "_retries",
        "_serial",
        "_settling",
        "_stage",
        "_start_until_s",
        "_waiting",
        "_where",
        "_young_s",
        "first_read",
        "found_nothing_s",
        "is_fenced",
        "may_repeat",
        "position",
        "read_count",
        "repeats_to",
        "stops",
    )

    def __init__(
        self,
        cache: QueueCache,
        behind: Laggards,
        options: StreamOptions,
        capabilities: Collection[Capability],
        *,
        where: str,
        after: Token | None,
        may_repeat: bool = False,
        asks_bounds: bool = False,
        now_s: float = 0.0,
        wall_s: float = 0.0,
    ) -> None:
        self._cache = cache
        self._options = options
        self._where = where
        self._is_log = has_positions(capabilities)
        self._has_wakeup = Capability.WAKEUP in capabilities
        self._read_wait_s = options.read_wait_s if self._has_wakeup else 0.0
        self._retries = Backoff(options.read_retry_s, 2, options.read_retry_ceiling_s)
        self._polls = Backoff(options.poll_first_s, 2, options.poll_ceiling_s)
        self._settling = settling = Settling(
            cache, behind, options, capabilities, self._retries, now_s
        )
        self._acks = settling.acks
        self._given: Token | None = None  # the last that the present receiver has returned
        self._out: list[Action] = []
        self._waiting: list[QueueMessage] = []  # read, and not in the cache
        self._stage = Stage.NONE
        self._serial = 0
        self._open_at_s = -math.inf  # no receiver is made before
        self._read_at_s = -math.inf  # no read is begun before
        self._start_until_s = math.inf
        self._read_until_s = math.inf  # finite while a read is out
        self._relief = Relief(cache) if behind.is_used else None
        self._failures = 0  # in a row
        self.first_read: Token | None = None
        self.found_nothing_s = -math.inf  # when the last read began, if it has found nothing
        self._empty_reads = 0
        self._read_begun_s: float
        self._now_s: float
        self._gap_first: Token | None = None
        self._is_paused = False
        self._young_s = wall_s + CLOCKS_APART_S
        self._repeats_waiting = 0
        self.position = after  # the last message that was read
        self.may_repeat = may_repeat
        self._asks_bounds = asks_bounds and may_repeat
        self.repeats_to: Token | None = None  # the last that a former owner can have delivered
        self.is_fenced = False
        self.read_count = 0
        self.stops = Stops()

    @property
    def state(self) -> ReaderState:
        """Where the reader stands."""
        if self.is_fenced:
            return ReaderState.FENCED
        if self._is_paused:
            return ReaderState.PAUSED
        if self._stage is not Stage.OPEN:
            return ReaderState.STARTING
        return ReaderState.FULL if self._waiting or not self._grant() else ReaderState.READING

    @property
    def is_failing(self) -> bool:
        """Has a receiver failed, and none read since?"""
        return self._failures > 0

    @property
    def is_open(self) -> bool:
        """Is there a receiver that can be called?"""
        return self._stage is Stage.OPEN

    @property
    def acked_upto(self) -> Token | None:
        """The provider knows that this is done."""
        return self._settling.acked_upto

    @property
    def has_repeats(self) -> bool:
        """May something that is not in the cache have been delivered by a former owner?"""
        return self.may_repeat or self._repeats_waiting > 0

    def last(self) -> tuple[Ack | None, Sequence[Release]]:
        """What is to be settled at the end; what is out now is in it."""
        return self._settling.last()

    def rests(self, now_s: float) -> bool:
        """Would `Progressed` change nothing? Then `wake_s` is soon enough for what it tells.

        A read is out, nothing waits for room, and no acknowledgement is due for a while.
        """
        cache, acks = self._cache, self._acks
        return (
            self._read_until_s < math.inf
            and not self._waiting
            and now_s < self._read_until_s
            and now_s < self._settling.until_s
            and now_s < acks.next_s
            and cache.next_index + cache.moved - acks.left < self._options.flow.ack_every_events
        )

    def step(self, event: Event, now_s: float) -> Sequence[Action]:
        """Apply an event; returns what to do, in order. What comes after the end is ignored."""
        if self.is_fenced:
            return ()
        self._now_s = now_s
        out = self._out = []
        match event:
            case Progressed() | Tick():
                pass
            case Got():
                self._got(event, now_s)
            case Bounded():
                self._bounded(event.last)
            case Acked() | Extended() | Released():
                self._settled(event, now_s)
            case Returned():
                self._returned(event, now_s)
            case Opened() | Gone():
                self._opened(event)
            case Failed():
                self._failed(event, now_s)
            case Closed():
                self._closed(event)
            case Overtaken():
                self._overtaken(event)
            case Hold() | GoOn():
                self._held(is_paused=isinstance(event, Hold))
        if not self.is_fenced:
            self._ask(now_s)
        return out

    # -- what the receiver says

    def _opened(self, event: Opened | Gone) -> None:
        if event.serial != self._serial or self._stage is not Stage.OPENING:
            return
        self._stage, self._start_until_s, self._given = Stage.OPEN, math.inf, None
        if isinstance(event, Gone) and (event.first is None or event.first != self._gap_first):
            self._gap_first = event.first
            self._out.append(Gap(self.position, event.first))
        if self._asks_bounds and self.may_repeat and self.repeats_to is None:
            self._out.append(Bound())

    def _bounded(self, last: Token | None) -> None:
        """Messages above `last` were stored after every former owner had stopped."""
        if self.repeats_to is None:
            self.repeats_to = last or BEGINNING
            self.may_repeat = self.may_repeat and not self._is_past_repeats(self.position)

    def _is_past_repeats(self, token: Token | None) -> bool:
        """Has reading come to the last message that a former owner can have delivered?"""
        return self.repeats_to is not None and (token or BEGINNING) >= self.repeats_to

    def hold_acks(self, *, is_held: bool) -> None:
        """Acknowledge nothing, until the queue's record says what was found to be gone."""
        self._settling.waits = is_held

    def _got(self, event: Got, now_s: float) -> None:
        if event.serial != self._serial or self._stage is not Stage.OPEN:
            return  # it was let go of: the next one reads this again
        self._read_until_s = math.inf
        try:
            messages = checked_messages(
                event.answer, self.position, self._is_log, event.where, given=self._given
            )
        except AdapterFault as fault:
            self._replace(str(fault), now_s)
            return
        self._failures = 0
        answer: Any = event.answer
        if answer:
            self._given = answer[-1].token
        if self.may_repeat and (messages or not event.answer):
            self._mark_repeats(messages)  # an answer that is all known says nothing of the backlog
        if self._settling.leases is not None:
            self._settling.leases.taken(messages, now_s)
        self._waiting.extend(messages)
        if messages:
            self.position = messages[-1].token
            self.first_read = self.first_read or messages[0].token
        self.found_nothing_s = -math.inf if event.answer else self._read_begun_s
        if messages:
            self._empty_reads = 0
        else:
            self._plan_read(now_s)

    def _plan_read(self, now_s: float) -> None:
        """When to read after a read that found nothing: less and less, unless it has waited."""
        has_waited = now_s - self._read_begun_s >= self._options.read_wait_s / 2
        if self._has_wakeup and has_waited:
            self._empty_reads = 0
            return
        self._empty_reads += 1
        self._read_at_s = now_s + self._polls.whole_s(self._empty_reads)

    def _mark_repeats(self, messages: Sequence[QueueMessage]) -> None:
        """After an unclean hand-over, what was stored before it may be known to its handlers.

        That is the backlog: up to the message that was stored last when reading began, if that is
        known; else up to the first read that finds nothing, or a message that is younger than the
        hand-over.
        """
        if self.repeats_to is None:
            self.may_repeat = bool(messages) and messages[-1].enqueued_s < self._young_s
            self._repeats_waiting += len(messages)
        else:
            self._repeats_waiting += sum(one.token <= self.repeats_to for one in messages)
            self.may_repeat = bool(messages) and not self._is_past_repeats(messages[-1].token)

    def _settled(self, event: Acked | Extended | Released, now_s: float) -> None:
        """A call of those has returned. Leases that are lost: what waits here is dropped."""
        if event.serial != self._serial or self._stage is not Stage.OPEN:
            return
        match event:
            case Acked():
                self._settling.acked(now_s)
            case Released():
                self._settling.released()
            case Extended():
                try:
                    lost = self._settling.extended(event, now_s)
                except AdapterFault as fault:
                    self._replace(str(fault), now_s)
                else:
                    self._waiting = [m for m in self._waiting if m.token not in lost]

    def _returned(self, event: Returned, now_s: float) -> None:
        """Somebody let go of messages: they go back to the queue."""
        if self._stage is not Stage.OPEN:
            return  # the receiver that had them has given them back
        self._settling.give_back(event.tokens, event.delay_s, has_run=event.has_run)
        if self._settling.is_stuck:
            self._replace(f"{self._where}: release takes nothing back", now_s)

    def _held(self, *, is_paused: bool) -> None:
        self._is_paused = is_paused
        self.stops.at(self._now_s, is_full=False)
        if is_paused and self._settling.gives_back:
            self._out.append(Return())

    def _failed(self, event: Failed, now_s: float) -> None:
        if event.serial != self._serial or self._stage not in (Stage.OPENING, Stage.OPEN):
            return
        if event.method in ("start", "read"):
            self._replace(event.text, now_s)
        else:
            said = self._settling.failed(event.method, now_s)
            self._out.append(Say(f"{event.text}; {said}"))

    def _replace(self, why: str, now_s: float) -> None:
        """The receiver cannot be trusted any further: the next one reads on."""
        self._failures += 1
        self.stops.at(now_s, is_full=False)
        wait_s = self._retries.whole_s(self._failures)
        self._open_at_s = now_s + wait_s
        self._stage = Stage.CLOSING
        self._start_until_s = self._read_until_s = math.inf
        self._settling.let_go()
        self._out += [Say(f"{why}; another receiver is made in {wait_s:g} s"), Discard()]
        if not self._is_log:  # the next one gives it again, and nothing would tell that it is known
            self._waiting.clear()
            self._repeats_waiting = 0
            self._out.append(Forget())

    def _closed(self, event: Closed) -> None:
        if event.serial == self._serial and self._stage is Stage.CLOSING:
            self._stage = Stage.NONE

    def _overtaken(self, event: Overtaken) -> None:
        self.is_fenced = True
        self.stops.at(self._now_s, is_full=False)
        self._waiting.clear()
        self._out.append(Fence(event.text))

    # -- what is asked for

    def _ask(self, now_s: float) -> None:
        if self._stage is Stage.OPEN:
            settling = self._settling
            if self._waiting:
                self._take()
            if (now_s >= self._read_until_s or now_s >= settling.until_s) and self._is_late(now_s):
                return
            if self._read_until_s == math.inf and not self._is_paused and now_s >= self._read_at_s:
                self._ask_read(now_s)
            if not settling.is_quiet(now_s):
                self._out += settling.ask(now_s)
            if self._relief is not None:
                is_reading = self._is_paused or self._read_until_s < math.inf
                if not is_reading or self._relief.is_on:
                    self._out += self._relief.ask(now_s, is_reading, bool(self._waiting))
        elif self._stage is Stage.NONE:
            self._ask_open(now_s)
        elif now_s >= self._start_until_s:
            self._replace(self._no_answer("start", self._options.start_limit_s), now_s)

    def _is_late(self, now_s: float) -> bool:
        """Is a call out for too long? Then it is left behind, with its receiver."""
        options = self._options
        if now_s >= self._read_until_s:
            limit_s = self._read_wait_s + options.read_limit_s
            self._replace(self._no_answer("read", limit_s), now_s)
        elif now_s >= self._settling.until_s:
            self._replace(self._no_answer(self._settling.method, options.call_limit_s), now_s)
        return self._stage is not Stage.OPEN

    def _no_answer(self, method: str, limit_s: float) -> str:
        return f"{self._where}: {method} gave no answer for {limit_s:g} s, and is left behind"

    def _ask_open(self, now_s: float) -> None:
        if self._is_paused or now_s < self._open_at_s:
            return
        self._serial += 1
        self._stage = Stage.OPENING
        self._start_until_s = now_s + self._options.start_limit_s
        self._out.append(Open(self._serial, self.position if self._is_log else None))

    def _take(self) -> None:
        """Append what waits, as far as there is room."""
        waiting, cache = self._waiting, self._cache
        if self._is_paused:
            self._give_back_waiting()
            return
        taken: list[Slot] = []
        count = 0
        for message in waiting:
            if not (cache.unheard and cache.passes_by(message)):
                slot = cache.append(message)
                if slot is None:
                    break
                taken.append(slot)
            count += 1
            self.read_count += len(message.items)
            if self._repeats_waiting:
                self._repeats_waiting -= 1
                cache.repeats_upto = cache.next_index - 1
        del waiting[:count]
        if taken:
            self._out.append(Offer(taken))
            if self._relief is not None and cache.next_index - cache.left > len(taken):
                self._out += self._relief.taken(taken)  # not for what is here alone

    def _give_back_waiting(self) -> None:
        """Nobody has seen it, and the next owner need not wait for it."""
        if self._settling.gives_back:
            tokens = [message.token for message in self._waiting]
            self._settling.give_back(tokens, 0.0, has_run=False)
            self._waiting.clear()
            self._repeats_waiting = 0

    def _grant(self) -> tuple[int, int] | None:
        """Events and bytes that a read may bring now; None: nothing."""
        events, size_bytes = self._cache.room()
        if not events:
            return None
        flow = self._options.flow
        return min(events, flow.read_events_max), min(size_bytes, flow.read_bytes_max)

    def _ask_read(self, now_s: float) -> None:
        grant = None if self._waiting else self._grant()
        if (grant is None) is not self.stops.is_stopped:
            self.stops.at(now_s, is_full=grant is None)
        if grant is not None:
            self._read_begun_s = now_s
            self._read_until_s = now_s + self._read_wait_s + self._options.read_limit_s
            self._out.append(Read(*grant, self._read_wait_s))

    # -- time

    def waits_for(self, now_s: float) -> str:
        """What reading waits for, in words; empty: nothing that is known."""
        if self.state is ReaderState.PAUSED:
            return "the queue is being handed over"
        if self._stage is not Stage.OPEN:
            return f"the receiver is {self._stage.value}"
        if self._read_until_s < math.inf:
            return f"a read is out since {now_s - self._read_begun_s:.1f} s"
        if self._waiting or not self._grant():
            return "there is no room in the cache"
        if now_s < self._read_at_s < math.inf:
            return f"the next read is due in {self._read_at_s - now_s:.1f} s"
        return ""

    def wake_s(self) -> float:
        """When the next `Tick` is wanted; infinite: only an event goes on."""
        if self.is_fenced or self._stage is Stage.CLOSING:
            return math.inf
        if self._stage is Stage.NONE:
            return math.inf if self._is_paused else self._open_at_s
        if self._stage is Stage.OPENING:
            return self._start_until_s
        relieve_s = math.inf if self._relief is None else self._relief.at_s
        wake_s = min(self._read_until_s, self._settling.wake_s(self._now_s), relieve_s)
        return wake_s if self._read_until_s < math.inf else min(wake_s, self._next_read_s())

    def _next_read_s(self) -> float:
        if self._is_paused or self._waiting or self._read_at_s == -math.inf:
            return math.inf
        return self._read_at_s if self._grant() else math.inf

    def check(self) -> None:
        """Assert the invariants."""
        is_open = self._stage is Stage.OPEN
        assert is_open or self._read_until_s == self._settling.until_s == math.inf
        assert (self._stage is Stage.OPENING) == (self._start_until_s < math.inf)
        self._settling.check()
        assert 0 <= self._repeats_waiting <= len(self._waiting)
        tokens = [message.token for message in self._waiting]
        assert not self._is_log or tokens == sorted(set(tokens))
        assert not self._waiting or not self._is_log or tokens[-1] == self.position
