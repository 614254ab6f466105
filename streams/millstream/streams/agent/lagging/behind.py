"""A subscription that is behind: it has a chain of messages of its own, which are read anew.

Owns: `Behind`, `BehindCursor`: where it is, what it must still get, when it is with the others
again. Not: all of a queue (`book`), reading anew (`reading.catching_up`). Pure.
Invariants:
- nothing in the cache waits for it, but what comes while a page is read for it;
- what it must get is done, in its chain, at or above `following` and not above `dropped`, or in the
  cache from its `tail` on: each message in one of these;
- it is behind until what it has *done* reaches what the cache holds for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lane import Slot, items_from, lag_from
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import BehindAt

__all__ = [
    "BEGINNING",
    "LAST_INDEX",
    "Behind",
    "BehindCursor",
    "SubscriptionKey",
    "before",
    "following",
    "past",
]

BEGINNING = Token(0, 0, 0)  # the oldest message that is kept, whichever it is
LAST_INDEX = 2**32 - 1  # that an item can have
NO_INDEX = -1  # of a message that is not in the cache
SubscriptionKey = tuple[StreamId, str]


def following(token: Token) -> Token:
    """Where the messages behind this one begin."""
    return Token(token.era, token.seq + 1)


def before(token: Token) -> Token:
    """The position just before a token, within its message or at the end of the one before."""
    if token.index > 0:
        return Token(token.era, token.seq, token.index - 1)
    return Token(token.era, token.seq - 1, LAST_INDEX)


def past(token: Token) -> Token:
    """The position just behind an item."""
    if token.index >= LAST_INDEX:
        return following(token)
    return Token(token.era, token.seq, token.index + 1)


class Book(Protocol):
    """All that are behind on one queue."""

    @property
    def cache(self) -> QueueCache: ...
    def has_room(self, behind: Behind, message: QueueMessage, /) -> bool:
        """May the message be put into its chain? One that is alone always may."""
        ...

    def count(self, events: int, size_bytes: int, /) -> None:
        """A chain has grown by this."""
        ...

    def passed(self, behind: Behind, token: Token, /) -> None:
        """A message was done."""
        ...

    def remove(self, behind: Behind, /) -> None:
        """It is behind no more."""
        ...


class Behind:
    """One subscription that is behind.

    Attributes:
        start: the first item that it must get.
        following: from here on its messages are read anew.
        dropped: up to here they are; None: it has them all, and goes on in the cache.
        floor: this message and all before it are done, or are not for it; None: not known.
        tail: where it goes on in the cache, once something came.
        is_new: where it begins has not been compared with what the provider keeps.
        is_rewound: its consumer has not heard that what it has seen comes again.
        may_repeat: what it gets may have been delivered before.
        is_full: there was no room for the next message in its chain, and nothing was done since.
        sent: up to here a former owner has delivered what is not done; None: see `may_repeat`.
    """

    __slots__ = (
        "_book",
        "_item",
        "_last",
        "dropped",
        "events",
        "floor",
        "following",
        "head",
        "is_full",
        "is_new",
        "is_over",
        "is_rewound",
        "keeps",
        "key",
        "may_repeat",
        "sent",
        "size_bytes",
        "start",
        "tail",
    )

    def __init__(
        self,
        book: Book,
        key: SubscriptionKey,
        start: Token,
        dropped: Token | None,
        floor: Token | None = None,
        *,
        may_repeat: bool,
    ) -> None:
        self._book = book
        self._item = 0  # in the head of the chain
        self._last: Slot | None = None
        self.key = key
        self.head: Slot | None = None
        self.events = self.size_bytes = 0
        self.start = start
        self.following = Token(start.era, start.seq)
        self.dropped = dropped
        self.floor = floor
        self.keeps = False  # what comes stays in the cache for it
        self.tail: Cursor | None = None
        self.is_new = False
        self.is_rewound = False
        self.may_repeat = may_repeat
        self.is_full = False
        self.sent: Token | None = None
        self.is_over = False
        self.meet()

    def meet(self) -> None:
        """See whether it has all that is to be read anew."""
        if self.dropped is not None and self.following > self.dropped:
            self.dropped = None

    @property
    def position(self) -> Token:
        """The first item that is not done."""
        if self.head is None:
            return max(self.start, self.following)
        era, seq, first = self.head.message.token
        return Token(era, seq, first + self._item)

    @property
    def has_all(self) -> bool:
        """Is nothing left to be read anew?"""
        return self.dropped is None

    def entry(self) -> BehindAt:
        """As the queue record has it."""
        (namespace, key), subscription = self.key
        position, is_rewound = self.position, self.is_rewound
        return BehindAt(namespace, key, subscription, position, is_rewound, self.sent)

    # -- what comes

    def arrived(self, slot: Slot) -> None:
        """A message of its stream came into the cache."""
        token = slot.message.token
        if token < self.following or (self.dropped is not None and token <= self.dropped):
            return  # it was read anew, or will be
        if self.following == BEGINNING and not self.is_new:
            self.following = token  # nothing was kept before it
        if not slot.message.items:  # others had done it with a former owner
            self.let_go()
        if not self.keeps:
            self.dropped = token
        elif self.tail is None:
            self.tail = self._book.cache.open_cursor(self.key[0], slot.index)

    def needs(self, token: Token) -> bool:
        """Is this message of its stream not done?"""
        position = self.position
        return token >= Token(position.era, position.seq)

    def let_go(self) -> None:
        """Keep nothing in the cache: what came is read anew."""
        self.keeps = False
        if self.tail is not None:
            newest = self._book.cache.newest_of(self.key[0])
            assert newest is not None, "a tail is in the cache"
            self.dropped = newest if self.dropped is None else max(self.dropped, newest)
            self._close_tail()

    def _close_tail(self) -> None:
        if self.tail is not None:
            self.tail.close()
            self.tail = None

    def take(self, messages: Iterable[QueueMessage], upto: Token) -> None:
        """What was read anew: all of its stream in [some earlier place, upto)."""
        if self.dropped is None:
            return
        end = min(upto, following(self.dropped))  # what is above comes by itself
        for message in messages:
            if not self.following <= message.token < end or not message.items:
                continue
            if not self._book.has_room(self, message):
                end, self.is_full = message.token, True
                break
            self.link(message)
        self.following = max(self.following, end)
        self.meet()
        if not self.has_all:
            self.let_go()

    def lose(self, first: Token) -> Token | None:
        """All before `first` is gone; returns where it was if it would have needed that."""
        if self.dropped is None or first <= self.following:
            return None
        wanted = max(self.start, self.following)
        self.following = min(first, following(self.dropped))
        self.meet()
        return wanted

    def begin_within(self, first: Token | None, last: Token | None) -> bool:
        """The provider keeps these: the first message and the last; None: none.

        Returns True if it was to begin behind the last; then it gets what comes from now on.
        """
        self.is_new = False
        known = [one for one in (last, self._book.cache.newest) if one is not None]
        end = following(max(known)) if known else BEGINNING
        is_ahead = self.start > end
        if is_ahead:
            self.start = self.following = end
        elif self.start == BEGINNING:
            self.following = end if first is None else first
        if last is not None:
            self.dropped = last if self.dropped is None else max(self.dropped, last)
        self.meet()
        return is_ahead

    def skip_to(self, start: Token) -> None:
        """What is before is not for it; nothing from there on was read yet."""
        self.start = max(self.start, start)
        self.following = max(self.following, Token(start.era, start.seq))
        self.meet()

    def unload(self) -> None:
        """Hold nothing: all that is not done is read anew."""
        if self.head is not None:
            assert self._last is not None
            last, self.start = self._last.message.token, self.position
            self.following = Token(self.start.era, self.start.seq)
            self.dropped = last if self.dropped is None else max(self.dropped, last)
            self._clear()
            self.is_full = False
        self.let_go()

    def _clear(self) -> None:
        self._book.count(-self.events, -self.size_bytes)
        self.events = self.size_bytes = self._item = 0
        self.head = self._last = None

    def link(self, message: QueueMessage) -> None:
        """Put the next message into the chain; the first may be begun already."""
        slot = Slot(message, NO_INDEX, None)
        if self.head is None:
            if slot.is_at_most(before(self.start)):
                return
            self.head, self._item = slot, slot.first_item(before(self.start))
        else:
            assert self._last is not None
            self._last.next = slot
        self._last = slot
        self._count(slot, 1)

    def _count(self, slot: Slot, sign: int) -> None:
        self.events += sign * slot.events
        self.size_bytes += sign * slot.size_bytes
        self._book.count(sign * slot.events, sign * slot.size_bytes)

    # -- what is done

    def place(self) -> tuple[Slot, int] | None:
        """The first message of the chain, and the item in that; None: there is no chain."""
        return None if self.head is None else (self.head, self._item)

    def beyond(self, slot: Slot) -> Slot | None:
        """What follows the last message of the chain in the cache, if that is it."""
        if slot is not self._last or not self.has_all or self.tail is None:
            return None
        return self.tail.place()[0]

    def items(self, max_events: int, max_bytes: int) -> Sequence[Item]:
        """The next items of the chain."""
        return items_from(self.head, self._item, max_events, max_bytes)

    def lag(self) -> tuple[int, float]:
        """Items of the chain, and when the first was stored (wall clock; 0: there are none)."""
        return lag_from(self.head, self._item)

    def advance(self, count: int) -> None:
        """So many items are done."""
        self._item += count
        self.is_rewound = self.is_rewound and not count
        self.is_full = self.is_full and not count
        while self.head is not None and self._item >= len(self.head.message.items):
            slot, self.head = self.head, self.head.next
            self._item -= len(slot.message.items)
            self.floor = slot.message.token
            self._count(slot, -1)
            self._book.passed(self, slot.message.token)
        assert self.head is not None or self._item == 0, f"past the end of {self.key}"

    def rejoin(self) -> Cursor | None:
        """It has done what was read anew: a cursor in the cache, or None: nothing is there."""
        stream, after = self.key[0], before(self.position)
        at = self._book.cache.first_index(stream, after) if self.tail is not None else None
        cursor = None if at is None else self._book.cache.open_cursor(stream, at, after)
        self.end()
        return cursor

    def end(self) -> None:
        """It is behind no more; again is harmless."""
        self.is_over = True
        self._close_tail()
        self._clear()
        self._book.remove(self)

    def check(self) -> None:
        """Assert the invariants."""
        slots: list[Slot] = []
        slot = self.head
        while slot is not None:
            slots.append(slot)
            slot = slot.next
        tokens = [one.message.token for one in slots]
        assert tokens == sorted(set(tokens)) and all(one < self.following for one in tokens)
        assert self.events == sum(one.events for one in slots)
        assert self.size_bytes == sum(one.size_bytes for one in slots)
        assert self.head is None or self._item < len(self.head.message.items)
        assert self.dropped is None or self.following <= self.dropped
        assert self.tail is None or self.keeps


class BehindCursor:
    """The place of a subscription that is behind: as a `Cursor`, until it is with the others."""

    __slots__ = ("_behind",)

    index: None = None  # in no message of the cache

    def __init__(self, behind: Behind) -> None:
        self._behind = behind

    @property
    def is_drained(self) -> bool:
        """Is it at its end? Before, it becomes a cursor in the cache, unless nothing is there."""
        return self._behind.is_over

    @property
    def tried(self) -> int:
        """How often its message was tried before, as the provider counts."""
        head = self._behind.head
        return 0 if head is None else head.tried

    goes_back = False  # a queue that can be read again has an order

    @property
    def is_away(self) -> bool:
        """Is nothing here, and something to be read anew?"""
        return self._behind.head is None

    @property
    def may_repeat(self) -> bool:
        """May the next item have been delivered before?"""
        return self._behind.may_repeat

    def unload(self) -> None:
        """Hold nothing: all that is not done is read anew."""
        self._behind.unload()

    @property
    def token(self) -> Token | None:
        """The token of the item at which it is, or where the next are looked for."""
        return self._behind.position

    next_index = index
    next_token = token

    @property
    def sent(self) -> Token | None:
        """Up to here a former owner has delivered; None: it is not known."""
        return self._behind.sent

    def skip(self, upto: Token) -> bool:
        """Need nothing up to a token; False: that changes nothing, or the next item is here."""
        behind = self._behind
        if behind.is_over or behind.head is not None or upto < behind.position:
            return False
        behind.skip_to(past(upto))
        return True

    @property
    def wants_more(self) -> bool:
        """Is something to be read anew, and is there room for it?"""
        behind = self._behind
        return not behind.is_full and (not behind.has_all or behind.is_new)

    def place(self) -> tuple[Slot, int] | None:
        """The message that is here, and the item in that; None: none is."""
        return self._behind.place()

    def beyond(self, slot: Slot) -> Slot | None:
        """What follows the last message that is here."""
        return self._behind.beyond(slot)

    @property
    def after(self) -> Token:
        """Up to here it is done."""
        return before(self._behind.position)

    def lag(self) -> tuple[int, float]:
        """Items that are here, and when the first was stored; what is to be read is not counted."""
        return self._behind.lag()

    def peek(self, max_events: int, max_bytes: int) -> Sequence[Item]:
        """The next items that are here."""
        return self._behind.items(max_events, max_bytes)

    def advance(self, count: int) -> Cursor | BehindCursor | None:
        """Move past items; returns where to go on: here, in the cache, or None: nowhere."""
        behind = self._behind
        behind.advance(count)
        if behind.head is None and behind.has_all and not behind.is_new:
            return behind.rejoin()
        return self

    def close(self) -> None:
        """It is behind no more; again is harmless."""
        self._behind.end()
