"""The driver of `reader`: carries out the decisions of the core of reading.

Owns `ReaderDriver`: the present receiver, one timer, and the way of messages to their
subscriptions. `reader` decides when to read, `contained_receiver` makes the calls, and
`subscribers` knows the subscriptions of a stream.

Invariants:

- Reads and acknowledgements never wait for deliveries, except that reading stops while the cache is
  full.
- Calls of the core do not nest.
- A closed driver decides nothing.
"""

from __future__ import annotations

import logging
import math
from asyncio import TimerHandle
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVarTuple

from millstream.runtime import QueueUnavailable
from millstream.runtime.extending import Tasks
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.dispatch import Dispatch
from millstream.streams.agent.findings import QueueFindings
from millstream.streams.agent.losses import Loss, Losses
from millstream.streams.agent.parts import AgentParts
from millstream.streams.agent.queue_epoch import QueueEpoch
from millstream.streams.agent.subscribers import Subscribers, give_back
from millstream.streams.contracts.capability import has_positions
from millstream.streams.contracts.queue import QueueReader, QueueReceiver, Rewinds
from millstream.streams.contracts.token import Token

from .catch_up import ContainedReader
from .contained_receiver import ContainedReceiver
from .reader import ReaderCore
from .steps import (
    Ack,
    Action,
    Bound,
    Discard,
    Extend,
    Fence,
    Forget,
    GapFound,
    Offer,
    OpenReceiver,
    Read,
    Release,
    Relieve,
    Return,
    Say,
)

__all__ = ["ReaderDriver"]

log = logging.getLogger("millstream.agent")

FORGETS_PER_IDLE_TIME = 10
Args = TypeVarTuple("Args")


