"""A pulling agent: reads one queue into its cache and drives the deliveries from it.

Owns: carrying out what the reader decides (`reader`), one timer, how the parts are put together,
and its figures. Not: which subscriptions a stream has (`subscribers`), sending to consumers
(`dispatch`), owning the queue (`manager`).
Invariants: reads, deliveries and acknowledgements never wait for each other, except that reading
stops while the cache is full; what the adapter does is contained here, named and counted; what is
acknowledged is the minimum over all subscriptions.
"""

from __future__ import annotations

import logging
import math
from asyncio import TimerHandle
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, TypeVarTuple

import msgspec

from millstream.runtime import QueueUnavailable
from millstream.streams.api.subscription_rows import HERE, SubscriptionRow, time_of
from millstream.streams.contracts.capability import Capability, has_positions
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.queue import QueueReader, QueueReceiver, Rewinds
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import QueueProgress

from .audience.handover_list import Former
from .audience.newcomers import Newcomers
from .cache.lagging_cursors import LaggingCursors
from .cache.lane import Slot
from .cache.positions import following
from .delivery.dispatch import Dispatch
from .findings import QueueFindings
from .losses import Loss, Losses
from .options import StreamOptions
from .parts import AgentParts, cache_for
from .progress.tracker import ProgressTracker
from .progress.wary import Wary
from .reading.catch_up import CatchUp, ContainedReader
from .reading.contained_receiver import ContainedReceiver, end_tasks
from .reading.reader import ReaderCore
from .reading.steps import (
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
    ReaderState,
    Release,
    Relieve,
    Return,
    Say,
)
from .subscribers import Subscribers
from .watchdog.standstill import PieceOfWork
from .watchdog.watch import Watch

__all__ = ["PullingAgent"]

log = logging.getLogger("millstream.agent")

FORGETS_PER_IDLE_TIME = 10
Args = TypeVarTuple("Args")


