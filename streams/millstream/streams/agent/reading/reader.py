"""The core of reading one queue: when to open a receiver, read, acknowledge, and replace it. Pure.

Owns the position of reading, the messages without room in the cache, and the time limits of starts
and reads. It also owns the replacement of receivers, and counts the stops for a full cache.
`contained_receiver` makes the calls, `settlement` decides about acknowledgements and returns, and
`subscribers` and `dispatch` deliver. Each call returns the actions to take, in order.

Invariants:

- One receiver is in use at a time, with at most one read and one other call in flight.
- A receiver is closed after a failed call (except for an acknowledgement) or a late one, and its
  later answers are ignored. The next receiver begins after the last message that was read.
- If tokens identify messages, no message is appended twice. Messages are appended in the order of
  reading.
- While paused, nothing is read. The messages of a read in flight wait here, or return to a queue
  without order.

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

CLOCKS_APART_S = 60.0  # the largest difference between wall clocks of silos and queue servers


class Stage(Enum):
    """The stage of the receiver."""

    NONE = "none"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    FENCED = "fenced"  # no other one follows


class ReaderCore:
    """The state of reading one queue in one epoch.

    A call for a receiver has its `serial`, and is ignored if another receiver is in use.

    Args:
        where: names provider and queue in messages.
        after: former owners read everything up to here, and it is done or listed.
        may_repeat: a former owner may have delivered messages that are read.
        asks_bounds: whether no former owner can deliver messages that are stored after the start of
            the receiver, and the adapter can tell the last stored message.
        wall_s: when the queue was acquired, by the wall clock.

    Attributes:
        position: the last message that was read.
        found_nothing_s: the beginning of the last read, if it found nothing.
        stop_count: how often a full cache stopped reading, including a present stop.
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
        self._given: Token | None = None  # the last message that the present receiver returned
        self._out: list[Action] = []
        self._waiting: list[QueueMessage] = []  # read, and not in the cache yet
        self._stage = Stage.NONE
        self._serial = 0
        self._open_at_s = -math.inf  # no receiver is made before
        self._read_at_s = -math.inf  # no read begins before
        self._until_s = math.inf  # the start or read in flight is late after this
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
        self._stopped_s = 0.0  # in stops that are over

    @property
    def state(self) -> ReaderState:
        """The state of reading."""
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
        """Whether a receiver has failed, and no read has succeeded since."""
        return self._failures > 0

    @property
    def is_open(self) -> bool:
        """Whether a receiver can be called."""
        return self._stage is Stage.OPEN

    @property
    def acked_upto(self) -> Token | None:
        """The token up to which the provider knows that messages are done. None: of none."""
        return self.settling.acked_upto

    @property
    def has_repeats(self) -> bool:
        """Whether a former owner may have delivered messages that are not in the cache."""
        return self.may_repeat or self._repeats_waiting > 0

    def rests(self, now_s: float) -> bool:
        """Say whether `tick` would do nothing now, so that `wake_s` is soon enough for it.

        That is so if a start or a read is in flight, no message waits for room, and no
        acknowledgement is due.
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

    # -- reports of the receiver

    def on_opened(self, serial: int, now_s: float) -> Sequence[Action]:
        """Handle the return of `start`."""
        if serial == self._serial and self._stage is Stage.OPENING:
            self._stage, self._until_s, self._given = Stage.OPEN, math.inf, None
            if self._asks_bounds and self.may_repeat and self._cache.repeats_to is None:
                self._out.append(Bound())
        return self.tick(now_s)

    def on_gone(self, serial: int, first: Token | None, now_s: float) -> Sequence[Action]:
        """Handle CursorTooOld of `start`: the receiver is at `first`."""
        is_new = first is None or first != self._gap_first
        if serial == self._serial and self._stage is Stage.OPENING and is_new:
            self._gap_first = first
            self._out.append(GapFound(self.position, first))
        return self.on_opened(serial, now_s)

    def on_bounds(self, last: Token | None, now_s: float) -> Sequence[Action]:
        """Handle the last stored message. None means that the queue was empty.

        Messages after it were stored after every former owner had stopped.
        """
        if self._cache.repeats_to is None:
            self._cache.repeats_to = last or BEGINNING
            self.may_repeat = self.may_repeat and not self._is_past_repeats(self.position)
        return self.tick(now_s)

    def _is_past_repeats(self, token: Token | None) -> bool:
        """Say whether reading has reached the last message that a former owner can have
        delivered."""
        return self._cache.repeats_to is not None and (token or BEGINNING) >= self._cache.repeats_to

    def on_read(self, serial: int, answer: Any, where: str, now_s: float) -> Sequence[Action]:
        """Handle the answer of `read`, which is not checked yet; `where` names adapter and
        method."""
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
            self._mark_repeats(messages)  # an answer of known messages proves nothing
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
        """Plan the next read after a read that found nothing.

        The pause grows with each such read. There is no pause if the adapter has `WAKEUP` and the
        last read waited for messages.
        """
        has_waited = now_s - self._read_begun_s >= self._options.read_wait_s / 2
        if self._has_wakeup and has_waited:
            self._empty_reads = 0
        else:
            self._empty_reads += 1
            self._read_at_s = now_s + self._polls.whole_s(self._empty_reads)

    def _mark_repeats(self, messages: Sequence[QueueMessage]) -> None:
        """Mark messages that former owners may have delivered, after an unclean hand-over.

        These are the messages up to the last one stored when reading began, if that is known.
        Otherwise they end at the first read that finds nothing, or at a message that is younger
        than the hand-over.
        """
        if self._cache.repeats_to is None:
            self.may_repeat = bool(messages) and messages[-1].enqueued_s < self._young_s
            self._repeats_waiting += len(messages)
        else:
            self._repeats_waiting += sum(one.token <= self._cache.repeats_to for one in messages)
            self.may_repeat = bool(messages) and not self._is_past_repeats(messages[-1].token)

    def on_settled(self, serial: int, answer: object, where: str, now_s: float) -> Sequence[Action]:
        """Handle the answer of `ack`, `extend` or `release`; `where` names adapter and method."""
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
        """Handle an error of a call; `method` is its name, and `text` has the place and the
        error."""
        if serial == self._serial and self._stage in (Stage.OPENING, Stage.OPEN):
            if method in ("start", "read"):
                self._replace(text, now_s)
            else:
                self._out.append(Say(f"{text}; {self.settling.on_failed(now_s)}"))
        return self.tick(now_s)

    def on_closed(self, serial: int, now_s: float) -> Sequence[Action]:
        """Record that the receiver is closed, or abandoned."""
        if serial == self._serial and self._stage is Stage.CLOSING:
            self._stage = Stage.NONE
        return self.tick(now_s)

    def overtaken(self, text: str, now_s: float) -> Sequence[Action]:
        """Handle QueueFenced of a call."""
        if self._stage is Stage.FENCED:
            return ()
        self._end_receiver(Stage.FENCED, now_s)
        self._waiting.clear()
        return (Fence(text),)

    # -- calls of the agent

    def on_returned(
        self, tokens: Sequence[Token], delay_s: float, has_run: bool, now_s: float
    ) -> Sequence[Action]:
        """Return unfinished messages to the queue, which no subscription here has any longer.

        `delay_s` is the time before their next delivery. `has_run` says that a handler has tried
        them.
        """
        if self._stage is Stage.OPEN:  # otherwise the closed receiver has returned them
            self.settling.give_back(tokens, delay_s, has_run=has_run)
            if self.settling.is_stuck:
                self._replace(
                    f"{self._where}: release failed until too many messages waited", now_s
                )
        return self.tick(now_s)

    def hold(self, is_paused: bool, now_s: float) -> Sequence[Action]:
        """Pause or resume reading."""
        self._is_paused = is_paused
        self._end_stop(now_s)
        if is_paused and self.settling.gives_back and self._stage is not Stage.FENCED:
            self._out.append(Return())
        return self.tick(now_s)

    def tick(self, now_s: float) -> Sequence[Action]:
        """Ask for everything that is due: the time of `wake_s` has come, or a message may be
        done."""
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
        """Replace the receiver because a call is late."""
        method, limit_s = self.settling.method, self._options.call_limit_s
        if now_s >= self._until_s and self._stage is Stage.OPENING:
            method, limit_s = "start", self._options.start_limit_s
        elif now_s >= self._until_s:
            method, limit_s = "read", self._read_wait_s + self._options.read_limit_s
        text = f"{method} gave no answer for {limit_s:g} s, and was abandoned"
        self._replace(f"{self._where}: {text}", now_s)

    def _replace(self, why: str, now_s: float) -> None:
        """Replace the receiver because it has failed."""
        self._failures += 1
        wait_s = self._retries.whole_s(self._failures)
        self._open_at_s = now_s + wait_s
        self._end_receiver(Stage.CLOSING, now_s)
        self._out += [Say(f"{why}; the receiver is replaced in {wait_s:g} s"), Discard()]
        if not self._is_log:  # the next receiver returns it again, and no token identifies it
            self._drop_waiting()
            self._out.append(Forget())

    def _end_receiver(self, stage: Stage, now_s: float) -> None:
        self._stage, self._until_s = stage, math.inf
        self.settling.let_go()
        self._end_stop(now_s)

    # -- the cache

    def _take(self) -> None:
        """Append the waiting messages, as far as there is room."""
        waiting, cache = self._waiting, self._cache
        if self._is_paused:
            if self.settling.gives_back:  # unseen: the next owner need not wait for them
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
                self._out += self._relief.on_appended(taken)  # only if older messages are here

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._repeats_waiting = 0

    def _ask_read(self, now_s: float) -> None:
        """Ask for a read, or note that a full cache stops reading."""
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
        """Return the seconds that a full cache has stopped reading, in all."""
        return self._stopped_s + max(0.0, now_s - self._full_since_s)

    # -- time

    def waits_for(self, now_s: float) -> str:
        """Return the reason why reading makes no progress, in words, or "" if none is known."""
        if self.state is ReaderState.PAUSED:
            return "the queue is being handed over"
        if self._stage is not Stage.OPEN:
            return f"the state of the receiver is {self._stage.value}"
        if self._until_s < math.inf:
            return f"a read has run for {now_s - self._read_begun_s:.1f} s"
        if self._waiting or not self._cache.room()[0]:
            return "the cache is full"
        if now_s < self._read_at_s < math.inf:
            return f"the next read is due in {self._read_at_s - now_s:.1f} s"
        return ""

    def wake_s(self) -> float:
        """Return the time for the next `tick`; infinite: not before another call."""
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