class ReaderDriver:
    """Reads one queue into its cache, and offers the messages to their subscriptions.

    Args:
        given_up: events to acknowledge as failed, with their errors.
        progressed: called when some messages are for no subscription, so that they may be
            acknowledged.

    Attributes:
        is_acked: False: the last acknowledgement failed, so finished events are delivered again.
    """

    __slots__ = (
        "_alarm",
        "_alarm_s",
        "_cache",
        "_calls",
        "_clock",
        "_dispatch",
        "_epoch",
        "_findings",
        "_forget_at_s",
        "_given_up",
        "_is_stepping",
        "_losses",
        "_parts",
        "_progressed",
        "_receiving",
        "_subscribers",
        "_tasks",
        "core",
        "is_acked",
        "is_closed",
    )

    def __init__(
        self,
        core: ReaderCore,
        parts: AgentParts,
        epoch: QueueEpoch,
        cache: QueueCache,
        subscribers: Subscribers,
        dispatch: Dispatch,
        findings: QueueFindings,
        losses: Losses,
        given_up: dict[Token, str],
        *,
        tasks: Tasks,
        progressed: Callable[[], None],
    ) -> None:
        self.core = core
        self._parts, self._epoch, self._clock = parts, epoch, parts.clock
        self._cache = cache
        self._subscribers, self._dispatch = subscribers, dispatch
        self._findings, self._losses = findings, losses
        self._given_up = given_up
        self._tasks = tasks
        self._progressed = progressed
        self._calls: list[tuple[Callable[..., Sequence[Action]], tuple[Any, ...]]] = []
        self._is_stepping = self.is_closed = False
        self._alarm: TimerHandle | None = None  # rings at `_alarm_s` or earlier
        self._alarm_s = math.inf
        self._receiving: ContainedReceiver | None = None
        self._forget_at_s = 0.0
        self.is_acked = True

    def step(self, call: Callable[[*Args, float], Sequence[Action]], *args: *Args) -> None:
        """Call the core with the time, and carry out its actions; calls that these cause come
        next."""
        self._calls.append((call, args))
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._calls and not self.is_closed:
                method, values = self._calls.pop(0)
                for action in method(*values, self._clock.now()):
                    self._act(action)
        finally:
            self._is_stepping = False
        if not self.is_closed:
            self._set_alarm(self.core.wake_s())

    def _set_alarm(self, when_s: float) -> None:
        """Call `tick` at this time at the latest."""
        if self._alarm is not None and self._alarm_s <= when_s:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if when_s < math.inf:
            self._alarm_s = when_s  # uvloop's handle of a past time does not tell it
            self._alarm = self._tasks.call_at(when_s, self._tick)

    def _tick(self) -> None:
        self._alarm = None
        self.step(self.core.tick)

    def _act(self, action: Action) -> None:
        match action:
            case Offer():
                self._offer(action.slots)
            case Read():
                if self._receiving is not None:
                    read = self._receiving.read(action.events, action.size_bytes, action.wait_s)
                    self._parts.runners.start(read)
                if (now_s := self._clock.now()) >= self._forget_at_s:
                    self._forget_idle_streams(now_s)
            case Ack() | Extend() | Release():
                if self._receiving is not None:
                    self._receiving.settle(action)
            case Return():
                for tokens, has_run in give_back(self._subscribers.streams, self._cache):
                    self.step(self.core.on_returned, tokens, 0.0, has_run)
            case OpenReceiver():
                self._open(action)
            case Bound():
                self._tasks.start(self._ask_bounds())
            case Discard():
                if self._receiving is not None:
                    self._tasks.start(self._receiving.discard())
            case Relieve():
                self._subscribers.relieve(action.stream)
            case Forget():
                self._cache.forget(self._subscribers.let_go)
                self._given_up.clear()
            case Say():
                self._findings.at_fault(action.text)
            case GapFound():
                self._on_gap(action)
            case Fence():
                epoch = self._epoch
                log.warning("%s: fenced in epoch %d: %s", epoch.queue, epoch.number, action.text)
                self._dispatch.pause()
                epoch.fence()

    def _offer(self, slots: Sequence[Slot]) -> None:
        left = self._cache.left
        for slot in slots:
            self._subscribers.route(slot)
        self._dispatch.pump()
        if self._cache.left != left:  # some have no waiting subscription
            self._progressed()

    def _on_gap(self, gap: GapFound) -> None:
        is_known = has_positions(self._parts.capabilities)
        self._findings.on_lost(gap)
        self._subscribers.on_lost(Loss(gap.after, gap.first) if is_known else Loss(None, None))
        self.core.settling.waits = self._losses.is_waiting
        self._epoch.decide_again()  # the record must list it

    def _forget_idle_streams(self, now_s: float) -> None:
        """Forget idle streams at intervals, because this looks at each stream."""
        idle_s = self._parts.options.stream_idle_s
        self._forget_at_s = now_s + idle_s / FORGETS_PER_IDLE_TIME
        self._subscribers.forget_idle(now_s - idle_s)

    # -- calls to the adapter

    def _open(self, action: OpenReceiver) -> None:
        parts, epoch = self._parts, self._epoch

        def make() -> QueueReceiver:
            return parts.adapter.receiver(epoch.queue, epoch.number)

        self._receiving = ContainedReceiver(
            action.serial,
            make,
            epoch.where,
            self.core,
            self.step,
            self._tasks,
            parts.options.call_limit_s,
            parts.runners,
            parts.budget,
            self._given_up,
        )
        parts.runners.start(self._receiving.open(action.after))

    def new_reader(self) -> ContainedReader:
        """Return a reader of the queue, which is independent of the receiver."""
        adapter, queue = self._parts.adapter, self._epoch.queue

        def make() -> QueueReader:
            assert isinstance(adapter, Rewinds), "nobody is behind where nothing can be read again"
            return adapter.reader(queue)

        limit_s = self._parts.options.call_limit_s
        return ContainedReader(make, self._epoch.where, self._findings, self._tasks, limit_s)

    async def _ask_bounds(self) -> None:
        """Ask for the bounds of the queue. Without an answer, more events than necessary are marked
        as redelivered."""
        try:
            async with aclosing(self.new_reader()) as reader:
                _, last = await reader.bounds()
        except QueueUnavailable as error:
            self._findings.at_fault(str(error))
        else:
            self.step(self.core.on_bounds, last)

    @property
    def backlog(self) -> int:
        """The number of unread events, at the last measurement."""
        return 0 if self._receiving is None else self._receiving.backlog

    async def measure(self) -> None:
        """Ask the provider for the unread backlog, if it can tell."""
        if self._receiving is not None:
            await self._receiving.measure()

    def ask_backlog(self) -> None:
        """Do the same as `measure`, without waiting for the answer."""
        if self._receiving is not None:
            self._receiving.ask_backlog()

    # -- its state, for reports

    @property
    def is_reading(self) -> bool:
        """Whether a receiver is open, and this silo owns the queue."""
        return self.core.is_open and not self._epoch.is_fenced

    @property
    def trouble(self) -> str:
        """The adapter's last fault, until the next successful read."""
        return self._findings.last_fault if self.core.is_failing else ""

    def stops(self) -> tuple[int, float]:
        """Return how often a full cache stopped reading, and for how many seconds in all."""
        return self.core.stop_count, self.core.count_stopped_s(self._clock.now())

    # -- the end

    def close(self) -> None:
        """Decide nothing more."""
        self.is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()

    async def stop(self) -> None:
        """Acknowledge finished events and close the receiver. A repeated call is harmless. Ends in
        bounded time."""
        receiving, self._receiving = self._receiving, None
        if receiving is None:
            return
        try:
            if not self._epoch.is_fenced:
                ack, back = self.core.settling.last()
                is_open = self.core.is_open
                self.is_acked = await receiving.settle_last(ack, back) if is_open else ack is None
            await receiving.close()
        finally:  # a cancelled caller does not call again
            receiving.abort()

    def abort(self) -> None:
        """Make no more calls to the adapter, and acknowledge nothing."""
        if self._receiving is not None:
            self._receiving.abort()
