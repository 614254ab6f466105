"""The cache of one queue: what was read and is not yet done by every subscription.

Owns: messages by stream in the order of arrival, where cursors are in them, up to where everything
is done. Not: when to read or acknowledge (`reading`), or what to deliver and when (`delivery`).
Invariants:
- at most `events_max` events and `bytes_max` bytes, save one message that is alone in the cache;
- a message has an absolute index that never changes; messages of a stream leave in their order,
  whatever other streams do;
- what holds a message (a pin, or a cursor in it) holds all of its stream that came after it;
- an open cursor is at an undelivered item of its stream: an idle subscription has none;
- nothing leaves but in `purge`: between two purges a cursor may be closed and opened elsewhere;
- a message may be here as a place without its items ("away"), once its stream has more than its
  share of a cache that fills; it counts against `places_max` alone, until it is filled.

A message is linked to the next one of its stream, so a cursor skips what belongs to others at no
cost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from millstream.runtime.extending import check_fields
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.item import Item
from millstream.streams.contracts.message import QueueMessage, content_bytes
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import TokenRange

from .lane import Lane, Slot, chain

__all__ = ["CacheLimits", "Cursor", "Notes", "QueueCache"]

MIB = 1 << 20
Notes = Literal["none", "out_of_turn", "all"]


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Bounds of one queue's cache. Raises ConfigError.

    Where the provider can be read again (REWIND), a stream with more than `stream_events_max` or
    `stream_bytes_max` in a cache that is half full is *behind*: what comes for it is kept as a
    place without items, at most `places_max`, and read anew when it is its turn.
    """

    events_max: int = 16_384
    bytes_max: int = 64 * MIB
    stream_events_max: int = 4_096
    stream_bytes_max: int = 8 * MIB
    places_max: int = 100_000

    def __post_init__(self) -> None:
        check_fields(self)


class Cursor:
    """Where one subscription is among the undelivered items of its stream.

    Holds the message it is in. Drained, or closed, it holds nothing and is of no more use:
    the next message of the stream needs another one.
    """

    __slots__ = ("_cache", "_item", "_slot", "stream")

    def __init__(self, cache: QueueCache, stream: StreamId) -> None:
        self._cache = cache
        self._slot: Slot | None = None
        self._item = 0
        self.stream = stream

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
    def message_token(self) -> Token | None:
        """The token of the message in which it is; None when drained."""
        return None if self._slot is None else self._slot.message.token

    @property
    def is_away(self) -> bool:
        """Whether the items at which it is are to be read anew."""
        return self._slot is not None and self._slot.is_away

    def settle(self) -> None:
        """Leave messages whose items turned out to be gone."""
        slot = self._slot
        while slot is not None and not slot.message.items:
            slot = slot.next
        if slot is not self._slot:
            self.move_to(slot, 0)

    def peek(self, max_events: int, max_bytes: int) -> Sequence[Item]:
        """The next items, without moving: one at least while not drained, whatever its size.

        Up to the first that is away. Cost: O(items returned).
        """
        assert max_events >= 1, f"max_events is {max_events}"
        found: list[Item] = []
        slot, start, room = self._slot, self._item, max_bytes
        while slot is not None and not slot.is_away:
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
        return found

    def advance(self, count: int) -> None:
        """Move past `count` items, all of which `peek` has given. Amortised O(1) per message."""
        assert count >= 0, f"count is {count}"
        slot, item = self._slot, self._item + count
        while slot is not None and item >= len(slot.message.items):
            item -= len(slot.message.items)
            slot = slot.next
        assert slot is not None or item == 0, f"moved {item} items past the end of {self.stream}"
        self.move_to(slot, item)

    def close(self) -> None:
        """Let go of everything; again is harmless."""
        self.move_to(None, 0)

    def move_to(self, slot: Slot | None, item: int) -> None:
        """Stand at an item of a slot; None: behind everything."""
        if slot is not self._slot:
            self._cache._moved(self._slot, slot)
        self._slot, self._item = slot, item


