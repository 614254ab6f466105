"""All subscriptions of one queue that are behind.

Owns: `BehindBook`: who is behind, the room for their chains, what is stored of them, what may be
acknowledged meanwhile. Not: where each is (`behind`), who falls behind when (`subscribers`,
`dispatch`), what is stored when (`ownership`). Pure.
Invariants: at most `BEHIND_MAX`; their chains have at most half of the cache, but for one message
each; frontier and entries, taken at one instant, name all that is not done; nothing is acknowledged
that whoever reads the stored record would need again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lane import Slot
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import QueueMessage, content_bytes
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import BehindAt, Progress, SentAt

from .behind import BEGINNING, Behind, BehindCursor, SubscriptionKey, following

__all__ = ["BEHIND_MAX", "UNKNOWN", "BehindBook"]

BEHIND_MAX = 1_000  # of one queue
INDEX_MAX = (1 << 32) - 1  # of a token
UNKNOWN = ""  # stands for all subscriptions of a stream, while they are being asked for


class BehindBook:
    """Those of one queue that are behind.

    Args:
        is_used: False: the provider cannot be read again, so nobody ever is.
    """

    def __init__(self, cache: QueueCache, *, is_used: bool) -> None:
        self.cache = cache
        self._is_used = is_used
        self._behind: dict[SubscriptionKey, Behind] = {}
        self._by_stream: dict[StreamId, list[Behind]] = {}
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
    def has_repeats(self) -> bool:
        """May something that they get have been delivered before?"""
        return any(behind.may_repeat for behind in self._behind.values())

    @property
    def has_place(self) -> bool:
        """May somebody else be behind?"""
        return self._is_used and len(self._behind) < BEHIND_MAX

    @property
    def matters(self) -> bool:
        """Is somebody behind, or was when the record was written?"""
        return bool(self._behind) or self._is_stored

    def repeated(self) -> list[SentAt] | None:
        """Those of which all may have been delivered before; None: it is not known who they are."""
        found = [one for one in self._behind.values() if one.may_repeat]
        if any(one.key[1] == UNKNOWN for one in found):
            return None
        ends = [self.cache.newest, *(one.dropped for one in found)]
        last = max((one for one in ends if one is not None), default=BEGINNING)
        upto = last._replace(index=INDEX_MAX)
        return [SentAt(*one.key[0], one.key[1], max(upto, one.position)) for one in found]

    def get(self, key: SubscriptionKey) -> Behind | None:
        """The subscription, if it is behind."""
        return self._behind.get(key)

    def of(self, stream: StreamId) -> Sequence[Behind]:
        """Those of a stream."""
        return tuple(self._by_stream.get(stream, ()))

    def streams(self) -> list[StreamId]:
        """Streams of which somebody is behind."""
        return list(self._by_stream)

    # -- falling behind

    def begin(self, key: SubscriptionKey, start: Token) -> Behind:
        """Put a subscription behind: it gets what is stored from `start` on.

        One that is behind with the same key is behind no more.
        """
        if (old := self._behind.get(key)) is not None:
            old.end()
        behind = self._add(Behind(self, key, start, self.cache.newest, may_repeat=True))
        behind.is_new = True
        return behind

    def take_over(self, progress: Progress, frontier: Token | None, *, may_repeat: bool) -> None:
        """Those that were behind with the former owner still are.

        What it had done above the frontier was let go of for them too: they read it anew.
        """
        upto = progress.done[-1][1] if progress.done else frontier
        for entry in progress.behind if self._is_used else ():
            self.restore(entry, upto, may_repeat=may_repeat)

    def restore(self, entry: BehindAt, upto: Token | None, *, may_repeat: bool) -> Behind:
        """One that was behind with the former owner; what it needs up to `upto` is read anew."""
        key = (entry.stream, entry.subscription)
        behind = self._add(Behind(self, key, entry.position, upto, may_repeat=may_repeat))
        behind.is_rewound, behind.sent = entry.is_rewound, entry.sent
        behind.is_new = behind.has_all or entry.position == BEGINNING
        self._is_stored = True
        return behind

    def park(
        self,
        key: SubscriptionKey,
        cursor: Cursor,
        out: int,
        *,
        has_chain: bool,
        may_repeat: bool = False,
    ) -> BehindCursor:
        """A subscription with a cursor in the cache falls behind; the cursor is closed.

        Args:
            out: items at the cursor that it must have at hand.
            has_chain: it keeps what is here already, as far as there is room.
        """
        slot, item = cursor.place()
        era, seq, first = slot.message.token
        newest = self.cache.newest_of(key[0])
        start = Token(era, seq, first + item)
        behind = self._add(Behind(self, key, start, newest, slot.before, may_repeat=may_repeat))
        if out:  # else it holds nothing
            out += item
        following_slot: Slot | None = slot
        while following_slot is not None:
            message = following_slot.message
            if out <= 0 and not (has_chain and self.has_room(behind, message)):
                break
            behind.link(message)
            behind.following = following(message.token)
            out -= len(message.items)
            following_slot = following_slot.next
        behind.meet()
        cursor.close()
        self.cache.moved += 1
        return BehindCursor(behind)

    def _add(self, behind: Behind) -> Behind:
        self._behind[behind.key] = behind
        self._by_stream.setdefault(behind.key[0], []).append(behind)
        return behind

    def remove(self, behind: Behind) -> None:
        """It is with the others again, or ended."""
        if self._behind.get(behind.key) is behind:
            del self._behind[behind.key]
        of_stream = self._by_stream.get(behind.key[0], [])
        if behind in of_stream:
            of_stream.remove(behind)
            self.cache.moved += 1
        if not of_stream:
            self._by_stream.pop(behind.key[0], None)

    def park_unknown(self, stream: StreamId, index: int, *, may_repeat: bool) -> None:
        """All of a stream are behind from a message on, whoever they are."""
        slot = self.cache.slot(index)
        newest = self.cache.newest_of(stream)
        key, start = (stream, UNKNOWN), slot.message.token
        self._add(Behind(self, key, start, newest, slot.before, may_repeat=may_repeat))

    def fork(self, stream: StreamId, subscription: str) -> None:
        """One of those that were not known is known now."""
        unknown = self._behind.get((stream, UNKNOWN))
        if unknown is None or (stream, subscription) in self._behind:
            return
        key, may_repeat = (stream, subscription), unknown.may_repeat
        start, dropped, floor = unknown.position, unknown.dropped, unknown.floor
        copy = self._add(Behind(self, key, start, dropped, floor, may_repeat=may_repeat))
        copy.is_new = unknown.is_new

    def keep_only(self, stream: StreamId, subscriptions: Collection[str]) -> None:
        """The stream has these subscriptions, and no others."""
        for behind in self.of(stream):
            if behind.key[1] not in subscriptions:
                behind.end()

    def let_go(self, stream: StreamId | None = None) -> None:
        """Those of a stream, or all, keep nothing in the cache."""
        for behind in self._behind.values() if stream is None else self.of(stream):
            behind.let_go()

    # -- room

    def count(self, events: int, size_bytes: int) -> None:
        """Chains have grown by this."""
        self.cache.chained_events += events
        self.cache.chained_bytes += size_bytes

    def has_room(self, behind: Behind, message: QueueMessage) -> bool:
        """May the message be put into its chain? One that is alone always may."""
        if behind.head is None:
            return True
        limits, events = self.cache.limits, len(message.items)
        size_bytes = content_bytes(message.items, message.headers)
        return (
            behind.events + events <= limits.stream_events_max
            and behind.size_bytes + size_bytes <= limits.stream_bytes_max
            and 2 * (self.cache.chained_events + events) <= limits.events_max
            and 2 * (self.cache.chained_bytes + size_bytes) <= limits.bytes_max
        )

    # -- what is done

    def passed(self, behind: Behind, token: Token) -> None:
        """One that is behind has done a message."""
        self.cache.moved += 1
        stream = behind.key[0]
        if not any(one.needs(token) for one in self.of(stream)):
            self.cache.note_done(stream, token)

    def progress(self) -> Progress:
        """How far the queue is, at this instant."""
        frontier = self.cache.acked_upto()
        entries = tuple(behind.entry() for behind in self._behind.values())
        return Progress(frontier, entries, floor=self._floor(frontier))

    def _floor(self, frontier: Token | None) -> Token | None:
        lowest = frontier
        for behind in self._behind.values():
            if behind.floor is None or lowest is None:
                return None
            lowest = min(lowest, behind.floor)
        return lowest

    def stored(self, progress: Progress) -> None:
        """The record says this now."""
        self._is_stored = bool(progress.behind)
        self._stored_floor = progress.floor
        self.cache.moved += 1

    def ackable(self) -> Token | None:
        """Up to here the provider may forget; None: nothing more than before."""
        upto = self.cache.acked_upto()
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
        assert self.cache.chained_events == sum(one.events for one in ones)
        assert self.cache.chained_bytes == sum(one.size_bytes for one in ones)
        grouped = [one for of_stream in self._by_stream.values() for one in of_stream]
        assert len(grouped) == len(ones) and all(one in ones for one in grouped)
        assert all(self._by_stream.values())