class PullingAgent:
    """Reads one queue in one epoch, until it is stopped or fenced.

    Args:
        progress: where a former owner was, as the record says it.
        may_repeat: what is read may have been delivered by a former owner.
        has_rival: a former owner may still deliver, also messages that are stored from now on.
        changed: called when the owner of the queue should decide anew.

    Attributes:
        is_fenced: another silo reads the queue in a newer epoch.
        has_positions: a token says how far the queue is done.
    """

    __slots__ = (
        "_alarm",
        "_alarm_s",
        "_calls",
        "_catch_up",
        "_changed",
        "_clock",
        "_core",
        "_forget_at_s",
        "_given_up",
        "_is_closed",
        "_is_stepping",
        "_losses",
        "_options",
        "_parts",
        "_receiving",
        "_standing",
        "_tasks",
        "_wary",
        "_where",
        "behind",
        "cache",
        "dispatch",
        "epoch",
        "findings",
        "has_positions",
        "is_acked",
        "is_fenced",
        "queue",
        "subscribers",
        "watch",
    )

    def __init__(
        self,
        parts: AgentParts,
        queue: QueueId,
        epoch: int,
        progress: QueueProgress,
        *,
        may_repeat: bool = False,
        has_rival: bool = False,
        changed: Callable[[QueueId], None],
    ) -> None:
        self._parts, self._changed = parts, changed
        self._options = options = parts.options
        self._clock = parts.clock
        self._tasks = parts.new_tasks()
        self.queue, self.epoch = queue, epoch
        self._where = f"{parts.provider}: {queue}"
        silo = parts.services.address
        self.findings = QueueFindings(parts.provider, queue, epoch, silo, parts.clock)
        self.has_positions = has_positions(parts.capabilities)
        can_rewind = Capability.REWIND in parts.capabilities
        after = progress.upto if can_rewind else progress.floor
        after = after if self.has_positions else None
        self.cache = cache_for(options, parts.capabilities, after)
        self.behind = LaggingCursors(self.cache, is_used=can_rewind)
        self.behind.take_over(progress, may_repeat=may_repeat)
        former = Former(progress, is_used=self.has_positions and not can_rewind)
        self._wary = Wary(progress, is_used=self.has_positions)
        self._losses = Losses(progress.lost, parts.clock.wall_s(), is_noted=self.has_positions)
        self._given_up: dict[Token, str] = {}  # events that are to be acknowledged as failed
        self.dispatch = self._new_dispatch()
        self.subscribers = Subscribers(
            self.cache,
            self.behind,
            self.dispatch,
            parts.known,
            Newcomers(options.delivery, parts.filters),
            progressed=self.on_progress,
            clock=parts.clock,
            tasks=parts.new_tasks(),
            stored=parts.stored,
            reconcile_s=options.reconcile_s,
            former=former,
            losses=self._losses,
        )
        self._core = self._new_core(after, may_repeat=may_repeat, has_rival=has_rival)
        self._standing = ProgressTracker(
            self.behind,
            self.subscribers,
            former,
            self._wary,
            self._losses,
            stored=progress,
            has_positions=self.has_positions,
            is_sole=Capability.OWN_POSITION not in parts.capabilities,
        )
        self._catch_up, self.watch = self._new_catch_up(), self._new_watch()
        self._calls: list[tuple[Callable[..., Sequence[Action]], tuple[Any, ...]]] = []
        self._is_stepping = self._is_closed = self.is_fenced = False
        self._alarm: TimerHandle | None = None  # rings at `_alarm_s` or before
        self._alarm_s = math.inf
        self._receiving: ContainedReceiver | None = None
        self._forget_at_s = 0.0
        self.is_acked = True  # False: the last acknowledgement failed, so what is done comes again

    def _new_dispatch(self) -> Dispatch:
        parts = self._parts
        return Dispatch(
            parts.services,
            parts.provider,
            self.queue,
            self.epoch,
            self.behind,
            parts.give_ups,
            self._wary,
            self._given_up,
            layout=parts.layout,
            has_positions=self.has_positions,
            calls_out_max=self._options.calls_out_max,
            tasks=parts.new_tasks(),
            runners=parts.runners,
            fate=parts.fate,
            give_back=self._give_back,
            fetch=lambda: self._catch_up.wake(),
            reading_anew=lambda: self._catch_up.doing,
            repeats_to=lambda: self._core.repeats_to,
            progressed=self.on_progress,
            look_again=lambda: self._changed(self.queue),
            fenced=self.on_fenced,
        )

    def _new_core(self, after: Token | None, *, may_repeat: bool, has_rival: bool) -> ReaderCore:
        return ReaderCore(
            self.cache,
            self.behind,
            self._options,
            self._parts.capabilities,
            where=self._where,
            after=after,
            may_repeat=may_repeat,
            asks_bounds=self.behind.is_used and not has_rival,
            now_s=self._clock.now(),
            wall_s=self._clock.wall_s(),
        )

    def _new_catch_up(self) -> CatchUp:
        return CatchUp(
            self._new_reader(),
            self.cache,
            self.dispatch,
            self.findings,
            self._losses,
            self._options,
            self._tasks,
            self._clock,
        )

    def _new_watch(self) -> Watch:
        extra = {"silo": self._parts.services.address, "queue": self.queue, "epoch": self.epoch}
        limit_s = self._options.standstill_s
        return Watch(
            self.ask_backlog, self.work, limit_s, self._clock, where=self._where, extra=extra
        )

    # -- life

    def start(self) -> None:
        """Begin reading and delivering."""
        self.subscribers.expect()
        self._step(self._core.tick)

    @property
    def progress(self) -> QueueProgress | None:
        """The progress to store; None: nothing, as the provider keeps the position."""
        return self._standing.progress()

    def on_stored(self, progress: QueueProgress) -> None:
        """The queue record says this now."""
        self._standing.on_stored(progress)
        self._core.settling.waits = self._losses.is_waiting
        self.on_progress()
        if self._wary.is_on:
            self.dispatch.pump()

    def handoff(self) -> QueueProgress | None:
        """All that the next owner can use; None where a token is no position."""
        return self._standing.handoff(is_known=not self._has_backlog)

    async def attach(self, stream: StreamId, row: SubscriptionRow) -> bool:
        """Take a subscription that was made or resumed; False: it could not be kept.

        One that goes back is in the queue record before this returns.
        """
        when = time_of(row.start)
        if when is not None:
            row = msgspec.structs.replace(row, start=await self._start_at(when))
        self.subscribers.attach(stream, row)
        key = (stream, row.id)
        if row.start in (HERE, "next") or self.behind.get(key) is None:
            return True
        if self._is_closed:
            return False
        stored = self._standing.until_stored(key)
        self._changed(self.queue)
        return await stored

    async def _start_at(self, when: datetime) -> str:
        """Where messages of that time begin, or those that came since the provider was asked."""
        async with aclosing(self._new_reader()) as reader:
            _, last = await reader.bounds()
            token = await reader.seek(when)
        if token is None:
            token = None if last is None else following(last)
        return "earliest" if token is None else str(token)

    def on_acked(self, stream: StreamId, subscription: str, upto: Token) -> bool:
        """A subscription has acknowledged by hand, up to a token; False: tell it again."""
        return not self._is_closed and self.subscribers.on_acked(stream, subscription, upto)

    def pause(self) -> None:
        """Read no more and start no more deliveries; what is out goes on, and is kept."""
        self.dispatch.pause()
        self._step(self._core.hold, True)

    def resume(self) -> None:
        """Undo a pause."""
        self._step(self._core.hold, False)
        self.dispatch.resume()

    async def stop(self) -> None:
        """Acknowledge what is done and let the queue go; repeatable. Ends in bounded time."""
        self._close()
        self.dispatch.close()
        receiving, self._receiving = self._receiving, None
        try:
            if receiving is not None:
                await self._let_go(receiving)
            await self._catch_up.close()
            await end_tasks(list(self._tasks))
        finally:  # the caller may be cancelled meanwhile: nobody calls again then
            if receiving is not None:
                receiving.abort()
            self._tasks.cancel()

    async def _let_go(self, receiving: ContainedReceiver) -> None:
        if not self.is_fenced:
            ack, back = self._core.settling.last()
            is_open = self._core.is_open
            self.is_acked = await receiving.settle_last(ack, back) if is_open else ack is None
        await receiving.close()

    def abort(self) -> None:
        """Stop without a word, as when the silo was evicted."""
        self._close()
        self.dispatch.close()
        if self._receiving is not None:
            self._receiving.abort()
        self._tasks.cancel()

    def _close(self) -> None:
        self._is_closed = True
        self.subscribers.close()
        self._standing.close()
        if self._alarm is not None:
            self._alarm.cancel()

    # -- the reader

    def _step(self, call: Callable[[*Args, float], Sequence[Action]], *args: *Args) -> None:
        """Call the core, with the time, and do what it asks for; calls that this causes follow."""
        self._calls.append((call, args))
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._calls and not self._is_closed:
                method, values = self._calls.pop(0)
                for action in method(*values, self._clock.now()):
                    self._act(action)
        finally:
            self._is_stepping = False
        if not self._is_closed:
            self._set_alarm(self._core.wake_s())

    def _set_alarm(self, when_s: float) -> None:
        """Tick at this time at the latest."""
        if self._alarm is not None and self._alarm_s <= when_s:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if when_s < math.inf:
            self._alarm_s = when_s  # uvloop's handle of a time that has come does not tell it
            self._alarm = self._tasks.call_at(when_s, self._tick)

    def _tick(self) -> None:
        self._alarm = None
        self._step(self._core.tick)

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
                for tokens, has_run in self.subscribers.give_back():
                    self._step(self._core.on_returned, tokens, 0.0, has_run)
            case OpenReceiver():
                self._open(action)
            case Bound():
                self._tasks.start(self._ask_bounds())
            case Discard():
                if self._receiving is not None:
                    self._tasks.start(self._receiving.discard())
            case Relieve():
                self.subscribers.relieve(action.stream)
            case Forget():
                self.cache.forget(self.subscribers.let_go)
                self._given_up.clear()
            case Say():
                self.findings.at_fault(action.text)
            case GapFound():
                self.findings.on_lost(action)
                loss = Loss(action.after, action.first) if self.has_positions else Loss(None, None)
                self.subscribers.on_lost(loss)
                self._core.settling.waits = self._losses.is_waiting
                self._changed(self.queue)  # the record is to say it
            case Fence():
                log.warning("%s: fenced in epoch %d: %s", self.queue, self.epoch, action.text)
                self.dispatch.pause()
                self.on_fenced()

    def _open(self, action: OpenReceiver) -> None:
        parts, limit_s = self._parts, self._options.call_limit_s

        def make() -> QueueReceiver:
            return parts.adapter.receiver(self.queue, self.epoch)

        tasks, runners, budget = self._tasks, parts.runners, parts.budget
        self._receiving = ContainedReceiver(
            action.serial,
            make,
            self._where,
            self._core,
            self._step,
            tasks,
            limit_s,
            runners,
            budget,
            self._given_up,
        )
        runners.start(self._receiving.open(action.after))

    def _offer(self, slots: Sequence[Slot]) -> None:
        left = self.cache.left
        for slot in slots:
            self.subscribers.route(slot)
        self.dispatch.pump()
        if self.cache.left != left:  # no subscription waits for some of them
            self.on_progress()

    def undone_up_to(self, token: Token) -> frozenset[StreamId] | None:
        """Streams of which something up to a message may come again; None: not known, or many."""
        return self._standing.undone_up_to(token, self._core, self._clock.now())

    def _make_reader(self) -> QueueReader:
        adapter = self._parts.adapter
        assert isinstance(adapter, Rewinds), "nobody is behind where nothing can be read again"
        return adapter.reader(self.queue)

    def _new_reader(self) -> ContainedReader:
        limit_s = self._options.call_limit_s
        return ContainedReader(self._make_reader, self._where, self.findings, self._tasks, limit_s)

    async def _ask_bounds(self) -> None:
        """Without an answer, more events than necessary are marked as redelivered."""
        try:
            async with aclosing(self._new_reader()) as reader:
                _, last = await reader.bounds()
        except QueueUnavailable as error:
            self.findings.at_fault(str(error))
        else:
            self._step(self._core.on_bounds, last)

    # -- what others may see

    @property
    def in_flight(self) -> int:
        """Delivery calls that are out."""
        return self.dispatch.calls_out

    @property
    def unacked(self) -> int:
        """Subscriptions that are to acknowledge something by hand."""
        return self.subscribers.unacked

    @property
    def is_urgent(self) -> bool:
        """Does somebody wait until the record has the progress?"""
        return self._standing.is_awaited

    @property
    def _has_backlog(self) -> bool:
        """Is there something of which it is not known what former owners have delivered?"""
        return self.cache.base <= self.cache.repeats_upto or self._core.has_repeats

    @property
    def undone(self) -> int:
        """Events that were read and are not done for each of their subscriptions.

        One at least while the backlog that a former owner may have delivered is not in the cache.
        """
        events = self.cache.events + self.cache.chained_events
        return events + len(self.behind) + self._core.has_repeats

    @property
    def is_reading(self) -> bool:
        """Is a receiver open, and the queue this silo's?"""
        return self._core.is_open and not self.is_fenced

    @property
    def state(self) -> ReaderState:
        """Where reading stands."""
        return self._core.state

    @property
    def options(self) -> StreamOptions:
        """Its limits."""
        return self._options

    @property
    def trouble(self) -> str:
        """The adapter's last fault, while reading has not succeeded since."""
        return self.findings.last_fault if self._core.is_failing else ""

    @property
    def read_count(self) -> int:
        """Events that were read."""
        return self._core.read_count

    def stops(self) -> tuple[int, float]:
        """How often reading stopped for a full cache, and for how many seconds in all."""
        return self._core.stop_count, self._core.count_stopped_s(self._clock.now())

    @property
    def backlog(self) -> int:
        """Events not read yet, when it was measured last."""
        return 0 if self._receiving is None else self._receiving.backlog

    # -- what stands still

    def work(self) -> Iterator[PieceOfWork]:
        """All the work that there is, for the watch."""
        if (reading := self._reading_work()) is not None:
            yield reading
        yield from self.subscribers.work()

    def _reading_work(self) -> PieceOfWork | None:
        """Reading, where there is something to read, or nothing can be."""
        core = self._core
        if core.state is ReaderState.FENCED:
            return None
        if core.state is ReaderState.READING and not (self.backlog or core.is_failing):
            return None

        def reason() -> str:
            text = core.waits_for(self._clock.now())
            return f"{text}; {self.trouble}" if text and self.trouble else text or self.trouble

        def dump() -> str:
            return f"state={core.state.value}, backlog={self.backlog}, read={core.read_count}"

        return PieceOfWork("", "", (core.state.value, core.read_count), reason, dump)

    def on_progress(self) -> None:
        """A delivery moved: there may be room, and something to acknowledge."""
        if self._standing.waiters:
            self._standing.look()
        if self._wary.is_on:
            self._be_wary()
        if not self._core.rests(self._clock.now()):
            self._step(self._core.tick)

    def _be_wary(self) -> None:
        """Until all is done that the former owners may have had, or enough of it."""
        has_backlog = self._core.has_repeats or self.subscribers.has_backlog(
            self.cache.repeats_upto
        )
        if self._wary.is_tired or not has_backlog:
            self._wary.end()
            self._changed(self.queue)
            self.dispatch.pump()

    def _give_back(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None:
        """The queue gives out messages again: their handler has failed, or they are held here."""
        self.cache.disown(tokens)
        self._step(self._core.on_returned, tokens, delay_s, has_run)

    def on_fenced(self) -> None:
        """Another silo reads the queue in a newer epoch: write nothing more."""
        self.is_fenced = True
        self._changed(self.queue)

    def _forget_idle_streams(self, now_s: float) -> None:
        """Now and then, as it looks at each stream."""
        idle_s = self._options.stream_idle_s
        self._forget_at_s = now_s + idle_s / FORGETS_PER_IDLE_TIME
        self.subscribers.forget_idle(now_s - idle_s)

    async def measure(self) -> None:
        """Ask the provider how much is not read yet, if it can tell."""
        if self._receiving is not None:
            await self._receiving.measure()

    def ask_backlog(self) -> None:
        """`measure`, without waiting for the answer."""
        if self._receiving is not None:
            self._receiving.ask_backlog()
