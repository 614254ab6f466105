"""The cache of one queue: the messages that were read and not yet finished by every subscription.

Owns the messages by stream, in order of arrival, and the position up to which everything is done.
`reading` decides when to read and acknowledge, and `delivery` when to deliver.

Invariants:

- The cache has at most `events_max` events and `bytes_max` bytes, except for one message that is
  alone in it.
- A message has an absolute index that never changes. Messages of a stream leave in their order,
  independently of other streams.
- A pin on a message also pins all later messages of its stream.
- A message leaves as soon as nothing pins it. A moving cursor pins the next message before it
  unpins the last one.
- A lagging cursor pins nothing here except its tail. Messages that were read again for it count
  towards the limits.

Each message is linked to the next one of its stream, so a cursor skips the messages of other
streams at no cost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol

from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.token import Token

from .lane import Lane, Slot, chain
from .limits import BUCKETS, CacheLimits

__all__ = ["Notes", "QueueCache"]

Notes = Literal["none", "out_of_turn", "all"]


class Follower(Protocol):
    """A lagging cursor, as the cache sees it."""

    def came(self, slot: Slot, /) -> None:
        """Handle a message of its stream that was appended."""
        ...

    def needs(self, token: Token, /) -> bool:
        """Say whether the cursor has not finished this message of its stream."""
        ...


class QueueCache:
    """The messages of one queue between reading and acknowledging.

    Args:
        after: the position from which the queue is read: no message at or below it will arrive.
        gives_back: whether single unfinished messages can be returned to the queue.
        notes: the messages that `take_done` returns: all that leave, those that leave before older
            ones, or none.
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
        self.unheard: dict[StreamId, int] = {}  # streams without subscriptions, each with its era
        self.unheard_count = 0  # the number of their events
        self._fills = limits.policy == "streams"  # False: with the policy of buckets
        self.gives_back = gives_back
        self.has_tried = False  # whether a message arrived that was tried before
        self._slots: OrderedDict[int, Slot] = OrderedDict()
        self.next_index = 0  # the index of the next message
        self._events = 0
        self._bytes = 0
        self._lanes: dict[StreamId, Lane] = {}
        self._newest = after
        self._notes = notes
        self.repeats_upto = -1  # index of the last message that a former owner may have delivered
        self.repeats_to: Token | None = None  # the last token that it can have; None: unknown
        self._followers: Mapping[StreamId, Sequence[Follower]] = {}
        self._done: list[Token] = []
        self._disowned: set[Token] = set()  # cached, and not to be acknowledged
        self.chained_events = self.chained_bytes = 0  # of messages that were read again
        # Counts changes after which more may be acknowledged, although no message has left. The
        # record of a former owner counts as one: its acknowledgement may be lost, and a full queue
        # has no room until another one arrives.
        self.moved = int(after is not None)
        self.left = 0  # the number of messages that have left
        self._left_events = self.evicted = self._given_back = 0  # events of these

    @property
    def base(self) -> int:
        """The absolute index of the oldest cached message: all before it are done."""
        return next(iter(self._slots)) if self._slots else self.next_index

    @property
    def events(self) -> int:
        """The number of cached events."""
        return self._events

    @property
    def size_bytes(self) -> int:
        """The number of cached bytes."""
        return self._bytes

    @property
    def purged(self) -> int:
        """The number of events that left because all their subscriptions had finished them.

        Events that a lagging cursor still needed count as `evicted`, and returned events do not
        count.
        """
        return self._left_events - self.evicted - self._given_back

    @property
    def oldest(self) -> QueueMessage | None:
        """The oldest cached message; None while empty."""
        return self._slots[self.base].message if self._slots else None

    @property
    def oldest_s(self) -> float | None:
        """The time when the oldest cached message was stored (wall clock); None while empty."""
        return self._slots[self.base].message.enqueued_s if self._slots else None

    def room(self) -> tuple[int, int]:
        """Return the events and bytes that may still be read; (0, 0) when full."""
        limits = self.limits
        if not self._events:
            return limits.events_max if self._fills else limits.bucket_messages, limits.bytes_max
        events = limits.events_max - self._events - self.chained_events
        if not self._fills:
            events = min(events, self._bucket_room())
        size_bytes = limits.bytes_max - self._bytes - self.chained_bytes
        return (events, size_bytes) if events > 0 and size_bytes > 0 else (0, 0)

    def _bucket_room(self) -> int:
        """Return the size of a bucket, if at most nine have begun since the oldest cached
        message."""
        bucket = self.limits.bucket_messages
        return bucket if self.span <= bucket * (BUCKETS - 1) else 0

    def append(self, message: QueueMessage) -> Slot | None:
        """Add a message.

        Return None if there is no room. An empty cache takes a message of any size.

        The message is pinned once for the caller, who must `release` it when each of its
        subscriptions has a cursor. A message without items stays in order only for its
        acknowledgement.
        """
        index, limits = self.next_index, self.limits
        slot = Slot(message, index, self._newest)
        if self._events and (
            self._events + self.chained_events + slot.events > limits.events_max
            or self._bytes + self.chained_bytes + slot.size_bytes > limits.bytes_max
        ):
            return None
        self._slots[index] = slot
        self._newest = message.token
        if message.attempt > 1:
            self.has_tried = True
        self.next_index = index + 1
        self._events += slot.events
        self._bytes += slot.size_bytes
        slot.holds = 1
        if message.items:
            self._link(slot)
            if self._followers:
                for follower in self._followers.get(message.stream, ()):
                    follower.came(slot)
        return slot

    def passes_by(self, message: QueueMessage) -> bool:
        """Finish a message at once if its stream has no subscriptions.

        False means that the message must be appended.
        """
        if self.unheard.get(message.stream) != message.token.era:
            return False
        self._newest = message.token
        self.unheard_count += len(message.items)
        self._left_events += max(1, len(message.items))
        self.moved += 1
        if self._notes != "none":
            self._done.append(message.token)
        return True

    def follow(self, followers: Mapping[StreamId, Sequence[Follower]]) -> None:
        """Report new messages to these followers, by stream; the mapping may change."""
        self._followers = followers

    @property
    def newest(self) -> Token | None:
        """The token of the last message that arrived, or None. Later messages are above it."""
        return self._newest

    def newest_of(self, stream: StreamId) -> Token | None:
        """Return the token of the last cached message of a stream, or None."""
        lane = self._lanes.get(stream)
        return None if lane is None else lane.tail.message.token

    def is_crowded(self, stream: StreamId) -> bool:
        """Say whether the stream has more than its share of a cache that is half full."""
        limits, lane = self.limits, self._lanes.get(stream)
        if lane is None or not self.is_half_full:
            return False
        return lane.events > limits.stream_events_max or lane.size_bytes > limits.stream_bytes_max

    def first_of(self, stream: StreamId) -> int:
        """Return the index of the oldest cached message of a stream; -1 if there is none."""
        lane = self._lanes.get(stream)
        return -1 if lane is None else lane.head.index

    @property
    def is_half_full(self) -> bool:
        """Whether the cache is at least half full."""
        limits = self.limits
        return (
            2 * (self._events + self.chained_events) >= limits.events_max
            or 2 * (self._bytes + self.chained_bytes) >= limits.bytes_max
        )

    @property
    def oldest_stream(self) -> StreamId | None:
        """The stream of the oldest cached message; None while empty."""
        return self._slots[self.base].message.stream if self._slots else None

    @property
    def span(self) -> int:
        """The number of messages since the oldest cached one."""
        return self.next_index - self.base

    def _link(self, slot: Slot) -> None:
        lane = self._lanes.get(slot.message.stream)
        if lane is None:
            lane = self._lanes[slot.message.stream] = Lane(slot, slot)
        else:
            lane.tail.next = slot
            lane.tail = slot
        slot.lane = lane
        lane.events += slot.events
        lane.size_bytes += slot.size_bytes

    def first_slot(self, stream: StreamId, after: Token | None) -> Slot | None:
        """Return the message where a subscription continues that has seen `after`; None if it is
        idle.

        If `after` is None, this is the oldest message of the stream. Cost: O(cached messages of the
        stream).
        """
        lane = self._lanes.get(stream)
        slot = None if lane is None else lane.head
        while slot is not None and slot.is_at_most(after):
            slot = slot.next
        return slot

    def release(self, slot: Slot) -> None:
        """Undo a pin, such as that of `append`. Amortised O(1)."""
        slot.holds -= 1
        assert slot.holds >= 0, f"message {slot.index} is not held"
        if slot.holds:
            return
        lane = slot.lane
        if lane is None:
            self._drop(slot)
        elif lane.head is slot:
            leading: Slot | None = slot
            while leading is not None and not leading.holds:
                self._drop(leading)
                leading = leading.next
            if leading is None:
                del self._lanes[slot.message.stream]
            else:
                lane.head = leading

    def _drop(self, slot: Slot) -> None:
        is_needed = bool(self._followers) and self._is_needed(slot.message)
        if is_needed:
            self.evicted += slot.events
        if self._notes != "none" and self._is_noted(slot, is_needed):
            self._done.append(slot.message.token)
        del self._slots[slot.index]
        self.left += 1
        events = slot.events
        self._left_events += events
        self._events -= events
        self._bytes -= slot.size_bytes
        lane = slot.lane
        if lane is not None:
            lane.events -= events
            lane.size_bytes -= slot.size_bytes

    def _is_needed(self, message: QueueMessage) -> bool:
        """Say whether a lagging cursor needs the message."""
        return any(one.needs(message.token) for one in self._followers.get(message.stream, ()))

    def _is_noted(self, slot: Slot, is_needed: bool) -> bool:
        """Whether a finished message is acknowledged by its own token.

        That is so if it is done before older ones, or while cursors lag.
        """
        if slot.message.token in self._disowned:
            self._disowned.discard(slot.message.token)
            return False
        if not self._followers:
            return self._notes == "all" or slot.index != next(iter(self._slots))
        return not is_needed

    def disown(self, tokens: Collection[Token]) -> None:
        """Never acknowledge these messages here: another silo may have them by now."""
        held = {slot.message.token for slot in self._slots.values()}
        self._disowned |= held.intersection(tokens)
        self._done = [token for token in self._done if token not in tokens]

    def note_passed(self, message: QueueMessage) -> None:
        """Handle a message that was read again and leaves: it is done unless a lagging cursor needs
        it."""
        self.moved += 1
        if self._notes == "none" or self._is_needed(message):
            return
        stream, token = message.stream, message.token
        lane = self._lanes.get(stream)
        is_held = lane is not None and lane.head.message.token <= token
        is_to_come = self._newest is None or token > self._newest  # read again before it arrived
        if not is_held and not is_to_come:
            self._done.append(token)

    def find_acked(self) -> Token | None:
        """Return the message up to which all messages are done, in order of arrival, or None if
        that is unknown."""
        return self._slots[self.base].before if self._slots else self._newest

    def cut(self, stream: StreamId, upto: int, let_go: Callable[[], None]) -> list[Token]:
        """Give the messages of a stream after the index `upto` back to the queue: remove them from
        the cache, and return their tokens.

        `let_go` makes every cursor after that index unpin its message.
        """
        lane = self._lanes.get(stream)
        given = [] if lane is None else [slot for slot in chain(lane) if slot.index > upto]
        self._disowned.update(slot.message.token for slot in given)
        self._given_back += sum(slot.events for slot in given)
        let_go()
        if lane is None or self._lanes.get(stream) is not lane:
            return [slot.message.token for slot in given]
        kept = [slot for slot in chain(lane) if slot.index <= upto]
        for slot in chain(lane):
            if slot.index > upto:
                assert not slot.holds, f"{slot.message.token} is held"
                self._drop(slot)
        lane.tail, kept[-1].next = kept[-1], None
        return [slot.message.token for slot in given]

    def forget(self, let_go: Callable[[], None]) -> None:
        """Drop all messages: the provider delivers them again, so leaving does not mean done.

        `let_go` makes every cursor unpin its message.
        """
        done, self._done = self._done, []
        self._given_back += self._events
        let_go()
        assert not self._slots, f"{len(self._slots)} messages are still held"
        self._newest, self._done = None, done

    def take_done(self) -> list[Token]:
        """Return the messages that have left since the last call, if they are noted."""
        done, self._done = self._done, []
        return done

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
        assert sorted(chained) == [slot.index for slot in slots if slot.lane is not None]
        assert all(slot.holds > 0 for slot in slots if slot.lane is None)
        assert all(lane.head.holds > 0 for lane in self._lanes.values())
