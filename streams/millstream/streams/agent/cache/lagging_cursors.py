"""The lagging cursors of one queue.

Owns: `LaggingCursors`: which cursors lag, what is stored of them, what may be acknowledged
meanwhile.
Not: where each is (`cursor`), what was read again for them (`reread_messages`), which one lags when
(`subscribers`, `dispatch`), what is stored when (`ownership`). Pure.
Invariants: at most `BEHIND_MAX` fall behind, beside those that a former owner has listed; `upto`
and the list, taken at one instant, name all that is not done; nothing is acknowledged that a reader
of the stored record would need again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import QueueProgress

from .cursor import Cursor
from .lane import Slot, chain
from .positions import BEGINNING, SubscriptionKey
from .queue_cache import QueueCache
from .reread_messages import RereadMessages

__all__ = ["BEHIND_MAX", "UNKNOWN", "LaggingCursors"]

BEHIND_MAX = 1_000
"""Lagging cursors of one queue."""
UNKNOWN = ""
"""Stands for all subscriptions of a stream, while they are not known."""


class LaggingCursors:
    """The lagging cursors of one queue.

    Args:
        is_used: False: the provider cannot be read again, so no cursor ever lags.
    """

    def __init__(self, cache: QueueCache, *, is_used: bool) -> None:
        self.cache = cache
        self.reread = RereadMessages(cache)
        self._is_used = is_used
        self._behind: dict[SubscriptionKey, Cursor] = {}
        self._by_stream: dict[StreamId, list[Cursor]] = {}
        self._stored_floor: Token | None = None
        self._is_stored = False  # the record names some
        cache.follow(self._by_stream)

    def __len__(self) -> int:
        return len(self._behind)

    @property
    def is_used(self) -> bool:
        """May anybody fall behind?"""
        return self._is_used

    @property
    def has_place(self) -> bool:
        """May somebody else be behind?"""
        return self._is_used and len(self._behind) < BEHIND_MAX

    @property
    def matters(self) -> bool:
        """Is somebody behind, or was when the record was written?"""
        return bool(self._behind) or self._is_stored

    def cursors(self) -> Sequence[Cursor]:
        """All of them."""
        return tuple(self._behind.values())

    def get(self, key: SubscriptionKey) -> Cursor | None:
        """The subscription, if it is behind."""
        return self._behind.get(key)

    def of(self, stream: StreamId) -> Sequence[Cursor]:
        """Those of a stream."""
        return tuple(self._by_stream.get(stream, ()))

    def streams(self) -> list[StreamId]:
        """Streams of which somebody is behind."""
        return list(self._by_stream)

    # -- falling behind

    def begin(self, key: SubscriptionKey, start: Token, unacked_max: int = 0) -> Cursor:
        """A new cursor that lags: it gets what is stored from `start` on.

        A lagging cursor with the same key is closed.
        """
        if (old := self._behind.get(key)) is not None:
            old.close()
        cursor = Cursor(self, key, unacked_max)
        cursor.begin(start, self.cache.newest, may_repeat=True, is_new=True)
        return cursor

    def take_over(self, progress: QueueProgress, *, may_repeat: bool) -> None:
        """The subscriptions that the former owner has listed lag: what it read is read again."""
        self._is_stored, self._stored_floor = bool(progress.listed), progress.floor
        for one in progress.listed if self._is_used else ():
            cursor = Cursor(self, (one.stream, one.subscription))
            cursor.begin(
                one.mark, progress.upto, progress.floor, may_repeat=may_repeat, is_new=True
            )
            cursor.is_rewound, cursor.sent = one.is_rewound, one.sent_upto
            cursor.is_new = cursor.has_all or one.mark == BEGINNING

    def add(self, cursor: Cursor) -> None:
        """The cursor lags from now on."""
        self._behind[cursor.key] = cursor
        self._by_stream.setdefault(cursor.key[0], []).append(cursor)

    def remove(self, behind: Cursor) -> None:
        """The cursor lags no more, or was closed."""
        if self._behind.get(behind.key) is behind:
            del self._behind[behind.key]
        of_stream = self._by_stream.get(behind.key[0], [])
        if behind in of_stream:
            of_stream.remove(behind)
            self.cache.moved += 1
        if not of_stream:
            self._by_stream.pop(behind.key[0], None)

    def park_unknown(self, stream: StreamId, slot: Slot, *, may_repeat: bool) -> None:
        """All subscriptions of a stream lag from a message on, whichever they are."""
        newest = self.cache.newest_of(stream)
        cursor = Cursor(self, (stream, UNKNOWN))
        cursor.begin(slot.message.token, newest, slot.before, may_repeat=may_repeat)

    def fork(self, stream: StreamId, subscription: str) -> None:
        """One of the subscriptions that were not known is known now."""
        unknown = self._behind.get((stream, UNKNOWN))
        if unknown is None or (stream, subscription) in self._behind:
            return
        Cursor(self, (stream, subscription)).begin(
            unknown.position,
            unknown.dropped,
            unknown.floor,
            may_repeat=unknown.may_repeat,
            is_new=unknown.is_new,
        )

    def keep_only(self, stream: StreamId, subscriptions: Collection[str]) -> None:
        """The stream has these subscriptions, and no others."""
        for behind in self.of(stream):
            if behind.key[1] not in subscriptions:
                behind.close()

    def let_go(self, stream: StreamId | None = None) -> None:
        """Those of a stream, or all, keep nothing in the cache."""
        for behind in self._behind.values() if stream is None else self.of(stream):
            behind.let_go()

    # -- what is done

    def progress(self) -> QueueProgress:
        """How far the queue is, at this instant."""
        upto = self.cache.find_acked()
        listed = tuple(behind.entry() for behind in self._behind.values())
        return QueueProgress(upto, listed, self._floor(upto))

    def _floor(self, upto: Token | None) -> Token | None:
        lowest = upto
        for behind in self._behind.values():
            if behind.floor is None or lowest is None:
                return None
            lowest = min(lowest, behind.floor)
        return lowest

    def on_stored(self, progress: QueueProgress) -> None:
        """The record says this now."""
        self._is_stored = bool(progress.listed)
        self._stored_floor = progress.floor
        self.cache.moved += 1

    def ackable(self) -> Token | None:
        """Up to here the provider may forget; None: nothing more than before."""
        upto = self.cache.find_acked()
        if not self.matters:
            return upto
        upto = self._floor(upto)
        if upto is None or not self._is_stored:
            return upto
        return None if self._stored_floor is None else min(upto, self._stored_floor)

    def check(self) -> None:
        """Assert the invariants."""
        ones = list(self._behind.values())
        for one in ones:
            one.check()
        self.reread.check()
        held = sum(slot.holds for lane in self.reread.lanes() for slot in chain(lane))
        assert held == sum(one.slot is not None for one in ones)
        grouped = [one for of_stream in self._by_stream.values() for one in of_stream]
        assert len(grouped) == len(ones) and all(one in ones for one in grouped)
        assert all(self._by_stream.values())