class QueueCache:
    """The messages of one queue between reading and acknowledging.

    Args:
        after: the position from which the queue is read: nothing at or below it will come.
        notes: which tokens `take_done` gives: of all messages that leave, of those that leave
            before older ones, or of none.
        can_refill: what is away can be read anew.
    """

    def __init__(
        self,
        limits: CacheLimits,
        after: Token | None = None,
        *,
        notes: Notes = "none",
        can_refill: bool = False,
    ) -> None:
        self._limits = limits
        self._slots: OrderedDict[int, Slot] = OrderedDict()
        self._freed: dict[Slot, None] = {}  # held by nobody any more, and perhaps free to leave
        self.next_index = 0  # of the message that is appended next
        self._events = 0
        self._bytes = 0
        self._lanes: dict[StreamId, Lane] = {}
        self._newest = after
        self._notes = notes
        self._can_refill = can_refill
        self._away: dict[Token, Slot] = {}
        self._done: list[Token] = []
        self.left = 0  # messages that have left

    @property
    def base(self) -> int:
        """The absolute index of the oldest message held: all before it are done."""
        return next(iter(self._slots)) if self._slots else self.next_index

    @property
    def events(self) -> int:
        """Events held."""
        return self._events

    @property
    def size_bytes(self) -> int:
        """Bytes held."""
        return self._bytes

    @property
    def oldest_s(self) -> float | None:
        """When the oldest message held was stored (wall clock); None while empty."""
        return self._slots[self.base].message.enqueued_s if self._slots else None

    @property
    def away(self) -> int:
        """Messages that are here without their items."""
        return len(self._away)

    def room(self) -> tuple[int, int]:
        """Events and bytes that may still be read; (0, 0) when full. Purge first."""
        if len(self._away) >= self._limits.places_max:
            return 0, 0
        if not self._events:
            return self._limits.events_max, self._limits.bytes_max
        events = self._limits.events_max - self._events
        size_bytes = self._limits.bytes_max - self._bytes
        return (events, size_bytes) if events > 0 and size_bytes > 0 else (0, 0)

    def fits(self, message: QueueMessage) -> bool:
        """Whether the message can be appended now; an empty cache takes one of any size."""
        if not self._events:
            return True
        if self._can_refill and self._is_over_share(message):
            return True
        events = self._events + max(1, len(message.items))
        size_bytes = self._bytes + content_bytes(message.items, message.headers)
        return events <= self._limits.events_max and size_bytes <= self._limits.bytes_max

    def append(self, message: QueueMessage) -> int:
        """Add a message that `fits`; returns its absolute index.

        It is pinned once, for whoever routes it: `unpin` when each of its subscriptions has a
        cursor. A message without items is kept in order for its acknowledgement only.
        """
        slot = Slot(message, self.next_index, self._newest)
        self._slots[slot.index] = slot
        is_over_share = self._can_refill and self._events > 0 and self._is_over_share(message)
        assert is_over_share or self._has_room(slot), f"{message.token} exceeds {self.room()}"
        self._newest = message.token
        self.next_index += 1
        self._events += slot.events
        self._bytes += slot.size_bytes
        if message.items:
            self._link(slot)
        if is_over_share:
            self._send_away(self._lanes[message.stream], slot)
        return slot.index

    def _has_room(self, slot: Slot) -> bool:
        """As `fits`, for a message that has been measured."""
        events, size_bytes = self._events + slot.events, self._bytes + slot.size_bytes
        limits = self._limits
        return not self._events or (events <= limits.events_max and size_bytes <= limits.bytes_max)

    def _is_over_share(self, message: QueueMessage) -> bool:
        """Would its stream have more than its share of a cache that fills?"""
        limits = self._limits
        if 2 * self._events < limits.events_max and 2 * self._bytes < limits.bytes_max:
            return False
        lane = self._lanes.get(message.stream)
        if lane is None or not message.items:
            return False
        events = lane.events + len(message.items)
        size_bytes = lane.size_bytes + content_bytes(message.items, message.headers)
        return events > limits.stream_events_max or size_bytes > limits.stream_bytes_max

    def _send_away(self, lane: Lane, slot: Slot) -> None:
        """Keep the place of a message, and not its items."""
        message = slot.message
        blank = cast("Sequence[bytes]", range(len(message.items)))
        slot.message = QueueMessage(
            message.stream, message.token, blank, enqueued_s=message.enqueued_s
        )
        slot.is_away = True
        self._away[message.token] = slot
        self._count(lane, slot, -1)

    def _count(self, lane: Lane | None, slot: Slot, sign: int) -> None:
        self._events += sign * slot.events
        self._bytes += sign * slot.size_bytes
        if lane is not None:
            lane.events += sign * slot.events
            lane.size_bytes += sign * slot.size_bytes

    def fill(self, message: QueueMessage) -> bool:
        """A message that was read anew; False: it is not away, or another one."""
        slot = self._away.get(message.token)
        if slot is None or len(message.items) != len(slot.message.items):
            return False
        del self._away[message.token]
        slot.message, slot.is_away = message, False
        self._count(self._lanes[message.stream], slot, 1)
        return True

    def lose(self, stream: StreamId, first: Token, before: Token) -> int:
        """What is away of a stream in [first, before) cannot be read anew: returns how many events.

        Cursors in it have to `settle`.
        """
        lost = 0
        lane = self._lanes.get(stream)
        slot = None if lane is None else lane.head
        while slot is not None and slot.message.token < before:
            if slot.is_away and slot.message.token >= first:
                lost += slot.events
                del self._away[slot.message.token]
                slot.message = QueueMessage(stream, slot.message.token, ())
                slot.is_away = False
                slot.events = slot.size_bytes = 0
            slot = slot.next
        return lost

    def _link(self, slot: Slot) -> None:
        lane = self._lanes.get(slot.message.stream)
        if lane is None:
            lane = self._lanes[slot.message.stream] = Lane(slot, slot)
        else:
            lane.tail.next = slot
            lane.tail = slot
        slot.is_linked = True
        lane.events += slot.events
        lane.size_bytes += slot.size_bytes

    def first_index(self, stream: StreamId, after: Token | None) -> int | None:
        """The message in which a subscription that saw `after` goes on; None if it is idle.

        None for `after`: the oldest message of the stream. Cost: O(messages of the stream held).
        """
        lane = self._lanes.get(stream)
        slot = None if lane is None else lane.head
        while slot is not None and slot.is_at_most(after):
            slot = slot.next
        return None if slot is None else slot.index

    def open_cursor(self, stream: StreamId, at: int, after: Token | None = None) -> Cursor:
        """A cursor in the message with absolute index `at`, at its first item above `after`.

        `at` is what `append` or `first_index` gave. Cost: O(1) near either end of the cache.
        """
        slot = self._slot(at)
        assert slot.message.stream == stream, f"{at} is of {slot.message.stream}, not {stream}"
        cursor = Cursor(self, stream)
        item = slot.first_item(after)
        if item < len(slot.message.items):
            cursor.move_to(slot, item)
        else:
            cursor.move_to(slot.next, 0)
        cursor.settle()
        return cursor

    def unpin(self, index: int) -> None:
        """Undo the pin of `append`."""
        slot = self._slot(index)
        assert slot.pins > 0, f"message {index} is not pinned"
        slot.pins -= 1
        if not slot.pins and not slot.cursors:
            self._freed[slot] = None

    def _slot(self, index: int) -> Slot:
        slot = self._slots.get(index)
        assert slot is not None, f"{index} is not in {self.base}..{self.next_index}, or has left"
        return slot

    def purge(self) -> None:
        """Drop of each stream the leading messages that nothing holds. Cost: O(these)."""
        freed = self._freed
        while freed:
            slot, _ = freed.popitem()
            if not slot.is_linked:
                self._drop(None, slot)
                continue
            lane = self._lanes.get(slot.message.stream)
            if lane is not None and lane.head is slot:
                self._drop_leading(lane, slot)

    def _drop_leading(self, lane: Lane, slot: Slot | None) -> None:
        while slot is not None and not slot.pins and not slot.cursors:
            self._freed.pop(slot, None)
            self._drop(lane, slot)
            slot = slot.next
        if slot is None:
            del self._lanes[lane.tail.message.stream]
        else:
            lane.head = slot

    def _drop(self, lane: Lane | None, slot: Slot) -> None:
        if slot.pins or slot.cursors or slot.index not in self._slots:
            return
        notes = self._notes
        if notes == "all" or (notes == "out_of_turn" and slot.index != self.base):
            self._done.append(slot.message.token)
        del self._slots[slot.index]
        self.left += 1
        if slot.is_away:
            del self._away[slot.message.token]
        else:
            self._count(lane, slot, -1)

    def acked_upto(self) -> Token | None:
        """This message and all that arrived before it are done. Purges first.

        None if nothing is known to be done.
        """
        self.purge()
        return self._slots[self.base].before if self._slots else self._newest

    def done_ranges(self, count_max: int) -> list[TokenRange]:
        """Messages above `acked_upto` that are done, as ranges, the oldest ones. Purge first.

        Only where tokens are positions. Cost: O(messages held).
        """
        ranges: list[TokenRange] = []
        held: Token | None = None
        for slot in self._slots.values():
            _add_range(ranges, held, slot.before)
            held = slot.message.token
        _add_range(ranges, held, self._newest)
        return ranges[:count_max]

    def forget(self, let_go: Callable[[], None]) -> None:
        """What is held is given again by the provider: that it leaves does not mean it is done.

        `let_go` makes everybody who holds something let go of it.
        """
        self.purge()
        done, self._done = self._done, []
        let_go()
        self.purge()
        assert not self._slots, f"{len(self._slots)} messages are still held"
        self._newest, self._done = None, done

    def take_done(self) -> list[Token]:
        """The messages that have left since this was asked last, as far as they are noted."""
        done, self._done = self._done, []
        return done

    def _moved(self, old: Slot | None, new: Slot | None) -> None:
        """A cursor goes from one message to another."""
        if old is not None:
            old.cursors -= 1
            if not old.cursors and not old.pins:
                self._freed[old] = None
                self._strip(old)
        if new is not None:
            new.cursors += 1

    def _strip(self, slot: Slot) -> None:
        """A cursor has left it: somebody slower needs it, and if its stream is behind, not here."""
        if not self._can_refill or slot.is_away or not slot.message.items:
            return
        lane, limits = self._lanes.get(slot.message.stream), self._limits
        if lane is None or lane.head is slot or len(self._away) >= limits.places_max:
            return
        if lane.events > limits.stream_events_max or lane.size_bytes > limits.stream_bytes_max:
            self._send_away(lane, slot)

    def check(self) -> None:
        """Assert the invariants. Cost: O(cache)."""
        slots = list(self._slots.values())
        here = [slot for slot in slots if not slot.is_away]
        assert self._events == sum(slot.events for slot in here)
        assert self._bytes == sum(slot.size_bytes for slot in here)
        assert self._away == {slot.message.token: slot for slot in slots if slot.is_away}
        for lane in self._lanes.values():
            held = [slot for slot in chain(lane) if not slot.is_away]
            assert lane.events == sum(slot.events for slot in held)
            assert lane.size_bytes == sum(slot.size_bytes for slot in held)
        indices = [slot.index for slot in slots]
        assert indices == list(self._slots) == sorted(indices)
        assert self.left + len(slots) == self.next_index
        if len(slots) > 1 and not self._can_refill:
            assert self._events <= self._limits.events_max
            assert self._bytes <= self._limits.bytes_max
        chained = [slot.index for lane in self._lanes.values() for slot in chain(lane)]
        assert sorted(chained) == [slot.index for slot in slots if slot.is_linked]
        assert all(slot.pins >= 0 and slot.cursors >= 0 for slot in slots)
        heads = [lane.head for lane in self._lanes.values()]
        assert all(head.pins or head.cursors or head in self._freed for head in heads)


def _add_range(ranges: list[TokenRange], held: Token | None, last: Token | None) -> None:
    """The messages between one that is held and the end of what came behind it."""
    if held is not None and last is not None and last > held:
        ranges.append((Token(held.era, held.seq + 1), last))


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
