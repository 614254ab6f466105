"""Where one subscription is among the cached messages of its stream.

Owns: `Cursor`. Not: what is cached, and what may leave (`queue_cache`).
Invariant: an open cursor is at an item; it holds the message of that item, and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.token import Token

from .lane import Slot, items_from, lag_from

__all__ = ["Cursor"]


class Holder(Protocol):
    """The cache whose messages are held."""

    def moved_from(self, old: Slot | None, new: Slot | None, /) -> None:
        """A cursor goes from one message to another."""
        ...


class Cursor:
    """Where one subscription is among the undelivered items of its stream.

    Holds the message it is in. Drained, or closed, it holds nothing and is of no more use:
    the next message of the stream needs another one.
    """

    __slots__ = ("_holder", "_item", "_slot", "stream")

    def __init__(self, holder: Holder, stream: StreamId, slot: Slot | None, item: int) -> None:
        self._holder = holder
        self._slot, self._item = slot, item
        self.stream = stream
        holder.moved_from(None, slot)

    @property
    def is_drained(self) -> bool:
        """Whether nothing is left to deliver."""
        return self._slot is None

    @property
    def index(self) -> int | None:
        """The absolute index of the message in which it is; None when drained."""
        return None if self._slot is None else self._slot.index

    @property
    def token(self) -> Token | None:
        """The token of the item at which it is; None when drained."""
        if self._slot is None:
            return None
        era, seq, first = self._slot.message.token
        return Token(era, seq, first + self._item)

    @property
    def is_away(self) -> bool:
        """Never: what it is at is here."""
        return False

    @property
    def may_repeat(self) -> bool:
        """What is here says it by its index."""
        return False

    next_index = index
    next_token = token

    @property
    def tried(self) -> int:
        """How often its message was tried before, as the provider counts."""
        return 0 if self._slot is None else self._slot.tried

    @property
    def goes_back(self) -> bool:
        """Does its message go back to the queue when its handler fails?"""
        return self._slot is not None and self._slot.goes_back

    @property
    def is_last(self) -> bool:
        """Does the queue give it out no more, if its handler fails?"""
        return self._slot is not None and self._slot.message.is_last

    def going_back(self) -> Sequence[Token]:
        """The messages from here on, if each goes back to the queue for this subscription."""
        slots: list[Slot] = []
        slot = self._slot
        while slot is not None:
            slots.append(slot)
            slot = slot.next
        is_so = all(slot.goes_back for slot in slots)
        return [slot.message.token for slot in slots] if is_so else ()

    def index_at(self, count: int) -> int:
        """The message of the item `count` behind this one, all of which `peek` has given."""
        slot, item = self.place()
        item += count
        while item >= len(slot.message.items):
            item -= len(slot.message.items)
            assert slot.next is not None, f"{count} items are not here"
            slot = slot.next
        return slot.index

    def leave(self) -> Cursor | None:
        """Move to the next message; None: nothing is left."""
        slot, item = self.place()
        return self.advance(len(slot.message.items) - item)

    def place(self) -> tuple[Slot, int]:
        """The message in which it is, and the item in that; not when drained."""
        assert self._slot is not None, "a drained cursor is nowhere"
        return self._slot, self._item

    def lag(self) -> tuple[int, float]:
        """Items from here on, and when the first was stored (wall clock; 0 when drained)."""
        return lag_from(self._slot, self._item)

    def peek(self, max_events: int, max_bytes: int) -> Sequence[Item]:
        """The next items, without moving: one at least while not drained, whatever its size.

        Cost: O(items returned).
        """
        return items_from(self._slot, self._item, max_events, max_bytes)

    def advance(self, count: int) -> Cursor | None:
        """Move past `count` items, all of which `peek` has given; None: nothing is left.

        Amortised O(1) per message.
        """
        assert count >= 0, f"count is {count}"
        slot, item = self._slot, self._item + count
        while slot is not None and item >= len(slot.message.items):
            item -= len(slot.message.items)
            slot = slot.next
        assert slot is not None or item == 0, f"moved {item} items past the end of {self.stream}"
        self._move_to(slot, item)
        return None if slot is None else self

    def close(self) -> None:
        """Let go of everything; again is harmless."""
        self._move_to(None, 0)

    def _move_to(self, slot: Slot | None, item: int) -> None:
        """Stand at an item of a slot; None: behind everything."""
        if slot is not self._slot:
            self._holder.moved_from(self._slot, slot)
        self._slot, self._item = slot, item
