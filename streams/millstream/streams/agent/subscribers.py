"""Which subscriptions the streams of one queue have, as its agent knows them.

Owns: one entry per stream and subscription, and reading the subscription rows when a stream
is cold. Invariants: a cold stream's messages stay pinned until its subscriptions are known; an idle
subscription is one entry without a cursor; a subscription attached at `next` sees every message
that is routed after it was attached.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Protocol

from millstream.runtime.extending import Clock, LineBudget, Tasks, show_text
from millstream.streams.api.implicit import ImplicitSet, is_implicit
from millstream.streams.api.subscription_rows import (
    HERE,
    WHOLE_STREAM,
    SubscriptionRow,
    find_held,
)
from millstream.streams.contracts.answers import text_of
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import ListedSubscription, QueueProgress

from .audience.handover_list import Former, list_unfinished
from .audience.newcomers import Newcomers
from .audience.stopped_subscriptions import StoppedSubscriptions
from .audience.stream_entry import (
    AT_ONCE,
    StreamEntry,
    follow_few,
    follow_stream,
    has_backlog,
    parts,
    places,
    spread,
)
from .cache.lagging_cursors import UNKNOWN, LaggingCursors
from .cache.lane import Slot
from .cache.positions import BEGINNING, before
from .cache.queue_cache import QueueCache
from .delivery.dispatch import Dispatch
from .delivery.subscriber import Subscriber
from .losses import Loss, Losses
from .reconciliation import Reconciliation, StoredSubscriptions
from .starts import Starts, last_token

__all__ = ["Known", "Subscribers"]

log = logging.getLogger("millstream.subscribers")

ASKED_AT_ONCE = 1_000
"""Streams whose subscription rows are read by one question."""
ASK_RETRY_S = 0.5
ASK_LIMIT_S = 60.0  # for the store to say which subscriptions a stream has


class Known(Protocol):
    """The subscriptions of one provider: the marks of grain classes, and the rows in the store."""

    @property
    def implicit(self) -> ImplicitSet:
        """The implicit ones of the provider, as of now."""
        ...

    def rows_of(
        self, streams: Collection[StreamId], /
    ) -> Awaitable[Mapping[StreamId, Sequence[SubscriptionRow]]]:
        """The explicit ones of streams, and implicit ones that are held. Whatever it raises: ask
        again."""
        ...

    def read_held(self, namespace: str, /) -> Awaitable[Sequence[tuple[StreamId, SubscriptionRow]]]:
        """The implicit ones that are held in streams of a namespace that has no others."""
        ...


class Subscribers:
    """The streams of one queue that had events lately."""

    __slots__ = (
        "_cache",
        "_clock",
        "_deliveries",
        "_former",
        "_holds",
        "_known",
        "_laggards",
        "_lines",
        "_losses",
        "_newcomers",
        "_progressed",
        "_reconciling",
        "_tasks",
        "_unasked",
        "streams",
    )

    def __init__(
        self,
        cache: QueueCache,
        laggards: LaggingCursors,
        deliveries: Dispatch,
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
        self._deliveries = deliveries
        self._known = known
        self._newcomers = newcomers
        self._progressed = progressed
        self._clock = clock
        self._tasks = tasks
        self.streams: dict[StreamId, StreamEntry] = {}
        self._unasked: list[tuple[StreamId, StreamEntry]] = []  # cold, since this turn of the loop
        self._holds = StoppedSubscriptions(known)
        self._reconciling: Reconciliation | None = None
        if stored is not None:
            self._reconciling = Reconciliation(self.streams, self, stored, reconcile_s, tasks)
        self._lines = LineBudget()
        self._losses = losses or Losses()
        self._former = former or Former(QueueProgress(), is_used=False)

    def route(self, slot: Slot) -> None:
        """Give a message that was just appended to the subscriptions of its stream."""
        message = slot.message
        if not message.items:  # done by a former owner
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
        self._offer(entry, slot)

    def _offer(self, entry: StreamEntry, slot: Slot) -> None:
        message = slot.message
        if entry.starts is not None:
            self._begin(entry, entry.starts, message)
        if entry.spread:
            entry.spread.append(slot)  # behind what is not everywhere yet
            return
        if len(entry.subscribers) > AT_ONCE:
            waiting = entry.spread = deque([slot])
            giving = spread(entry, waiting, self._cache, self._deliveries, self._progressed)
            entry.spreading = self._tasks.start(giving)
            return
        if not entry.subscribers:
            self._cache.unheard_count += len(message.items)
            self._cache.unheard[message.stream] = message.token.era
        if message.attempt and self._cache.gives_back:
            slot.goes_back = len(entry.subscribers) == 1
        for subscriber in entry.subscribers.values():
            self._deliveries.offer(subscriber, slot)
        self._cache.release(slot)

    def _begin(self, entry: StreamEntry, starts: Starts, message: QueueMessage) -> None:
        """Subscriptions that wait for a token ahead of the queue begin with this message."""
        for subscription, start in starts.came(message):
            subscriber = entry.subscribers.get(subscription)
            if subscriber is not None:
                text = "%s was to begin at %s, and the queue has come to %s: it begins there"
                log.warning(text, show_text(subscription), start, message.token)
                self._deliveries.move(subscriber, before(message.token))

    def _meet(self, stream: StreamId) -> StreamEntry:
        entry = self.streams[stream] = StreamEntry()
        entry.is_asked_for = not self._is_implicit_only(stream)
        held = None if entry.is_asked_for else self._holds.find_known(stream)
        if entry.is_asked_for and self._reconciling is not None:
            self._reconciling.begin()
        if held is None:
            entry.cold = []
            entry.is_parked = self._laggards.get((stream, UNKNOWN)) is not None
            self._ask_soon(stream, entry)
        entry.holds.update((row.id, find_held(row)) for row in held or ())
        if held is not None:
            entry.holds.setdefault(WHOLE_STREAM, "")
        self._add_implicit(stream, entry)
        for subscriber in entry.subscribers.values():
            self._tell_losses(stream, subscriber)
        if held is not None:
            self._laggards.keep_only(stream, entry.subscribers)
        return entry

    def _tell_losses(self, stream: StreamId, subscriber: Subscriber) -> None:
        """A subscription that was there before the queue lost something is known now."""
        for loss in self._losses.of(stream):
            subscriber.lose(loss)

    def on_lost(self, loss: Loss) -> None:
        """A part of the queue is gone, whichever streams it was of: all of them hear of it."""
        self._losses.add(loss, self._clock.wall_s())
        for subscriber in self._everyone():
            subscriber.lose(loss)

    def _is_implicit_only(self, stream: StreamId) -> bool:
        return self._known.implicit.kinds(stream.namespace) == "implicit"

    def expect(self) -> None:
        """Meet the streams of which the former owner has listed subscriptions."""
        for stream in self._laggards.streams():
            if stream not in self.streams:
                self._meet(stream)

    def relieve(self, stream: StreamId) -> None:
        """Let the slowest subscriptions of a stream hold nothing in the cache any more."""
        entry = self.streams.get(stream)
        if entry is None or not self._laggards.has_place:
            return
        self._laggards.let_go(stream)
        if entry.cold:
            may_repeat = entry.cold[0].index <= self._cache.repeats_upto
            self._laggards.park_unknown(stream, entry.cold[0], may_repeat=may_repeat)
            self._park_cold(entry, entry.cold)
        for index, subscriber in sorted(places(entry), key=lambda one: one[0]):
            if index <= self._cache.first_of(stream) or self._cache.is_crowded(stream):
                self._deliveries.fall_behind(subscriber)

    def _park_cold(self, entry: StreamEntry, cold: Sequence[Slot]) -> None:
        """Let messages that wait for their subscriptions to be known be read anew for them."""
        entry.cold, entry.is_parked = [], True
        for slot in cold:
            self._cache.release(slot)

    def follow_implicit(self) -> None:
        """Other implicit subscriptions hold now: a new one sees what is routed from here on."""
        for stream, entry in self.streams.items():
            self._add_implicit(stream, entry)
        self._progressed()

    def _add_implicit(self, stream: StreamId, entry: StreamEntry) -> None:
        implicit = self._known.implicit.of(stream)
        for old in [s for s in entry.subscribers.values() if not s.is_explicit]:
            if old.id not in implicit:
                self._deliveries.drop(entry.subscribers.pop(old.id))
        for subscription, one in implicit.items():
            new = self._newcomers.implicit(one, stream)
            if subscription in entry.subscribers:
                self._deliveries.follow(entry.subscribers[subscription], new)
            else:
                new.held = entry.holds.get(subscription, "")
                self._add(entry, new)
                if entry.cold is None:  # else it may be held
                    self._deliveries.restore(new)

    def _ask_soon(self, stream: StreamId, entry: StreamEntry) -> None:
        """Read the rows of all streams that become cold in this turn of the loop at once."""
        entry.asking = "its subscriptions are being read"
        self._unasked.append((stream, entry))
        if len(self._unasked) == 1:
            self._tasks.start(self._ask_all())

    async def _ask_all(self) -> None:
        asked, self._unasked = self._unasked, []
        for part in parts(asked, ASKED_AT_ONCE):
            self._tasks.start(self._ask(part))

    async def _ask(self, asked: Sequence[tuple[StreamId, StreamEntry]]) -> None:
        """Read the rows of some streams until that succeeds; other streams do not wait."""
        while True:
            try:
                rows = await self._rows_of([stream for stream, _ in asked])
                break
            except Exception as error:  # whatever it is; perhaps the trouble of one stream
                if len(asked) > 1:
                    for one in asked:
                        self._tasks.start(self._ask([one]))
                    return
                self._note_unknown(*asked[0], error)
                await asyncio.sleep(ASK_RETRY_S)
        for some in parts(asked, AT_ONCE):
            for stream, entry in some:
                self._on_answer(stream, entry, rows[stream])
            self._progressed()
            self._deliveries.pump()
            await asyncio.sleep(0)

    def _note_unknown(self, stream: StreamId, entry: StreamEntry, error: Exception) -> None:
        text = f"{type(error).__name__}: {text_of(error)}"
        entry.asking = f"its subscriptions are read again, after {text}"
        left_out = self._lines.take(self._clock.now())
        if left_out is not None:
            said = "the subscriptions of %s are not known yet, its events wait: %s: %s%s"
            log.warning(
                said, show_text(str(stream)), type(error).__name__, text_of(error), left_out
            )

    async def _rows_of(
        self, streams: Collection[StreamId]
    ) -> Mapping[StreamId, Sequence[SubscriptionRow]]:
        """Raises whatever reading raises."""
        implicit = {stream for stream in streams if self._is_implicit_only(stream)}
        others = [stream for stream in streams if stream not in implicit]
        async with asyncio.timeout(ASK_LIMIT_S):
            found = dict(await self._known.rows_of(others)) if others else {}
            for stream in implicit:
                found[stream] = await self._holds.of(stream)
        return found

    def _on_answer(
        self, stream: StreamId, entry: StreamEntry, rows: Sequence[SubscriptionRow]
    ) -> None:
        """The stream goes on now, or, with many subscriptions, later."""
        entry.asking = ""
        if len(rows) > AT_ONCE:
            self._tasks.start(self._learn(stream, entry, rows))
            return
        self._make_known(stream, entry, rows)
        entry.holds.setdefault(WHOLE_STREAM, "")
        follow_few(entry, self._deliveries)
        self._restore(stream, entry)
        self._offer_cold(entry)

    async def _learn(
        self, stream: StreamId, entry: StreamEntry, rows: Sequence[SubscriptionRow]
    ) -> None:
        for part in parts(rows, AT_ONCE):
            self._make_known(stream, entry, part)
            await asyncio.sleep(0)
        entry.holds.setdefault(WHOLE_STREAM, "")
        await follow_stream(entry, self._deliveries)
        self._restore(stream, entry)
        self._offer_cold(entry)
        self._progressed()
        self._deliveries.pump()

    def _make_known(
        self, stream: StreamId, entry: StreamEntry, rows: Iterable[SubscriptionRow]
    ) -> None:
        """Add the stored subscriptions; those that were told meanwhile are newer."""
        for row in rows:
            if row.id in entry.detached:
                continue
            held = entry.holds.setdefault(row.id, find_held(row))
            if row.id == WHOLE_STREAM:
                continue
            subscriber = self._obtain(stream, entry, row)
            if subscriber is not None and held:
                subscriber.held = held
                self._deliveries.hold(subscriber)

    def _restore(self, stream: StreamId, entry: StreamEntry) -> None:
        """All are known: those that are behind go on there."""
        entry.detached.clear()
        entry.is_parked = False
        if self._laggards.of(stream):
            for subscriber in entry.subscribers.values():
                self._deliveries.restore(subscriber)
            self._laggards.keep_only(stream, entry.subscribers)

    def _obtain(
        self, stream: StreamId, entry: StreamEntry, row: SubscriptionRow
    ) -> Subscriber | None:
        """The subscription of a row; None: an implicit one whose mark is not there now."""
        known = entry.subscribers.get(row.id)
        if known is None and not is_implicit(row.id):
            known = self._newcomers.explicit(row, stream)
            self._add(entry, known)
            self._tell_losses(stream, known)
        return known

    def _add(self, entry: StreamEntry, new: Subscriber) -> None:
        self._cache.unheard.pop(new.stream, None)
        new.is_paused = entry.is_paused
        self._former.place(new)
        entry.subscribers[new.id] = new

    def _offer_cold(self, entry: StreamEntry) -> None:
        cold, entry.cold = entry.cold or [], None
        for slot in cold:
            self._offer(entry, slot)

    def attach(self, stream: StreamId, row: SubscriptionRow) -> None:
        """A subscription was made or resumed: from here on it sees the stream's events."""
        self._holds.tell(stream, row, is_held=False)
        entry = self.streams.get(stream)
        if entry is None and row.start not in (HERE, "next"):
            entry = self._meet(stream)
        if entry is None:
            return  # cold: the row is stored, and is read with the first event
        entry.detached.pop(row.id, None)
        entry.hear_of(row.id)
        entry.holds[row.id] = ""
        if row.id == WHOLE_STREAM:
            return
        if row.start != HERE and entry.starts is not None:
            entry.starts.forget(row.id)
        subscriber = self._obtain(stream, entry, row)
        if subscriber is None:
            return
        if subscriber.is_explicit:
            self._deliveries.follow(subscriber, self._newcomers.explicit(row, stream))
        subscriber.held = ""
        if row.start == HERE:
            self._deliveries.retry(subscriber)
            return
        subscriber.gaps = ()  # what it missed is what it asked to leave out, or to look for again
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
            self._deliveries.drop(subscriber)  # all that it has is old
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
        """A subscription was paused: it keeps what comes, and is delivered nothing."""
        self._holds.tell(stream, row, is_held=True)
        entry = self.streams.get(stream)
        if entry is None:
            return
        entry.hear_of(row.id)
        held = entry.holds[row.id] = find_held(row) or "paused"
        subscriber = None if row.id == WHOLE_STREAM else self._obtain(stream, entry, row)
        if subscriber is not None:
            subscriber.held = held
            self._deliveries.hold(subscriber)

    async def follow(self, stream: StreamId) -> None:
        """All subscriptions of a stream wait, or go on, as was told of `WHOLE_STREAM`."""
        entry = self.streams.get(stream)
        if entry is not None:
            await follow_stream(entry, self._deliveries)

    def detach(self, stream: StreamId, subscription: str) -> None:
        """A subscription was removed."""
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
            self._deliveries.drop(subscriber)
            self._progressed()

    def let_go(self) -> None:
        """Hold none of the messages that were routed; what is out ends without consequence."""
        for entry in self.streams.values():
            for slot in entry.let_go():
                self._cache.release(slot)
            for subscriber in entry.subscribers.values():
                self._deliveries.drop(subscriber)

    def give_back(self) -> list[tuple[list[Token], bool]]:
        """Hold only what is under way; returns what goes back to the queue, and `has_run`."""
        return give_back(self.streams.items(), self._cache, self._deliveries)

    def forget_idle(self, before_s: float) -> None:
        """Forget streams that had no event since `before_s` and have nothing undelivered."""
        idle = [s for s, entry in self.streams.items() if entry.is_idle(before_s, self._losses)]
        for stream in idle:
            self._cache.unheard.pop(stream, None)
            subscribers = self.streams.pop(stream).subscribers.values()
            self._losses.forget(stream, is_told=not any(one.gaps for one in subscribers))

    def list_unfinished(self) -> tuple[ListedSubscription, ...]:
        """The subscriptions that have not done everything. Cost: O(subscriptions known)."""
        return list_unfinished(self.streams, self._laggards, self._former)

    def of(self, stream: StreamId) -> Sequence[Subscriber] | None:
        """The subscriptions of a stream; None: it had no event lately, or they are asked for."""
        entry = self.streams.get(stream)
        return None if entry is None or entry.cold is not None else [*entry.subscribers.values()]

    @property
    def unacked(self) -> int:
        """Subscriptions that are to acknowledge something by hand. Cost: O(subscriptions known)."""
        return sum(one.unacked > 0 for one in self._everyone())

    def _everyone(self) -> Iterator[Subscriber]:
        return (one for entry in self.streams.values() for one in entry.subscribers.values())

    def on_acked(self, stream: StreamId, subscription: str, upto: Token) -> bool:
        """A subscription has acknowledged by hand; False: it is not known, or not yet."""
        entry = self.streams.get(stream)
        if entry is None or entry.cold is not None or subscription not in entry.subscribers:
            return False
        self._deliveries.on_acked(entry.subscribers[subscription], upto)
        return True

    def has_backlog(self, upto: int) -> bool:
        """Is something up to a message, or that may be repeated, being delivered?"""
        return any(has_backlog(entry, upto) for entry in self.streams.values())

    def close(self) -> None:
        """Stop asking."""
        self._tasks.cancel()


