"""The cached messages of one stream: a chain of slots.

`queue_cache` drops messages. Invariant: the slots of a chain are in the order of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from millstream.streams.contracts.item import Item
from millstream.streams.contracts.message import QueueMessage, content_bytes, headers_bytes
from millstream.streams.contracts.token import Token

__all__ = ["REREAD", "Lane", "Slot", "chain", "items_from", "lag_from"]


new_token: Callable[..., Token] = tuple.__new__  # like `Token(...)`, at half the cost


REREAD = -1  # the index of a message that was read again


class Slot:
    """A message in memory, linked to the next message of its stream.

    Attributes:
        index: the absolute index in the cache; `REREAD`: it was read again.
        before: the token of the previous message, of any stream. That message may not be in memory
            any more.
        lane: the chain of this slot. None: the message has no items.
        holds: the number of pins: cursors at this message, plus one while its subscriptions are
            unknown.
        goes_back: the queue delivers the message again when its handler fails, and counts attempts.
    """

    __slots__ = (
        "before",
        "events",
        "goes_back",
        "headers_bytes",
        "holds",
        "index",
        "lane",
        "message",
        "next",
        "size_bytes",
    )

    def __init__(self, message: QueueMessage, index: int, before: Token | None) -> None:
        items, headers = message.items, message.headers
        self.message = message
        self.index = index
        self.before = before
        self.events = len(items) or 1
        self.size_bytes = content_bytes(items, headers)
        self.headers_bytes = headers_bytes(headers) if headers else 0
        self.next: Slot | None = None
        self.lane: Lane | None = None
        self.holds = 0
        self.goes_back = False

    def items(self, start: int, end: int) -> list[Item]:
        """Return items start..end-1. Cost: O(items), about 0.3 µs each."""
        era, seq, first = self.message.token
        headers = dict(self.message.headers) if self.message.headers else None
        bodies = self.message.items
        if end - start == 1:
            return [Item(new_token(Token, (era, seq, first + start)), bodies[start], headers)]
        return [
            Item(new_token(Token, (era, seq, first + at)), bodies[at], headers)
            for at in range(start, end)
        ]

    def last_token(self) -> Token:
        """Return the token of the last item."""
        era, seq, index = self.message.token
        return Token(era, seq, index + self.events - 1)

    def is_at_most(self, after: Token | None) -> bool:
        """Whether the message has no item above token `after`."""
        return after is not None and self.last_token() <= after

    def token_at(self, item: int) -> Token:
        """Return the token of an item."""
        era, seq, first = self.message.token
        return Token(era, seq, first + item)

    def first_item(self, after: Token | None) -> int:
        """Return the first item above `after`; the number of items if there is none."""
        token, count = self.message.token, len(self.message.items)
        if after is None or token > after:
            return 0
        is_later = (after.era, after.seq) > (token.era, token.seq)
        return count if is_later else min(count, after.index - token.index + 1)


NOWHERE = Token(0, 0)


class Lane(msgspec.Struct):
    """Messages of one stream, as a chain from head to tail.

    `begin` and `end` are for messages that were read again: the lane has everything in [begin,
    end).
    """

    head: Slot
    tail: Slot
    events: int = 0
    size_bytes: int = 0
    begin: Token = NOWHERE
    end: Token = NOWHERE


def chain(lane: Lane) -> Iterator[Slot]:
    """Yield the slots of a lane, from head to tail."""
    slot: Slot | None = lane.head
    while slot is not None:
        assert slot.next is not None or slot is lane.tail
        yield slot
        slot = slot.next


def lag_from(slot: Slot | None, item: int) -> tuple[int, float]:
    """Return the number of items from here on, and the wall-clock time when the first was stored,
    or 0 if there is none.

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
    """Return the next items of a chain, at least one if there is a slot. Cost: O(items
    returned)."""
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
    """Return the end of the items from `start` that fit into `room` bytes; the first item always
    fits.

    `each` is the number of bytes that every item adds.
    """
    for at in range(start, end):
        room -= len(bodies[at]) + each
        if room < 0 and (has_some or at > start):
            return at
    return end
