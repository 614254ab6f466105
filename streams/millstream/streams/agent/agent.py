"""A pulling agent: reads one queue into its cache and drives the deliveries from it.

Owns the wiring of its parts, its life cycle, and the interface for the owner of the queue.
`reading.driver` reads, `subscribers` knows the subscriptions, `dispatch` calls consumers, and
`manager` owns the queue.

Invariants:

- Reads, deliveries and acknowledgements never wait for each other, except that reading stops while
  the cache is full.
- Faults of the adapter are contained, named and counted here.
- The agent acknowledges up to the minimum over all subscriptions.
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
        progress: the progress of a former owner, from the record.
        may_repeat: a former owner may have delivered the messages that are read.
        has_rival: a former owner may still deliver, even messages that are stored later.
        changed: called when the owner of the queue should decide again.

    Attributes:
        work: the unfinished work, and the reasons why it waits.
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
        given_up: dict[Token, str] = {}  # events to acknowledge as failed
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
        """Make the parts that read, read again, and watch both."""
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
        """Stop reading and starting deliveries; deliveries in flight continue, and are recorded."""
        self.dispatch.pause()
        self.reader.step(self._core.hold, True)

    def resume(self) -> None:
        """Undo a pause."""
        self.reader.step(self._core.hold, False)
        self.dispatch.resume()

    async def stop(self) -> None:
        """Acknowledge finished events and stop. A repeated call is harmless. Ends in bounded
        time."""
        self._close()
        try:
            await self.reader.stop()
            await self._catch_up.close()
            await end_tasks(list(self._tasks))
        finally:  # a cancelled caller does not call again
            self._tasks.cancel()

    def abort(self) -> None:
        """Stop at once and acknowledge nothing, for example because the silo was evicted."""
        self._close()
        self.reader.abort()
        self._tasks.cancel()

    def _close(self) -> None:
        self.reader.close()
        self.subscribers.close()
        self._tracker.close()
        self.dispatch.close()

    # -- the interface for the owner of the queue

    @property
    def progress(self) -> QueueProgress | None:
        """The progress to store.

        None means that there is nothing to store, because the provider keeps the position.
        """
        return self._tracker.progress()

    def on_stored(self, progress: QueueProgress) -> None:
        """Remember that the queue record has this progress."""
        self._tracker.on_stored(progress)
        self._core.settling.waits = self._losses.is_waiting
        self.on_progress()
        if self._wary.is_on:
            self.dispatch.pump()

    def handoff(self) -> QueueProgress | None:
        """Return all that the next owner can use; None if tokens are not positions."""
        has_backlog = self.cache.base <= self.cache.repeats_upto or self._core.has_repeats
        return self._tracker.handoff(is_known=not has_backlog)

    def undone_up_to(self, token: Token) -> frozenset[StreamId] | None:
        """Return the streams that may get events up to a token again.

        None means that they are unknown, or too many.
        """
        return self._tracker.undone_up_to(token, self._core, self._clock.now())

    @property
    def is_acked(self) -> bool:
        """Whether the provider knows all finished events; otherwise it delivers them again."""
        return self.reader.is_acked

    @property
    def is_fenced(self) -> bool:
        """Whether another silo reads the queue in a newer epoch."""
        return self._epoch.is_fenced

    def fence(self) -> None:
        """Write nothing more, because another silo owns the queue. The caller decides the next
        step."""
        self._epoch.is_fenced = True

    @property
    def is_urgent(self) -> bool:
        """Whether a caller waits until the record has the progress."""
        return self._tracker.is_awaited

    @property
    def in_flight(self) -> int:
        """The number of delivery calls in flight."""
        return self.dispatch.calls_out

    @property
    def unacked(self) -> int:
        """The number of subscriptions that still have to acknowledge events by hand."""
        return self.subscribers.unacked

    @property
    def undone(self) -> int:
        """The number of events that were read and are not done for all their subscriptions.

        It is at least 1 while messages that a former owner may have delivered are not in the cache.
        """
        events = self.cache.events + self.cache.chained_events
        return events + len(self.behind) + self._core.has_repeats

    # -- subscriptions

    async def attach(self, stream: StreamId, row: SubscriptionRow) -> bool:
        """Add a subscription that was made or resumed. False: it could not be stored.

        If the subscription moves back, the queue record has it before this returns.
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
        """Accept a manual acknowledgement up to a token. False: the caller has to send it again."""
        return not self.reader.is_closed and self.subscribers.on_acked(stream, subscription, upto)

    # -- reports of deliveries

    def on_progress(self) -> None:
        """Handle the progress of a delivery: there may be room, and messages to acknowledge."""
        if self._tracker.waiters:
            self._tracker.look()
        if self._wary.is_on:
            self._be_wary()
        if not self._core.rests(self._clock.now()):
            self.reader.step(self._core.tick)

    def _be_wary(self) -> None:
        """Stop being wary when enough events that former owners may have delivered are done."""
        has_backlog = self._core.has_repeats or self.subscribers.has_backlog(
            self.cache.repeats_upto
        )
        if self._wary.is_tired or not has_backlog:
            self._wary.end()
            self._epoch.decide_again()
            self.dispatch.pump()

    def _give_back(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None:
        """Return messages to the queue because their handler has failed, or the queue is paused
        here."""
        self.cache.disown(tokens)
        self.reader.step(self._core.on_returned, tokens, delay_s, has_run)
