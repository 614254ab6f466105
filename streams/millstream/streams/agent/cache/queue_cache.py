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
- who is behind (`behind`) holds nothing here but its tail; its chain counts for the room.

A message is linked to the next one of its stream, so a cursor skips what belongs to others at no
cost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import QueueMessage, content_bytes
from millstream.streams.contracts.token import Token
from millstream.streams.ownership.record import TokenRange

from .cursor import Cursor
from .lane import Lane, Slot, chain
from .limits import BUCKETS, CacheLimits

__all__ = ["Notes", "QueueCache"]

Notes = Literal["none", "out_of_turn", "all"]


class Follower(Protocol):
    """A subscription that is behind, as the cache sees it."""

    def arrived(self, slot: Slot, /) -> None:
        """A message of its stream was appended."""
        ...

    def needs(self, token: Token, /) -> bool:
        """Is this message of its stream not done by it?"""
        ...


class QueueCache:
    """The messages of one queue between reading and acknowledging.

    Args:
        after: the position from which the queue is read: nothing at or below it will come.
        gives_back: what is not done can be given back to the queue, one by one.
        notes: which tokens `take_done` gives: of all messages that leave, of those that leave
            before older ones, or of none.
    """

    def __init__(
        self,
        limits: CacheLimits,
        after: Token | None = None,
        *,
        notes: Notes = "none",
        gives_back: bool = False,
    ) -> None:
        self.limits = limits
        self.unheard: dict[StreamId, int] = {}  # streams without subscriptions, and in which era
        self.unheard_count = 0  # events of them
        self._fills = limits.policy == "streams"  # it is read until it is full
        self.gives_back = gives_back
        self.has_tried = False  # has a message come that was tried before?
        self._slots: OrderedDict[int, Slot] = OrderedDict()
        self._freed: dict[Slot, None] = {}  # held by nobody any more, and perhaps free to leave
        self.next_index = 0  # of the message that is appended next
        self._events = 0
        self._bytes = 0
        self._lanes: dict[StreamId, Lane] = {}
        self._newest = after
        self._notes = notes
        self._followers: Mapping[StreamId, Sequence[Follower]] = {}
        self._done: list[Token] = []
        self._disowned: set[Token] = set()  # held, and not to be acknowledged
        self.chained_events = self.chained_bytes = 0  # held by those who are behind
        # How often what they have done, or need, has changed. The record of a former owner counts:
        # its acknowledgement may be lost, and a full queue has no room until another one comes.
        self.moved = int(after is not None)
        self.left = 0  # messages that have left
        self._left_events = self.evicted = self._given_back = 0  # of these, in events

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
    def purged(self) -> int:
        """Events that have left as all of their subscriptions were done with them.

        Not `evicted`: those that somebody who is behind still needed; nor what was given back.
        """
        return self._left_events - self.evicted - self._given_back

    @property
    def oldest(self) -> QueueMessage | None:
        """The oldest message held; None while empty."""
        return self._slots[self.base].message if self._slots else None

    @property
    def oldest_s(self) -> float | None:
        """When the oldest message held was stored (wall clock); None while empty."""
        return self._slots[self.base].message.enqueued_s if self._slots else None

    def room(self) -> tuple[int, int]:
        """Events and bytes that may still be read; (0, 0) when full. Purge first."""
        limits = self.limits
        if not self._events:
            return limits.events_max if self._fills else limits.bucket_messages, limits.bytes_max
        events = limits.events_max - self._events - self.chained_events
        if not self._fills:
            events = min(events, self._bucket_room())
        size_bytes = limits.bytes_max - self._bytes - self.chained_bytes
        return (events, size_bytes) if events > 0 and size_bytes > 0 else (0, 0)

    def _bucket_room(self) -> int:
        """A bucket, while nine at most are begun from the oldest message that is held on."""
        bucket = self.limits.bucket_messages
        return bucket if self.span <= bucket * (BUCKETS - 1) else 0

    def fits(self, message: QueueMessage) -> bool:
        """Whether the message can be appended now; an empty cache takes one of any size."""
        if not self._events:
            return True
        events = self._events + self.chained_events + max(1, len(message.items))
        size_bytes = self._bytes + self.chained_bytes
        size_bytes += content_bytes(message.items, message.headers)
        return events <= self.limits.events_max and size_bytes <= self.limits.bytes_max

    def append(self, message: QueueMessage) -> int:
        """Add a message that `fits`; returns its absolute index.

        It is pinned once, for whoever routes it: `unpin` when each of its subscriptions has a
        cursor. A message without items is kept in order for its acknowledgement only.
        """
        slot = Slot(message, self.next_index, self._newest)
        self._slots[slot.index] = slot
        assert self._has_room(slot), f"{message.token} exceeds {self.room()}"
        self._newest = message.token
        if message.attempt > 1:
            self.has_tried = True
        self.next_index += 1
        self._events += slot.events
        self._bytes += slot.size_bytes
        if message.items:
            self._link(slot)
        if self._followers:
            for follower in self._followers.get(message.stream, ()):
                follower.arrived(slot)
        return slot.index

    def passes_by(self, message: QueueMessage) -> bool:
        """Does nobody hear the message? Then it is done, and takes no room. Else: False."""
        if self.unheard.get(message.stream) != message.token.era:
            return False
        self._newest = message.token
        self.unheard_count += len(message.items)
        self._left_events += max(1, len(message.items))
        self.moved += 1
        if self._notes != "none":
            self._done.append(message.token)
        return True

    def _has_room(self, slot: Slot) -> bool:
        """As `fits`, for a message that has been measured."""
        events = self._events + self.chained_events + slot.events
        size_bytes = self._bytes + self.chained_bytes + slot.size_bytes
        limits = self.limits
        return not self._events or (events <= limits.events_max and size_bytes <= limits.bytes_max)

    def follow(self, followers: Mapping[StreamId, Sequence[Follower]]) -> None:
        """Tell these of what comes, by stream; the mapping may change."""
        self._followers = followers

    @property
    def newest(self) -> Token | None:
        """The last message that came; nothing at or below it will come."""
        return self._newest

    def newest_of(self, stream: StreamId) -> Token | None:
        """The last message of a stream that is held."""
        lane = self._lanes.get(stream)
        return None if lane is None else lane.tail.message.token

    def is_crowded(self, stream: StreamId) -> bool:
        """Has the stream more than its share of a cache that fills?"""
        limits, lane = self.limits, self._lanes.get(stream)
        if lane is None or not self.is_half_full:
            return False
        return lane.events > limits.stream_events_max or lane.size_bytes > limits.stream_bytes_max

    def first_of(self, stream: StreamId) -> int:
        """The index of the oldest message of a stream that is held; -1: none is."""
        lane = self._lanes.get(stream)
        return -1 if lane is None else lane.head.index

    def slot(self, index: int) -> Slot:
        """A message that is held, by its index."""
        return self._slot(index)

    @property
    def is_half_full(self) -> bool:
        """Does it fill?"""
        limits = self.limits
        return (
            2 * (self._events + self.chained_events) >= limits.events_max
            or 2 * (self._bytes + self.chained_bytes) >= limits.bytes_max
        )

    @property
    def oldest_stream(self) -> StreamId | None:
        """The stream of the oldest message held; None while empty."""
        return self._slots[self.base].message.stream if self._slots else None

    @property
    def span(self) -> int:
        """Messages from the oldest that is held on."""
        return self.next_index - self.base

    def _count(self, lane: Lane | None, slot: Slot, sign: int) -> None:
        self._events += sign * slot.events
        self._bytes += sign * slot.size_bytes
        if lane is not None:
            lane.events += sign * slot.events
            lane.size_bytes += sign * slot.size_bytes

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
        """A cursor at the first item above `after`, from the message with absolute index `at` on.

        `at` is what `append` or `first_index` gave. Cost: O(messages that are not above `after`).
        """
        slot: Slot | None = self._slot(at)
        assert slot is not None and slot.message.stream == stream, f"{at} is not of {stream}"
        item = slot.first_item(after)
        while slot is not None and item >= len(slot.message.items):
            slot = slot.next
            item = 0 if slot is None else slot.first_item(after)
        return Cursor(self, stream, slot, item)

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
            self._drop(lane, slot)
            slot = slot.next
        if slot is None:
            del self._lanes[lane.tail.message.stream]
        else:
            lane.head = slot

    def _drop(self, lane: Lane | None, slot: Slot) -> None:
        assert not slot.pins and not slot.cursors, f"message {slot.index} is held"
        is_needed = bool(self._followers) and self._is_needed(slot.message)
        if is_needed:
            self.evicted += slot.events
        if self._notes != "none" and self._is_noted(slot, is_needed):
            self._done.append(slot.message.token)
        del self._slots[slot.index]
        self.left += 1
        self._left_events += slot.events
        self._count(lane, slot, -1)

    def _is_needed(self, message: QueueMessage) -> bool:
        """By somebody who is behind."""
        return any(one.needs(message.token) for one in self._followers.get(message.stream, ()))

    def _is_noted(self, slot: Slot, is_needed: bool) -> bool:
        """Is it acknowledged by itself: before older ones, or while some are behind?"""
        if slot.message.token in self._disowned:
            self._disowned.discard(slot.message.token)
            return False
        if not self._followers:
            return self._notes == "all" or slot.index != self.base
        return not is_needed

    def disown(self, tokens: Collection[Token]) -> None:
        """Somebody else may have these by now: done or not, they are not acknowledged here."""
        held = {slot.message.token for slot in self._slots.values()}
        self._disowned |= held.intersection(tokens)
        self._done = [token for token in self._done if token not in tokens]

    def note_done(self, stream: StreamId, token: Token) -> None:
        """No one who is behind needs a message any more."""
        lane = self._lanes.get(stream)
        is_held = lane is not None and lane.head.message.token <= token
        is_to_come = self._newest is None or token > self._newest  # it was read anew before
        if self._notes != "none" and not is_held and not is_to_come:
            self._done.append(token)

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

    def cut(self, stream: StreamId, upto: int) -> list[Token]:
        """Drop the messages of a stream behind an index, which nobody holds; returns them."""
        lane = self._lanes.get(stream)
        if lane is None:
            return []
        behind = [slot for slot in chain(lane) if slot.index > upto]
        kept = [slot for slot in chain(lane) if slot.index <= upto]
        for slot in behind:
            assert not slot.pins and not slot.cursors, f"{slot.message.token} is held"
            self._disowned.add(slot.message.token)
            self._given_back += slot.events
            self._drop(lane, slot)
        if kept:
            lane.tail, kept[-1].next = kept[-1], None
        else:
            del self._lanes[stream]
        return [slot.message.token for slot in behind]

    def forget(self, let_go: Callable[[], None]) -> None:
        """What is held is given again by the provider: that it leaves does not mean it is done.

        `let_go` makes everybody who holds something let go of it.
        """
        self.purge()
        done, self._done = self._done, []
        self._given_back += self._events
        let_go()
        self.purge()
        assert not self._slots, f"{len(self._slots)} messages are still held"
        self._newest, self._done = None, done

    def take_done(self) -> list[Token]:
        """The messages that have left since this was asked last, as far as they are noted."""
        done, self._done = self._done, []
        return done

    def moved_from(self, old: Slot | None, new: Slot | None) -> None:
        """A cursor goes from one message to another."""
        if old is not None:
            old.cursors -= 1
            if not old.cursors and not old.pins:
                self._freed[old] = None
        if new is not None:
            new.cursors += 1

    def check(self) -> None:
        """Assert the invariants. Cost: O(cache)."""
        slots = list(self._slots.values())
        assert self._events == sum(slot.events for slot in slots)
        assert self._bytes == sum(slot.size_bytes for slot in slots)
        for lane in self._lanes.values():
            held = list(chain(lane))
            assert lane.events == sum(slot.events for slot in held)
            assert lane.size_bytes == sum(slot.size_bytes for slot in held)
        indices = [slot.index for slot in slots]
        assert indices == list(self._slots) == sorted(indices)
        assert self.left + len(slots) == self.next_index
        assert self.purged >= 0
        assert len(slots) <= 1 or self._events <= self.limits.events_max
        assert len(slots) <= 1 or self._bytes <= self.limits.bytes_max
        chained = [slot.index for lane in self._lanes.values() for slot in chain(lane)]
        assert sorted(chained) == [slot.index for slot in slots if slot.is_linked]
        assert all(slot.pins >= 0 and slot.cursors >= 0 for slot in slots)
        heads = [lane.head for lane in self._lanes.values()]
        assert all(head.pins or head.cursors or head in self._freed for head in heads)


def _add_range(ranges: list[TokenRange], held: Token | None, last: Token | None) -> None:
    """The messages between one that is held and the end of what came behind it."""
    if held is not None and last is not None and last > held:
        ranges.append((Token(held.era, held.seq + 1), last))
