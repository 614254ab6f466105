"""The lagging cursors of one queue. Pure.

Owns `LaggingCursors`: the cursors that lag, their entries in the record, and the acknowledgements
that are possible meanwhile. `cursor` has the place of each, `reread_messages` their messages.
`subscribers` and `dispatch` choose which cursor lags, and `ownership` writes the record.

Invariants:

- At most `BEHIND_MAX` cursors may begin to lag, besides those that a former owner listed.
- At each moment, `upto` and the list together name all unfinished events.
- No message is acknowledged that a reader of the stored record would need again.
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
"""Limit of the lagging cursors of one queue."""
UNKNOWN = ""
"""The name that stands for all subscriptions of a stream, while they are unknown."""


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
        """Whether cursors may lag."""
        return self._is_used

    @property
    def has_place(self) -> bool:
        """Whether one more cursor may lag."""
        return self._is_used and len(self._behind) < BEHIND_MAX

    @property
    def matters(self) -> bool:
        """Whether a cursor lags, or did when the record was written."""
        return bool(self._behind) or self._is_stored

    def cursors(self) -> Sequence[Cursor]:
        """Return all lagging cursors."""
        return tuple(self._behind.values())

    def get(self, key: SubscriptionKey) -> Cursor | None:
        """Return the cursor of a subscription, if it lags."""
        return self._behind.get(key)

    def of(self, stream: StreamId) -> Sequence[Cursor]:
        """Return the lagging cursors of a stream."""
        return tuple(self._by_stream.get(stream, ()))

    def streams(self) -> list[StreamId]:
        """Return the streams with lagging cursors."""
        return list(self._by_stream)

    # -- beginning to lag

    def begin(self, key: SubscriptionKey, start: Token, unacked_max: int = 0) -> Cursor:
        """Return a new lagging cursor, which gets the stored messages from `start` on.

        A lagging cursor with the same key is closed.
        """
        if (old := self._behind.get(key)) is not None:
            old.close()
        cursor = Cursor(self, key, unacked_max)
        cursor.begin(start, self.cache.newest, may_repeat=True, is_new=True)
        return cursor

    def take_over(self, progress: QueueProgress, *, may_repeat: bool) -> None:
        """Let the subscriptions lag that the former owner listed: their messages are read again."""
        self._is_stored, self._stored_floor = bool(progress.listed), progress.floor
        for one in progress.listed if self._is_used else ():
            cursor = Cursor(self, (one.stream, one.subscription))
            cursor.begin(
                one.mark, progress.upto, progress.floor, may_repeat=may_repeat, is_new=True
            )
            cursor.is_rewound, cursor.sent = one.is_rewound, one.sent_upto
            cursor.is_new = cursor.has_all or one.mark == BEGINNING

    def add(self, cursor: Cursor) -> None:
        """Record that the cursor lags from now on."""
        self._behind[cursor.key] = cursor
        self._by_stream.setdefault(cursor.key[0], []).append(cursor)

    def remove(self, behind: Cursor) -> None:
        """Record that the cursor no longer lags, or was closed."""
        if self._behind.get(behind.key) is behind:
            del self._behind[behind.key]
        of_stream = self._by_stream.get(behind.key[0], [])
        if behind in of_stream:
            of_stream.remove(behind)
            self.cache.moved += 1
        if not of_stream:
            self._by_stream.pop(behind.key[0], None)

    def park_unknown(self, stream: StreamId, slot: Slot, *, may_repeat: bool) -> None:
        """Let all subscriptions of a stream lag from a message on, while they are unknown."""
        newest = self.cache.newest_of(stream)
        cursor = Cursor(self, (stream, UNKNOWN))
        cursor.begin(slot.message.token, newest, slot.before, may_repeat=may_repeat)

    def fork(self, stream: StreamId, subscription: str) -> None:
        """Make the cursor of a subscription that was unknown and becomes known."""
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
        """Close the cursors of subscriptions that the stream does not have."""
        for behind in self.of(stream):
            if behind.key[1] not in subscriptions:
                behind.close()

    def let_go(self, stream: StreamId | None = None) -> None:
        """Let the cursors of a stream, or all, pin nothing in the cache."""
        for behind in self._behind.values() if stream is None else self.of(stream):
            behind.let_go()

    # -- progress

    def progress(self) -> QueueProgress:
        """Return the progress of the queue at this moment."""
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
        """Remember that the queue record has this progress."""
        self._is_stored = bool(progress.listed)
        self._stored_floor = progress.floor
        self.cache.moved += 1

    def ackable(self) -> Token | None:
        """Return the token up to which the provider may be acknowledged, or None if the token has
        not moved."""
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
