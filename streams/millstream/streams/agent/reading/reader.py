"""Reading one queue: when to open a receiver, to read, to acknowledge, and to take another one.

Owns: the position of reading, the messages that were read and have no room yet, the time limits of
starts and reads, the replacement of receivers, how often reading stopped for a full cache. Not: the
calls (`contained_receiver`), which messages are acknowledged or given back when (`settlement`),
delivering them (`subscribers`, `dispatch`). Pure: each call returns the actions to take, in order.
Invariants:
- one receiver is in use at a time; of it one read, and one other call, are out;
- a receiver whose call failed (other than an acknowledgement) or was late is closed, and what it
  says after that is ignored; the next one begins behind the message that was read last;
- where tokens tell, no message is appended twice; a message is appended in the order of reading;
- while paused nothing is read; the messages of a read that was out wait here, unseen, or go back
  to a queue that has no order.

    starting ──opened──▶ reading ◀──room──▶ full       any ◀──hold──▶ paused
    reading, full ──failed, late──▶ starting (next receiver)        any ──overtaken──▶ fenced
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Any

from millstream.runtime.extending import Backoff
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.positions import BEGINNING
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.options import StreamOptions
from millstream.streams.contracts.answers import AdapterFault, check_messages
from millstream.streams.contracts.capability import Capability, has_positions
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token

from .relief import Relief
from .settlement import Settlement
from .steps import (
    Action,
    Bound,
    Discard,
    Fence,
    Forget,
    GapFound,
    Offer,
    OpenReceiver,
    Read,
    ReaderState,
    Return,
    Say,
)

__all__ = ["ReaderCore"]

CLOCKS_APART_S = 60.0  # wall clocks of silos and queue servers differ by less


class Stage(Enum):
    """The stage of the receiver."""

    NONE = "none"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    FENCED = "fenced"  # there is no other one


class ReaderCore:
    """The state of reading one queue in one epoch.

    A call for a receiver carries its `serial`, and is ignored if another receiver is in use.

    Args:
        where: names provider and queue in messages.
        after: up to here everything was read, and is done or listed, by former owners.
        may_repeat: messages that are read may have been delivered by a former owner.
        asks_bounds: no former owner can deliver messages that are stored after the receiver has
            started, and the adapter says which message was stored last.
        wall_s: when the queue was acquired, by the wall clock.

    Attributes:
        position: the last message that was read.
        found_nothing_s: when the last read began, if it has found nothing.
        stop_count: how often reading stopped for a full cache, with the stop that lasts.
    """

    __slots__ = (
        "_asks_bounds",
        "_cache",
        "_empty_reads",
        "_failures",
        "_full_since_s",
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
        "_read_wait_s",
        "_relief",
        "_repeats_waiting",
        "_retries",
        "_serial",
        "_stage",
        "_stopped_s",
        "_until_s",
        "_waiting",
        "_where",
        "_young_s",
        "first_read",
        "found_nothing_s",
        "may_repeat",
        "position",
        "read_count",
        "settling",
        "stop_count",
    )

    def __init__(
        self,
        cache: QueueCache,
        behind: LaggingCursors,
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
        self.settling = Settlement(cache, behind, options, capabilities, self._retries, now_s)
        self._given: Token | None = None  # the last that the present receiver has returned
        self._out: list[Action] = []
        self._waiting: list[QueueMessage] = []  # read, and not in the cache
        self._stage = Stage.NONE
        self._serial = 0
        self._open_at_s = -math.inf  # no receiver is made before
        self._read_at_s = -math.inf  # no read is begun before
        self._until_s = math.inf  # the start or read that is out is late then
        self._relief = Relief(cache) if behind.is_used else None
        self._failures = 0  # in a row
        self.first_read: Token | None = None
        self.found_nothing_s = -math.inf
        self._empty_reads = 0
        self._read_begun_s: float
        self._now_s: float
        self._gap_first: Token | None = None
        self._is_paused = False
        self._young_s = wall_s + CLOCKS_APART_S
        self._repeats_waiting = 0
        self.position = after
        self.may_repeat = may_repeat
        self._asks_bounds = asks_bounds and may_repeat
        self.read_count = 0
        self.stop_count = 0
        self._full_since_s = math.inf  # finite while a full cache stops reading
        self._stopped_s = 0.0  # by the stops that are over

    @property
    def state(self) -> ReaderState:
        """The state of the reading."""
        if self._stage is Stage.FENCED:
            return ReaderState.FENCED
        if self._is_paused:
            return ReaderState.PAUSED
        if self._stage is not Stage.OPEN:
            return ReaderState.STARTING
        return (
            ReaderState.FULL if self._waiting or not self._cache.room()[0] else ReaderState.READING
        )

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
        """The provider knows that messages up to this one are done."""
        return self.settling.acked_upto

    @property
    def has_repeats(self) -> bool:
        """May something that is not in the cache have been delivered by a former owner?"""
        return self.may_repeat or self._repeats_waiting > 0

    def rests(self, now_s: float) -> bool:
        """Would `tick` do nothing now? Then `wake_s` is soon enough for it.

        A start or a read is out, nothing waits for room, and no acknowledgement is due for a while.
        """
        cache, settling = self._cache, self.settling
        return (
            self._until_s < math.inf
            and not self._waiting
            and now_s < self._until_s
            and now_s < settling.until_s
            and now_s < settling.next_ack_s
            and cache.next_index + cache.moved - settling.acked_count
            < self._options.flow.ack_every_events
        )

    # -- what the receiver says

    def on_opened(self, serial: int, now_s: float) -> Sequence[Action]:
        """`start` has returned."""
        if serial == self._serial and self._stage is Stage.OPENING:
            self._stage, self._until_s, self._given = Stage.OPEN, math.inf, None
            if self._asks_bounds and self.may_repeat and self._cache.repeats_to is None:
                self._out.append(Bound())
        return self.tick(now_s)

    def on_gone(self, serial: int, first: Token | None, now_s: float) -> Sequence[Action]:
        """`start` has raised CursorTooOld: the receiver stands at `first`."""
        is_new = first is None or first != self._gap_first
        if serial == self._serial and self._stage is Stage.OPENING and is_new:
            self._gap_first = first
            self._out.append(GapFound(self.position, first))
        return self.on_opened(serial, now_s)

    def on_bounds(self, last: Token | None, now_s: float) -> Sequence[Action]:
        """The last message that was stored; None: the queue was empty.

        Messages above it were stored after every former owner had stopped.
        """
        if self._cache.repeats_to is None:
            self._cache.repeats_to = last or BEGINNING
            self.may_repeat = self.may_repeat and not self._is_past_repeats(self.position)
        return self.tick(now_s)

    def _is_past_repeats(self, token: Token | None) -> bool:
        """Has reading come to the last message that a former owner can have delivered?"""
        return self._cache.repeats_to is not None and (token or BEGINNING) >= self._cache.repeats_to

    def on_read(self, serial: int, answer: Any, where: str, now_s: float) -> Sequence[Action]:
        """`read` has returned `answer`, which is not checked; `where` names adapter and method."""
        if serial != self._serial or self._stage is not Stage.OPEN:
            return ()  # the next receiver reads these messages again
        self._until_s = math.inf
        try:
            messages = check_messages(answer, self.position, self._is_log, where, given=self._given)
        except AdapterFault as fault:
            self._replace(str(fault), now_s)
            return self.tick(now_s)
        self._failures = 0
        if answer:
            self._given = answer[-1].token
        if self.may_repeat and (messages or not answer):
            self._mark_repeats(messages)  # an answer that is all known says nothing of the backlog
        if self.settling.leases is not None:
            self.settling.leases.on_read(messages, now_s)
        self._waiting.extend(messages)
        self.found_nothing_s = -math.inf if answer else self._read_begun_s
        if messages:
            self.position = messages[-1].token
            self.first_read = self.first_read or messages[0].token
            self._empty_reads = 0
        else:
            self._plan_read(now_s)
        return self.tick(now_s)

    def _plan_read(self, now_s: float) -> None:
        """When to read after a read that found nothing: less and less, unless it has waited."""
        has_waited = now_s - self._read_begun_s >= self._options.read_wait_s / 2
        if self._has_wakeup and has_waited:
            self._empty_reads = 0
        else:
            self._empty_reads += 1
            self._read_at_s = now_s + self._polls.whole_s(self._empty_reads)

    def _mark_repeats(self, messages: Sequence[QueueMessage]) -> None:
        """After an unclean hand-over, handlers may know messages that were stored before it.

        That is the backlog: up to the message that was stored last when reading began, if that is
        known; else up to the first read that finds nothing, or a message that is younger than the
        hand-over.
        """
        if self._cache.repeats_to is None:
            self.may_repeat = bool(messages) and messages[-1].enqueued_s < self._young_s
            self._repeats_waiting += len(messages)
        else:
            self._repeats_waiting += sum(one.token <= self._cache.repeats_to for one in messages)
            self.may_repeat = bool(messages) and not self._is_past_repeats(messages[-1].token)

    def on_settled(self, serial: int, answer: object, where: str, now_s: float) -> Sequence[Action]:
        """`ack`, `extend` or `release` has returned `answer`; `where` names adapter and method."""
        if serial == self._serial and self._stage is Stage.OPEN:
            try:
                lost = self.settling.on_settled(answer, where, now_s)
            except AdapterFault as fault:
                self._replace(str(fault), now_s)
            else:
                if lost:
                    self._waiting = [one for one in self._waiting if one.token not in lost]
        return self.tick(now_s)

    def on_failed(self, serial: int, method: str, text: str, now_s: float) -> Sequence[Action]:
        """A call has raised; `method` is its name, `text` says where, and what it raised."""
        if serial == self._serial and self._stage in (Stage.OPENING, Stage.OPEN):
            if method in ("start", "read"):
                self._replace(text, now_s)
            else:
                self._out.append(Say(f"{text}; {self.settling.on_failed(now_s)}"))
        return self.tick(now_s)

    def on_closed(self, serial: int, now_s: float) -> Sequence[Action]:
        """The receiver is closed, or left behind."""
        if serial == self._serial and self._stage is Stage.CLOSING:
            self._stage = Stage.NONE
        return self.tick(now_s)

    def overtaken(self, text: str, now_s: float) -> Sequence[Action]:
        """A call has raised QueueFenced."""
        if self._stage is Stage.FENCED:
            return ()
        self._end_receiver(Stage.FENCED, now_s)
        self._waiting.clear()
        return (Fence(text),)

    # -- what the agent says

    def on_returned(
        self, tokens: Sequence[Token], delay_s: float, has_run: bool, now_s: float
    ) -> Sequence[Action]:
        """These messages go back to the queue: nobody here has them, and they are not done.

        `delay_s`: they are not to be given out before. `has_run`: a handler has tried them.
        """
        if self._stage is Stage.OPEN:  # else the receiver that had them has given them back
            self.settling.give_back(tokens, delay_s, has_run=has_run)
            if self.settling.is_stuck:
                self._replace(f"{self._where}: release takes nothing back", now_s)
        return self.tick(now_s)

    def hold(self, is_paused: bool, now_s: float) -> Sequence[Action]:
        """Read no more, or go on."""
        self._is_paused = is_paused
        self._end_stop(now_s)
        if is_paused and self.settling.gives_back and self._stage is not Stage.FENCED:
            self._out.append(Return())
        return self.tick(now_s)

    def tick(self, now_s: float) -> Sequence[Action]:
        """Ask for all that is due: the time of `wake_s` may have come, or a message may be done."""
        self._now_s = now_s
        settling, is_open = self.settling, self._stage is Stage.OPEN
        if is_open and self._waiting:
            self._take()
        if now_s >= self._until_s or now_s >= settling.until_s:
            self._leave_behind(now_s)
        elif is_open:
            if self._until_s == math.inf and not self._is_paused and now_s >= self._read_at_s:
                self._ask_read(now_s)
            self._out += settling.ask(now_s)
            if (relief := self._relief) is not None:
                is_reading = self._is_paused or self._until_s < math.inf
                if not is_reading or relief.is_long or relief.at_s < math.inf:
                    self._out += relief.ask(now_s, is_reading, bool(self._waiting))
        elif self._stage is Stage.NONE and not self._is_paused and now_s >= self._open_at_s:
            self._serial += 1
            self._stage = Stage.OPENING
            self._until_s = now_s + self._options.start_limit_s
            self._out.append(OpenReceiver(self._serial, self.position if self._is_log else None))
        out, self._out = self._out, []
        return out

    # -- the end of a receiver

    def _leave_behind(self, now_s: float) -> None:
        """A call is out for too long."""
        method, limit_s = self.settling.method, self._options.call_limit_s
        if now_s >= self._until_s and self._stage is Stage.OPENING:
            method, limit_s = "start", self._options.start_limit_s
        elif now_s >= self._until_s:
            method, limit_s = "read", self._read_wait_s + self._options.read_limit_s
        text = f"{method} gave no answer for {limit_s:g} s, and is left behind"
        self._replace(f"{self._where}: {text}", now_s)

    def _replace(self, why: str, now_s: float) -> None:
        """The receiver cannot be trusted any further: the next one reads on."""
        self._failures += 1
        wait_s = self._retries.whole_s(self._failures)
        self._open_at_s = now_s + wait_s
        self._end_receiver(Stage.CLOSING, now_s)
        self._out += [Say(f"{why}; another receiver is made in {wait_s:g} s"), Discard()]
        if not self._is_log:  # the next one gives it again, and nothing would tell that it is known
            self._drop_waiting()
            self._out.append(Forget())

    def _end_receiver(self, stage: Stage, now_s: float) -> None:
        self._stage, self._until_s = stage, math.inf
        self.settling.let_go()
        self._end_stop(now_s)

    # -- the cache

    def _take(self) -> None:
        """Append the messages that wait, as far as there is room."""
        waiting, cache = self._waiting, self._cache
        if self._is_paused:
            if self.settling.gives_back:  # nobody has seen them, and the next owner need not wait
                self.settling.give_back([one.token for one in waiting], 0.0, has_run=False)
                self._drop_waiting()
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
                self._out += self._relief.on_appended(taken)  # not for what is here alone

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._repeats_waiting = 0

    def _ask_read(self, now_s: float) -> None:
        """Read, or note that a full cache stops reading."""
        events, size_bytes = (0, 0) if self._waiting else self._cache.room()
        if events:
            flow, wait_s = self._options.flow, self._read_wait_s
            self._read_begun_s = now_s
            self._until_s = now_s + wait_s + self._options.read_limit_s
            most = min(events, flow.read_events_max), min(size_bytes, flow.read_bytes_max)
            self._out.append(Read(*most, wait_s))
            if self._full_since_s < math.inf:
                self._end_stop(now_s)
        elif self._full_since_s == math.inf:
            self._full_since_s = now_s
            self.stop_count += 1

    def _end_stop(self, now_s: float) -> None:
        self._stopped_s, self._full_since_s = self.count_stopped_s(now_s), math.inf

    def count_stopped_s(self, now_s: float) -> float:
        """For how long a full cache has stopped reading, all stops together."""
        return self._stopped_s + max(0.0, now_s - self._full_since_s)

    # -- time

    def waits_for(self, now_s: float) -> str:
        """The reason why reading does not go on, in words; empty: none is known."""
        if self.state is ReaderState.PAUSED:
            return "the queue is being handed over"
        if self._stage is not Stage.OPEN:
            return f"the receiver is {self._stage.value}"
        if self._until_s < math.inf:
            return f"a read is out since {now_s - self._read_begun_s:.1f} s"
        if self._waiting or not self._cache.room()[0]:
            return "there is no room in the cache"
        if now_s < self._read_at_s < math.inf:
            return f"the next read is due in {self._read_at_s - now_s:.1f} s"
        return ""

    def wake_s(self) -> float:
        """When `tick` is to be called; infinite: not before another call."""
        if self._stage is Stage.NONE:
            return math.inf if self._is_paused else self._open_at_s
        if self._stage is not Stage.OPEN:
            return self._until_s
        relieve_s = math.inf if self._relief is None else self._relief.at_s
        wake_s = min(self._until_s, self.settling.wake_s(self._now_s), relieve_s)
        is_idle = self._until_s == math.inf and not self._is_paused and not self._waiting
        if is_idle and self._cache.room()[0]:
            return min(wake_s, self._read_at_s)
        return wake_s

    def check(self) -> None:
        """Assert the invariants."""
        is_open = self._stage is Stage.OPEN
        assert is_open or self.settling.until_s == math.inf
        assert is_open or (self._stage is Stage.OPENING) == (self._until_s < math.inf)
        self.settling.check()
        assert 0 <= self._repeats_waiting <= len(self._waiting)
        tokens = [message.token for message in self._waiting]
        assert not self._is_log or tokens == sorted(set(tokens))
        assert not self._waiting or not self._is_log or tokens[-1] == self.position