def give_back(
    streams: Iterable[tuple[StreamId, StreamEntry]], cache: QueueCache, deliveries: Dispatch
) -> list[tuple[list[Token], bool]]:
    """Give back the messages behind the last one of each stream that is being handled.

    Returns their tokens in two lists: messages that no handler has tried, and those that one has
    (`has_run`). A message goes back to a queue that has no order, before another silo reads it. A
    message that one subscription is handling stays here for all. A message that goes back is held
    by nobody here, and is delivered again to all its subscriptions, also to those that have done
    it. A message that is being delivered to very many subscriptions stays.
    """
    fresh: list[Token] = []
    tried: list[Token] = []
    for stream, entry in streams:
        if entry.spread:
            continue
        last = max((s.work.last_out for s in entry.subscribers.values() if s.work), default=-1)
        failed = _find_failed(entry, last)
        for token in cache.cut(stream, last, partial(_let_go, entry, last, cache, deliveries)):
            (tried if token in failed else fresh).append(token)
    return [(fresh, False), (tried, True)]


def _find_failed(entry: StreamEntry, last: int) -> frozenset[Token]:
    """The messages behind an index at which a handler has failed."""
    found: set[Token] = set()
    for index, one in places(entry):
        delivery = one.delivery
        if index > last and delivery is not None and delivery.tries.error is not None:
            found.add(delivery.cursor.message)
    return frozenset(found)


def _let_go(entry: StreamEntry, last: int, cache: QueueCache, deliveries: Dispatch) -> None:
    """Nothing here holds a message behind an index."""
    cold = entry.cold or ()
    if entry.cold is not None:
        entry.cold = []
    for slot in cold:
        cache.release(slot)
    for index, one in list(places(entry)):
        if index > last:
            deliveries.drop(one)
