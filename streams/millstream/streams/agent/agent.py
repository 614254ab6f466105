"""A pulling agent: reads one queue into its cache and drives the deliveries from it.

Owns: how the parts are put together, its life, and what the owner of the queue asks of it. Not:
reading (`reading.driver`), which subscriptions a stream has (`subscribers`), sending to consumers
(`dispatch`), owning the queue (`manager`).
Invariants: reads, deliveries and acknowledgements never wait for each other, except that reading
stops while the cache is full; what the adapter does is contained here, named and counted; what is
acknowledged is the minimum over all subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing

import msgspec

from millstream.streams.api.subscription_rows import HERE, SubscriptionRow, time_of
from millstream.streams.contracts.capability import Capability, has_positions
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import QueueProgress

from .audience.handover_list import Former
from .audience.newcomers import Newcomers
from .cache.lagging_cursors import LaggingCursors
from .delivery.deaths import Deaths
from .delivery.deliveries import Deliveries
from .delivery.dispatch import Dispatch
from .findings import QueueFindings
from .losses import Losses
from .parts import AgentParts, cache_for
from .progress.tracker import ProgressTracker
from .progress.wary import Wary
from .queue_epoch import QueueEpoch
from .reading.catch_up import CatchUp
from .reading.contained_receiver import end_tasks
from .reading.driver import ReaderDriver
from .reading.reader import ReaderCore
from .subscribers import Subscribers
from .watchdog.queue_work import QueueWork
from .watchdog.watch import Watch

__all__ = ["PullingAgent"]


class PullingAgent:
    """Reads one queue in one epoch, until it is stopped or fenced.

    Args:
        progress: where a former owner was, as the record says it.
        may_repeat: what is read may have been delivered by a former owner.
        has_rival: a former owner may still deliver, also messages that are stored from now on.
        changed: called when the owner of the queue should decide anew.

    Attributes:
        work: what is not done yet, and what it waits for.
    """

    __slots__ = (
        "_catch_up",
        "_clock",
        "_core",
        "_epoch",
        "_losses",
        "_tasks",
        "_tracker",
        "_wary",
        "behind",
        "cache",
        "dispatch",
        "epoch",
        "findings",
        "options",
        "queue",
        "reader",
        "subscribers",
        "watch",
        "work",
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
        self.options = options = parts.options
        self._clock = clock = parts.clock
        self._tasks = parts.new_tasks()
        self.queue, self.epoch = queue, epoch
        self._epoch = QueueEpoch(parts.provider, queue, epoch, parts.services.address, changed)
        self.findings = QueueFindings(self._epoch, clock)
        are_positions = has_positions(parts.capabilities)
        can_rewind = Capability.REWIND in parts.capabilities
        after = progress.upto if can_rewind else progress.floor
        after = after if are_positions else None
        self.cache = cache_for(options, parts.capabilities, after)
        self.behind = LaggingCursors(self.cache, is_used=can_rewind)
        self.behind.take_over(progress, may_repeat=may_repeat)
        former = Former(progress, is_used=are_positions and not can_rewind)
        self._wary = Wary(progress, is_used=are_positions)
        self._losses = Losses(progress.lost, clock.wall_s(), is_noted=are_positions)
        given_up: dict[Token, str] = {}  # events that are to be acknowledged as failed
        self.dispatch = self._new_dispatch(parts, given_up)
        self.subscribers = Subscribers(
            self.cache,
            self.behind,
            Deliveries(self.behind, self.dispatch, has_positions=are_positions),
            self.dispatch,
            parts.known,
            Newcomers(options.delivery, parts.filters),
            progressed=self.on_progress,
            clock=clock,
            tasks=parts.new_tasks(),
            stored=parts.stored,
            reconcile_s=options.reconcile_s,
            former=former,
            losses=self._losses,
        )
        self._core = ReaderCore(
            self.cache,
            self.behind,
            options,
            parts.capabilities,
            where=self._epoch.where,
            after=after,
            may_repeat=may_repeat,
            asks_bounds=can_rewind and not has_rival,
            now_s=clock.now(),
            wall_s=clock.wall_s(),
        )
        self._tracker = ProgressTracker(
            self.behind,
            self.subscribers,
            former,
            self._wary,
            self._losses,
            stored=progress,
            has_positions=are_positions,
            is_sole=Capability.OWN_POSITION not in parts.capabilities,
        )
        self._wire_reading(parts, given_up)

    def _new_dispatch(self, parts: AgentParts, given_up: dict[Token, str]) -> Dispatch:
        return Dispatch(
            parts.services,
            self._epoch,
            self.behind,
            parts.give_ups,
            self._wary,
            Deaths(parts.fate),
            given_up,
            layout=parts.layout,
            has_positions=has_positions(parts.capabilities),
            calls_out_max=self.options.calls_out_max,
            tasks=parts.new_tasks(),
            runners=parts.runners,
            give_back=self._give_back,
            fetch=lambda: self._catch_up.wake(),
            progressed=self.on_progress,
        )

    def _wire_reading(self, parts: AgentParts, given_up: dict[Token, str]) -> None:
        """Reading, reading again, and what watches both."""
        self.reader = ReaderDriver(
            self._core,
            parts,
            self._epoch,
            self.cache,
            self.subscribers,
            self.dispatch,
            self.findings,
            self._losses,
            given_up,
            tasks=self._tasks,
            progressed=self.on_progress,
        )
        self._catch_up = CatchUp(
            self.reader.new_reader(),
            self.cache,
            self.dispatch,
            self.findings,
            self._losses,
            self.options,
            self._tasks,
            self._clock,
        )
        self.work = QueueWork(
            self.reader, self.subscribers, self.dispatch, self._catch_up, self._clock
        )
        self.watch = Watch(
            self.reader.ask_backlog,
            self.work.pieces,
            self.options.standstill_s,
            self._clock,
            where=self._epoch.where,
            extra=self._epoch.extra,
        )

    # -- life

    def start(self) -> None:
        """Begin reading and delivering."""
        self.subscribers.expect()
        self.reader.step(self._core.tick)

    def pause(self) -> None:
        """Read no more and start no more deliveries; what is out goes on, and is kept."""
        self.dispatch.pause()
        self.reader.step(self._core.hold, True)

    def resume(self) -> None:
        """Undo a pause."""
        self.reader.step(self._core.hold, False)
        self.dispatch.resume()

    async def stop(self) -> None:
        """Acknowledge what is done and let the queue go; repeatable. Ends in bounded time."""
        self._close()
        try:
            await self.reader.stop()
            await self._catch_up.close()
            await end_tasks(list(self._tasks))
        finally:  # the caller may be cancelled meanwhile: nobody calls again then
            self._tasks.cancel()

    def abort(self) -> None:
        """Stop without a word, as when the silo was evicted."""
        self._close()
        self.reader.abort()
        self._tasks.cancel()

    def _close(self) -> None:
        self.reader.close()
        self.subscribers.close()
        self._tracker.close()
        self.dispatch.close()

    # -- what the owner of the queue asks and tells

    @property
    def progress(self) -> QueueProgress | None:
        """The progress to store; None: nothing, as the provider keeps the position."""
        return self._tracker.progress()

    def on_stored(self, progress: QueueProgress) -> None:
        """The queue record says this now."""
        self._tracker.on_stored(progress)
        self._core.settling.waits = self._losses.is_waiting
        self.on_progress()
        if self._wary.is_on:
            self.dispatch.pump()

    def handoff(self) -> QueueProgress | None:
        """All that the next owner can use; None where a token is no position."""
        has_backlog = self.cache.base <= self.cache.repeats_upto or self._core.has_repeats
        return self._tracker.handoff(is_known=not has_backlog)

    def undone_up_to(self, token: Token) -> frozenset[StreamId] | None:
        """Streams of which something up to a message may come again; None: not known, or many."""
        return self._tracker.undone_up_to(token, self._core, self._clock.now())

    @property
    def is_acked(self) -> bool:
        """Does the provider know of all that is done? If not, it comes again."""
        return self.reader.is_acked

    @property
    def is_fenced(self) -> bool:
        """Does another silo read the queue in a newer epoch?"""
        return self._epoch.is_fenced

    def fence(self) -> None:
        """Another silo owns the queue: write nothing more. The caller decides what comes next."""
        self._epoch.is_fenced = True

    @property
    def is_urgent(self) -> bool:
        """Does somebody wait until the record has the progress?"""
        return self._tracker.is_awaited

    @property
    def in_flight(self) -> int:
        """Delivery calls that are out."""
        return self.dispatch.calls_out

    @property
    def unacked(self) -> int:
        """Subscriptions that are to acknowledge something by hand."""
        return self.subscribers.unacked

    @property
    def undone(self) -> int:
        """Events that were read and are not done for each of their subscriptions.

        One at least while the backlog that a former owner may have delivered is not in the cache.
        """
        events = self.cache.events + self.cache.chained_events
        return events + len(self.behind) + self._core.has_repeats

    # -- subscriptions

    async def attach(self, stream: StreamId, row: SubscriptionRow) -> bool:
        """Take a subscription that was made or resumed; False: it could not be kept.

        One that goes back is in the queue record before this returns.
        """
        when = time_of(row.start)
        if when is not None:
            async with aclosing(self.reader.new_reader()) as reader:
                row = msgspec.structs.replace(row, start=await reader.find_start(when))
        self.subscribers.attach(stream, row)
        key = (stream, row.id)
        if row.start in (HERE, "next") or self.behind.get(key) is None:
            return True
        if self.reader.is_closed:
            return False
        stored = self._tracker.until_stored(key)
        self._epoch.decide_again()
        return await stored

    def on_acked(self, stream: StreamId, subscription: str, upto: Token) -> bool:
        """A subscription has acknowledged by hand, up to a token; False: tell it again."""
        return not self.reader.is_closed and self.subscribers.on_acked(stream, subscription, upto)

    # -- what deliveries tell

    def on_progress(self) -> None:
        """A delivery moved: there may be room, and something to acknowledge."""
        if self._tracker.waiters:
            self._tracker.look()
        if self._wary.is_on:
            self._be_wary()
        if not self._core.rests(self._clock.now()):
            self.reader.step(self._core.tick)

    def _be_wary(self) -> None:
        """Until all is done that the former owners may have had, or enough of it."""
        has_backlog = self._core.has_repeats or self.subscribers.has_backlog(
            self.cache.repeats_upto
        )
        if self._wary.is_tired or not has_backlog:
            self._wary.end()
            self._epoch.decide_again()
            self.dispatch.pump()

    def _give_back(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None:
        """The queue gives out messages again: their handler has failed, or they are held here."""
        self.cache.disown(tokens)
        self.reader.step(self._core.on_returned, tokens, delay_s, has_run)
