"""Adds subscriptions to the entries of streams.

Owns `Audience`, and `Known`, the source of subscriptions. `cold_streams` reads the stored ones,
`subscribers` receives messages about them, and `newcomers` makes the subscribers.

Invariants: a message about a subscription is newer than its row. A subscription begins at the place
where a former owner of the queue left it. It gets a report of everything that the queue has lost
since then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.deliveries import Deliveries
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.agent.losses import Losses
from millstream.streams.api.implicit import ImplicitSet, is_implicit
from millstream.streams.api.subscription_rows import WHOLE_STREAM, SubscriptionRow, find_held
from millstream.streams.contracts.identity import StreamId

from .handover_list import Former
from .newcomers import Newcomers
from .stream_entry import StreamEntry

__all__ = ["Audience", "Known"]


class Known(Protocol):
    """The subscriptions of one provider: the marks of grain classes, and the rows in the store."""

    @property
    def implicit(self) -> ImplicitSet:
        """The implicit subscriptions of the provider at present."""
        ...

    def rows_of(
        self, streams: Collection[StreamId], /
    ) -> Awaitable[Mapping[StreamId, Sequence[SubscriptionRow]]]:
        """Return the explicit subscriptions of streams, and implicit ones that are stopped. After
        any error, the caller asks again."""
        ...

    def read_held(self, namespace: str, /) -> Awaitable[Sequence[tuple[StreamId, SubscriptionRow]]]:
        """Return the stopped subscriptions of a namespace with implicit subscriptions only."""
        ...


class Audience:
    """The subscriptions of all streams of one queue, as they become known."""

    __slots__ = (
        "_cache",
        "_deliveries",
        "_former",
        "_known",
        "_laggards",
        "_losses",
        "_newcomers",
    )

    def __init__(
        self,
        cache: QueueCache,
        laggards: LaggingCursors,
        deliveries: Deliveries,
        known: Known,
        newcomers: Newcomers,
        former: Former,
        losses: Losses,
    ) -> None:
        self._cache = cache
        self._laggards = laggards
        self._deliveries = deliveries
        self._known = known
        self._newcomers = newcomers
        self._former = former
        self._losses = losses

    def add_implicit(self, stream: StreamId, entry: StreamEntry) -> None:
        """Add the subscriptions of present marks, and end those whose mark is gone."""
        implicit = self._known.implicit.of(stream)
        for old in [s for s in entry.subscribers.values() if not s.is_explicit]:
            if old.id not in implicit:
                entry.subscribers.pop(old.id).drop()
        for subscription, one in implicit.items():
            new = self._newcomers.implicit(one, stream)
            if subscription in entry.subscribers:
                self._deliveries.follow(entry.subscribers[subscription], new)
            else:
                new.held = entry.holds.get(subscription, "")
                self._add(entry, new)
                if entry.cold is None:  # otherwise it may be stopped
                    self._deliveries.restore(new)

    def add_stored(
        self, stream: StreamId, entry: StreamEntry, rows: Iterable[SubscriptionRow]
    ) -> None:
        """Add the stored subscriptions; messages that arrived during the read are newer."""
        for row in rows:
            if row.id in entry.detached:
                continue
            held = entry.holds.setdefault(row.id, find_held(row))
            if row.id == WHOLE_STREAM:
                continue
            subscriber = self.obtain(stream, entry, row)
            if subscriber is not None and held:
                subscriber.held = held
                self._deliveries.hold(subscriber)

    def restore(self, stream: StreamId, entry: StreamEntry) -> None:
        """Let lagging subscriptions continue at their places, because all subscriptions are
        known."""
        entry.detached.clear()
        entry.is_parked = False
        if self._laggards.of(stream):
            for subscriber in entry.subscribers.values():
                self._deliveries.restore(subscriber)
            self._laggards.keep_only(stream, entry.subscribers)

    def obtain(
        self, stream: StreamId, entry: StreamEntry, row: SubscriptionRow
    ) -> Subscriber | None:
        """Return the subscription of a row.

        None means that it is an implicit subscription whose mark is missing at present.
        """
        known = entry.subscribers.get(row.id)
        if known is None and not is_implicit(row.id):
            known = self._newcomers.explicit(row, stream)
            self._add(entry, known)
            self.tell_losses(stream, known)
        return known

    def tell_losses(self, stream: StreamId, subscriber: Subscriber) -> None:
        """Report earlier losses to a subscription that becomes known."""
        for loss in self._losses.of(stream):
            subscriber.lose(loss)

    def _add(self, entry: StreamEntry, new: Subscriber) -> None:
        self._cache.unheard.pop(new.stream, None)
        new.is_paused = entry.is_paused
        self._former.place(new)
        entry.subscribers[new.id] = new
