"""The place of a subscription that is acknowledged by hand: where it holds, and where it sends.

Owns: `HeldCursor`, over a `Cursor` or a `BehindCursor` that stands where it holds: what the queue's
acknowledgement, its record and a hand-over see. Not: when something is sent, or comes again
(`delivery`). Pure.
Invariants: it sends at or behind where it holds, and at most `unacked_max` items behind; it holds
at no item that is acknowledged or was given up; what was not sent is not acknowledged.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.lane import Slot, items_from
from millstream.streams.agent.lagging.behind import BehindCursor
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

__all__ = ["HeldCursor"]

Place = tuple[Slot, int]


class HeldCursor:
    """As a cursor: `peek` and `advance` are of where it sends; all else is of where it holds."""

    __slots__ = ("_given", "_given_up", "_inner", "_sends", "_unacked_max", "ahead")

    def __init__(self, inner: Cursor | BehindCursor, unacked_max: int) -> None:
        self._inner = inner
        self._unacked_max = unacked_max
        self._sends: Place | None = None  # None: as many items on as it is ahead
        self._given: deque[tuple[int, float]] = deque()  # so many items, at that time
        self._given_up: set[Token] = set()  # these do not come again
        self.ahead = 0  # items that were given, and are not acknowledged

    # -- where it holds

    @property
    def inner(self) -> Cursor | BehindCursor:
        """The cursor that stands where it holds."""
        return self._inner

    @property
    def is_drained(self) -> bool:
        """Is everything acknowledged, and nothing left?"""
        return self._inner.is_drained

    @property
    def index(self) -> int | None:
        """The absolute index of the message in which it holds; None: in none of the cache."""
        return self._inner.index

    @property
    def token(self) -> Token | None:
        """The first item that is not acknowledged."""
        return self._inner.token

    @property
    def may_repeat(self) -> bool:
        """Is it behind, and may the next item have been delivered before?"""
        return self._inner.may_repeat

    @property
    def tried(self) -> int:
        """How often its message was tried before, as the provider counts."""
        return self._inner.tried

    goes_back = False  # what is acknowledged up to an event has an order

    def lag(self) -> tuple[int, float]:
        """Items that are not acknowledged, and when the first was stored (wall clock)."""
        return self._inner.lag()

    @property
    def given_s(self) -> float:
        """When the oldest that is not acknowledged was given; infinite: none is."""
        return self._given[0][1] if self._given else math.inf

    # -- where it sends

    @property
    def next_token(self) -> Token | None:
        """The item that is sent next; None: it is not here."""
        place = self._place()
        if place is None:
            return None
        era, seq, first = place[0].message.token
        return Token(era, seq, first + place[1])

    @property
    def next_index(self) -> int | None:
        """The absolute index of the message that is sent next; None: in none of the cache."""
        place = self._place()
        return None if place is None or place[0].index < 0 else place[0].index

    @property
    def can_send(self) -> bool:
        """Is there an item to send, and may it be?"""
        return self.ahead < self._unacked_max and self._place() is not None

    @property
    def is_away(self) -> bool:
        """Is nothing here to send, and something to be read anew for which there is room?"""
        inner = self._inner
        if isinstance(inner, Cursor) or self.ahead >= self._unacked_max:
            return False
        return inner.wants_more and self._place() is None

    def _place(self) -> Place | None:
        """Where it sends; None: what would be next is not here."""
        at = self._sends or self._start()
        while at is not None:
            slot, item = at
            if item < len(slot.message.items):
                self._sends = at
                if not self._given_up or not self._skips(slot, item):
                    return at
                self.ahead += 1
                self._given.append((1, math.inf))
                at = self._sends = (slot, item + 1)
                continue
            following = slot.next or self._beyond(slot)
            self._sends = at
            at = None if following is None else (following, item - len(slot.message.items))
        return None

    def _start(self) -> Place | None:
        held = self._holds()
        return None if held is None else (held[0], held[1] + self.ahead)

    def _holds(self) -> Place | None:
        """Where it holds; None: that is not here."""
        return None if self._inner.is_drained else self._inner.place()

    def _beyond(self, slot: Slot) -> Slot | None:
        """What follows the last message that was read anew: what came since."""
        return None if isinstance(self._inner, Cursor) else self._inner.beyond(slot)

    def _skips(self, slot: Slot, item: int) -> bool:
        era, seq, first = slot.message.token
        return Token(era, seq, first + item) in self._given_up

    def peek(self, max_events: int, max_bytes: int) -> Sequence[Item]:
        """The next items to send, without moving; none: they are not here, or too many are out."""
        place = self._place()
        room = min(max_events, self._unacked_max - self.ahead)
        if place is None or room < 1:
            return ()
        items = items_from(*place, room, max_bytes)
        if not self._given_up:
            return items
        ends = (at for at, item in enumerate(items) if item.token in self._given_up)
        return items[: next(ends, len(items))]

    def advance(self, count: int) -> HeldCursor:
        """So many of the items that `peek` has given are given."""
        if not count:
            self._inner = self._inner.advance(0) or self._inner  # it may be with the others again
            return self
        place = self._place()
        assert place is not None, "nothing was peeked"
        self._sends = (place[0], place[1] + count)
        self.ahead += count
        return self

    def note(self, count: int, at_s: float) -> None:
        """So many items were given at that time."""
        if count:
            self._given.append((count, at_s))

    def give_up(self, token: Token) -> None:
        """The item that was sent last does not come again; it is done once all before it are."""
        self._given.append((1, math.inf))
        self._given_up.add(token)

    def rewind(self) -> None:
        """All that is not acknowledged is sent again."""
        self.ahead, self._sends = 0, None
        self._given.clear()

    # -- acknowledging

    def settle(self, upto: Token | None) -> None:
        """All items up to a token are acknowledged, as far as they were given."""
        while self.ahead and (held := self._holds()) is not None:
            slot, item = held
            count = 0 if upto is None else min(slot.first_item(upto) - item, self.ahead)
            if count <= 0 and not (self._given_up and self._skips(slot, item)):
                break
            self._release(slot, item, max(1, count))

    def pass_over(self, upto: Token) -> bool:
        """Items up to a token are acknowledged, though no reply said that they were given.

        Nothing is out. Returns whether there were any. They need not be here: items that are still
        to be read anew are not read for this subscription.
        """
        is_any = False
        while not self.ahead and (held := self._holds()) is not None:
            slot, item = held
            count = slot.first_item(upto) - item
            if count <= 0 and not (self._given_up and self._skips(slot, item)):
                break
            self._inner = self._inner.advance(max(1, count)) or self._inner
            self._sends, is_any = None, True
        return self._pass_over_away(upto) or is_any

    def _pass_over_away(self, upto: Token) -> bool:
        """As `pass_over`, for what is not here."""
        inner = self._inner
        if self.ahead or isinstance(inner, Cursor) or not inner.skip(upto):
            return False
        self._inner = inner.advance(0) or inner
        return True

    def _release(self, slot: Slot, item: int, count: int) -> None:
        if self._given_up:
            era, seq, first = slot.message.token
            self._given_up.difference_update(
                Token(era, seq, first + at) for at in range(item, item + count)
            )
        self._inner = self._inner.advance(count) or self._inner
        self.ahead -= count
        if not self.ahead:
            self._sends = None
        while count and self._given:
            first_count, at_s = self._given.popleft()
            if first_count > count:
                self._given.appendleft((first_count - count, at_s))
            count -= min(count, first_count)

    # -- falling behind

    def moved_to(self, inner: BehindCursor) -> None:
        """It stands at the same item, elsewhere, with all that it has given."""
        self._inner, self._sends = inner, None

    def unload(self) -> None:
        """Hold nothing: what is not acknowledged is read anew, and comes again."""
        self.rewind()
        if isinstance(self._inner, BehindCursor):
            self._inner.unload()

    def close(self) -> None:
        """Let go of everything; again is harmless."""
        self.rewind()
        self._inner.close()
