"""The cached messages of one stream: a chain of slots.

Owns: `Slot`, `Lane`, walking a chain. Not: who may be dropped, and when (`cache`).
Invariant: a lane's slots are in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from millstream.streams.contracts.item import Item
from millstream.streams.contracts.message import QueueMessage, content_bytes, headers_bytes
from millstream.streams.contracts.token import Token

__all__ = ["Lane", "Slot", "chain", "items_from", "lag_from"]


new_token: Callable[..., Token] = tuple.__new__  # `Token(...)`, at half of its cost


class Slot:
    """A cached message, who holds it, and the next message of its stream.

    `before`: the message that arrived just before it, whatever stream it is of; it may have left.
    """

    __slots__ = (
        "before",
        "cursors",
        "events",
        "goes_back",
        "headers_bytes",
        "index",
        "is_linked",
        "message",
        "next",
        "pins",
        "size_bytes",
    )

    def __init__(self, message: QueueMessage, index: int, before: Token | None) -> None:
        self.message = message
        self.is_linked = False  # into the chain of its stream: it had items
        self.index = index
        self.before = before
        self.events = max(1, len(message.items))
        self.size_bytes = content_bytes(message.items, message.headers)
        self.headers_bytes = headers_bytes(message.headers)
        self.next: Slot | None = None
        self.pins = 1
        self.cursors = 0
        self.goes_back = False  # if its handler fails: the queue counts attempts, and nobody else
        # gets it

    def items(self, start: int, end: int) -> list[Item]:
        """Items start..end-1. Cost: O(items), about 0.3 µs each."""
        era, seq, first = self.message.token
        headers = dict(self.message.headers) if self.message.headers else None
        bodies = self.message.items
        return [
            Item(new_token(Token, (era, seq, first + at)), bodies[at], headers)
            for at in range(start, end)
        ]

    def last_token(self) -> Token:
        """The token of the last item."""
        era, seq, index = self.message.token
        return Token(era, seq, index + self.events - 1)

    def is_at_most(self, after: Token | None) -> bool:
        """Has it nothing behind that token?"""
        return after is not None and self.last_token() <= after

    @property
    def tried(self) -> int:
        """How often it was tried before, as the provider counts."""
        return max(0, self.message.attempt - 1)

    def first_item(self, after: Token | None) -> int:
        """The first item with a token above `after`; the number of items if there is none."""
        token, count = self.message.token, len(self.message.items)
        if after is None or token > after:
            return 0
        is_later = (after.era, after.seq) > (token.era, token.seq)
        return count if is_later else min(count, after.index - token.index + 1)


class Lane(msgspec.Struct):
    """The cached messages of one stream, as a chain from head to tail."""

    head: Slot
    tail: Slot
    events: int = 0
    size_bytes: int = 0


def chain(lane: Lane) -> Iterator[Slot]:
    """The slots of a lane, from head to tail."""
    slot: Slot | None = lane.head
    while slot is not None:
        assert slot.next is not None or slot is lane.tail
        yield slot
        slot = slot.next


def lag_from(slot: Slot | None, item: int) -> tuple[int, float]:
    """Items from here on, and when the first was stored (wall clock; 0: there are none).

    Cost: O(messages).
    """
    if slot is None:
        return 0, 0.0
    events, since_s = -item, slot.message.enqueued_s
    while slot is not None:
        events += len(slot.message.items)
        slot = slot.next
    return events, since_s


def items_from(slot: Slot | None, start: int, max_events: int, max_bytes: int) -> Sequence[Item]:
    """The next items of a chain, one at least while there is a slot. Cost: O(items returned)."""
    assert max_events >= 1, f"max_events is {max_events}"
    found: list[Item] = []
    room = max_bytes
    while slot is not None:
        bodies = slot.message.items
        end = min(len(bodies), start + max_events - len(found))
        each = slot.headers_bytes
        if each or slot.size_bytes > room:
            end = _end_within(bodies, start, end, room, bool(found), each)
        found += slot.items(start, end)
        if end < len(bodies):
            break
        room -= sum(map(len, bodies[start:])) + each * (end - start)
        slot, start = slot.next, 0
        if slot is not None and slot.message.attempt > 1:
            break  # it is delivered with its own number of attempts
    return found


def _end_within(
    bodies: Sequence[bytes], start: int, end: int, room: int, has_some: bool, each: int
) -> int:
    """Up to where items from `start` on fit into `room` bytes; the very first one always does.

    `each`: bytes that every item brings along.
    """
    for at in range(start, end):
        room -= len(bodies[at]) + each
        if room < 0 and (has_some or at > start):
            return at
    return end
