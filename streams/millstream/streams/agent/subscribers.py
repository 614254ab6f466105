"""The subscriptions of the streams of one queue, as its agent knows them.

Owns one entry for each stream, and the messages about subscriptions: made, paused, ended.
`audience.cold_streams` reads the subscriptions of a cold stream, `audience.audience` adds them to
its entry, and `audience.fan_out` gives them messages.

Invariants:

- A stream is cold while its subscriptions are unknown. Its messages stay pinned until then.
- An idle subscription is one entry without a cursor.
- A subscription attached at `next` sees every message that is routed after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from millstream.runtime.extending import Clock, Tasks
from millstream.streams.api.subscription_rows import (
    HERE,
    WHOLE_STREAM,
    SubscriptionRow,
    find_held,
)
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import ListedSubscription, QueueProgress

from .audience.audience import Audience, Known
from .audience.cold_streams import ColdStreams
from .audience.fan_out import FanOut
from .audience.handover_list import Former, list_unfinished
from .audience.newcomers import Newcomers
from .audience.stopped_subscriptions import StoppedSubscriptions
from .audience.stream_entry import StreamEntry, follow_stream, has_backlog, places
from .cache.lagging_cursors import UNKNOWN, LaggingCursors
from .cache.lane import Slot
from .cache.positions import BEGINNING, before
from .cache.queue_cache import QueueCache
from .delivery.deliveries import Deliveries
from .delivery.dispatch import Dispatch
from .delivery.subscriber import Subscriber
from .losses import Loss, Losses
from .reconciliation import Reconciliation, StoredSubscriptions
from .starts import Starts, last_token

__all__ = ["Subscribers", "give_back"]


class Subscribers:
    """The streams of one queue that had events recently."""

    __slots__ = (
        "_audience",
        "_cache",
        "_clock",
        "_cold",
        "_deliveries",
        "_dispatch",
        "_fan_out",
        "_former",
        "_laggards",
        "_losses",
        "_newcomers",
        "_progressed",
        "_reconciling",
        "_stopped",
        "_tasks",
        "streams",
    )

    def __init__(
        self,
        cache: QueueCache,
        laggards: LaggingCursors,
        deliveries: Deliveries,
        dispatch: Dispatch,
        known: Known,
        newcomers: Newcomers,
        *,
        progressed: Callable[[], None],
        clock: Clock,
        tasks: Tasks,
        stored: StoredSubscriptions | None = None,
        reconcile_s: float = 0.0,
        former: Former | None = None,
        losses: Losses | None = None,
    ) -> None:
        self._cache = cache
        self._laggards = laggards
        self._deliveries, self._dispatch = deliveries, dispatch
        self._newcomers = newcomers
        self._progressed = progressed
        self._clock = clock
        self._tasks = tasks
        self.streams: dict[StreamId, StreamEntry] = {}
        self._reconciling: Reconciliation | None = None
        if stored is not None:
            self._reconciling = Reconciliation(self.streams, self, stored, reconcile_s, tasks)
        self._losses = losses or Losses()
        self._former = former or Former(QueueProgress(), is_used=False)
        self._stopped = StoppedSubscriptions(known)
        self._fan_out = FanOut(cache, deliveries, dispatch, tasks, progressed)
        self._audience = Audience(
            cache, laggards, deliveries, known, newcomers, self._former, self._losses
        )
        self._cold = ColdStreams(
            known,
            self._stopped,
            self._audience,
            self._fan_out,
            deliveries,
            dispatch,
            clock,
            tasks,
            progressed,
        )

    def route(self, slot: Slot) -> None:
        """Give a message that was just appended to the subscriptions of its stream."""
        message = slot.message
        if not message.items:  # a former owner has finished it
            self._cache.release(slot)
            return
        entry = self.streams.get(message.stream)
        if entry is None:
            entry = self._meet(message.stream)
        entry.newest = message.token if len(message.items) == 1 else last_token(message)
        entry.used_s = self._clock.now()
        if entry.cold is not None:
            if entry.is_parked:
                self._cache.release(slot)
            else:
                entry.cold.append(slot)
            return
        self._fan_out.offer(entry, slot)

    def _meet(self, stream: StreamId) -> StreamEntry:
        entry = self.streams[stream] = StreamEntry()
        entry.is_asked_for = not self._cold.is_implicit_only(stream)
        held = None if entry.is_asked_for else self._stopped.find_known(stream)
        if entry.is_asked_for and self._reconciling is not None:
            self._reconciling.begin()
        if held is None:
            entry.cold = []
            entry.is_parked = self._laggards.get((stream, UNKNOWN)) is not None
            self._cold.ask(stream, entry)
        entry.holds.update((row.id, find_held(row)) for row in held or ())
        if held is not None:
            entry.holds.setdefault(WHOLE_STREAM, "")
        self._audience.add_implicit(stream, entry)
        for subscriber in entry.subscribers.values():
            self._audience.tell_losses(stream, subscriber)
        if held is not None:
            self._laggards.keep_only(stream, entry.subscribers)
        return entry

    def on_lost(self, loss: Loss) -> None:
        """Report a loss to all streams, because it may concern any of them."""
        self._losses.add(loss, self._clock.wall_s())
        for subscriber in self._everyone():
            subscriber.lose(loss)

    def expect(self) -> None:
        """Create the entries of streams with subscriptions that the former owner listed."""
        for stream in self._laggards.streams():
            if stream not in self.streams:
                self._meet(stream)

    def relieve(self, stream: StreamId) -> None:
        """Unpin the messages of the slowest subscriptions of a stream; they lag from now on."""
        entry = self.streams.get(stream)
        if entry is None or not self._laggards.has_place:
            return
        self._laggards.let_go(stream)
        if entry.cold:
            may_repeat = entry.cold[0].index <= self._cache.repeats_upto
            self._laggards.park_unknown(stream, entry.cold[0], may_repeat=may_repeat)
            for slot in entry.park():
                self._cache.release(slot)
        for index, subscriber in sorted(places(entry), key=lambda one: one[0]):
            if index <= self._cache.first_of(stream) or self._cache.is_crowded(stream):
                self._dispatch.start_lagging(subscriber)

    def follow_implicit(self) -> None:
        """Follow a change of implicit subscriptions; a new one sees the messages routed from now
        on."""
        for stream, entry in self.streams.items():
            self._audience.add_implicit(stream, entry)
        self._progressed()

    def attach(self, stream: StreamId, row: SubscriptionRow) -> None:
        """Attach a subscription that was made or resumed: it sees the stream's events from here
        on."""
        self._stopped.tell(stream, row, is_held=False)
        entry = self.streams.get(stream)
        if entry is None and row.start not in (HERE, "next"):
            entry = self._meet(stream)
        if entry is None:
            return  # cold: the stored row is read with the first event
        entry.detached.pop(row.id, None)
        entry.hear_of(row.id)
        entry.holds[row.id] = ""
        if row.id == WHOLE_STREAM:
            return
        if row.start != HERE and entry.starts is not None:
            entry.starts.forget(row.id)
        subscriber = self._audience.obtain(stream, entry, row)
        if subscriber is None:
            return
        if subscriber.is_explicit:
            self._deliveries.follow(subscriber, self._newcomers.explicit(row, stream))
        subscriber.held = ""
        if row.start == HERE:
            self._deliveries.retry(subscriber)
            return
        subscriber.gaps = ()  # old gaps do not matter at the new position
        if row.start == "next":
            self._skip(subscriber, entry)
        else:
            subscriber.rewinds += 1
            self._go_back(entry, subscriber, row.start)

    def _skip(self, subscriber: Subscriber, entry: StreamEntry) -> None:
        cursor = self._laggards.get(subscriber.key)
        if cursor is not None and subscriber.work is None:
            cursor.close()  # it lagged with a former owner
        if entry.newest is not None:
            self._deliveries.move(subscriber, entry.newest)
        else:
            subscriber.drop()  # all its events are old
            subscriber.position = self._former.end

    def _go_back(self, entry: StreamEntry, subscriber: Subscriber, start: str) -> None:
        token = BEGINNING if start == "earliest" else Token.parse(start)
        if self._laggards.is_used:
            self._deliveries.begin(subscriber, token)
        elif start == "earliest":
            self._deliveries.move(subscriber, None)
        else:
            entry.starts = entry.starts or Starts()
            entry.starts.wait(subscriber.id, token, entry.newest, self._clock.wall_s())
            self._deliveries.move(subscriber, before(token))

    def hold(self, stream: StreamId, row: SubscriptionRow) -> None:
        """Stop a subscription: it keeps its place, and gets no deliveries."""
        self._stopped.tell(stream, row, is_held=True)
        entry = self.streams.get(stream)
        if entry is None:
            return
        entry.hear_of(row.id)
        held = entry.holds[row.id] = find_held(row) or "paused"
        subscriber = None if row.id == WHOLE_STREAM else self._audience.obtain(stream, entry, row)
        if subscriber is not None:
            subscriber.held = held
            self._deliveries.hold(subscriber)

    async def follow(self, stream: StreamId) -> None:
        """Pause or resume all subscriptions of a stream, as `WHOLE_STREAM` says."""
        entry = self.streams.get(stream)
        if entry is not None:
            await follow_stream(entry, self._deliveries)

    def detach(self, stream: StreamId, subscription: str) -> None:
        """Detach a subscription that was removed."""
        entry = self.streams.get(stream)
        if entry is None:
            return
        if entry.cold is not None:
            entry.detached[subscription] = None
        entry.hear_of(subscription)
        entry.holds.pop(subscription, None)
        if entry.starts is not None:
            entry.starts.forget(subscription)
        subscriber = entry.subscribers.pop(subscription, None)
        if subscriber is not None:
            subscriber.drop()
            self._progressed()

    def let_go(self) -> None:
        """Unpin all routed messages; the results of deliveries in flight are ignored."""
        for entry in self.streams.values():
            for slot in entry.let_go():
                self._cache.release(slot)
            for subscriber in entry.subscribers.values():
                subscriber.drop()

    def forget_idle(self, before_s: float) -> None:
        """Forget streams that had no event since `before_s` and have nothing undelivered."""
        idle = [s for s, entry in self.streams.items() if entry.is_idle(before_s, self._losses)]
        for stream in idle:
            self._cache.unheard.pop(stream, None)
            subscribers = self.streams.pop(stream).subscribers.values()
            self._losses.forget(stream, is_told=not any(one.gaps for one in subscribers))

    def list_unfinished(self) -> tuple[ListedSubscription, ...]:
        """Return the subscriptions with unfinished events. Cost: O(known subscriptions)."""
        return list_unfinished(self.streams, self._laggards, self._former)

    def of(self, stream: StreamId) -> Sequence[Subscriber] | None:
        """Return the subscriptions of a stream.

        None means that the stream had no recent event, or that its subscriptions are being read.
        """
        entry = self.streams.get(stream)
        return None if entry is None or entry.cold is not None else [*entry.subscribers.values()]

    @property
    def unacked(self) -> int:
        """The number of subscriptions with events to acknowledge by hand. Cost: O(known
        subscriptions)."""
        return sum(one.unacked > 0 for one in self._everyone())

    def _everyone(self) -> Iterator[Subscriber]:
        return (one for entry in self.streams.values() for one in entry.subscribers.values())

    def on_acked(self, stream: StreamId, subscription: str, upto: Token) -> bool:
        """Accept a manual acknowledgement.

        Return False if the subscription is not known yet, or ended.
        """
        entry = self.streams.get(stream)
        if entry is None or entry.cold is not None or subscription not in entry.subscribers:
            return False
        self._dispatch.on_acked(entry.subscribers[subscription], upto)
        return True

    def has_backlog(self, upto: int) -> bool:
        """Return True if a message up to `upto` may be unfinished for a subscription."""
        return any(has_backlog(entry, upto) for entry in self.streams.values())

    def close(self) -> None:
        """Stop reading subscriptions."""
        self._tasks.cancel()


def give_back(
    streams: Mapping[StreamId, StreamEntry], cache: QueueCache
) -> list[tuple[list[Token], bool]]:
    """Return messages to the queue: those after the last one in flight of each stream.

    A queue without order gets its messages back before another silo reads it. The result has two
    lists of tokens: messages that no handler has tried, and messages that one has tried
    (`has_run`).

    A message that one subscription is handling stays here for all. No subscription keeps a returned
    message, and it is delivered again to all of them, even to those that have finished it. A
    message that is being given to very many subscriptions stays.
    """
    fresh: list[Token] = []
    tried: list[Token] = []
    for stream, entry in streams.items():
        if entry.spread:
            continue
        last = max((s.work.last_out for s in entry.subscribers.values() if s.work), default=-1)
        failed = _find_failed(entry, last)
        for token in cache.cut(stream, last, partial(_let_go, entry, last, cache)):
            (tried if token in failed else fresh).append(token)
    return [(fresh, False), (tried, True)]


def _find_failed(entry: StreamEntry, last: int) -> frozenset[Token]:
    """Return the messages after an index at which a handler has failed."""
    found: set[Token] = set()
    for index, one in places(entry):
        delivery = one.delivery
        if index > last and delivery is not None and delivery.tries.error is not None:
            found.add(delivery.cursor.message)
    return frozenset(found)


def _let_go(entry: StreamEntry, last: int, cache: QueueCache) -> None:
    """Unpin all messages after an index."""
    cold = entry.cold or ()
    if entry.cold is not None:
        entry.cold = []
    for slot in cold:
        cache.release(slot)
    for index, one in list(places(entry)):
        if index > last:
            one.drop()
