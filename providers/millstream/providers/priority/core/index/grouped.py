"""The pending messages of an exclusive queue or one of its filters, by exclusivity value.

The most urgent message of a group is its head. A head whose value is held is *parked*: it leaves
the order until the value is free. Therefore polls meet it only once.

Invariants:

- The head of a group is its most urgent message and is in `ready`, or else the group is parked.
- Only groups of values that are held `limit` times are parked.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from heapq import heapify, heappop, heappush
from itertools import islice

from millstream.providers.priority.core.message import PENDING, SEQUENCE_MASK, Message, Metadata

from .plain import DEAD_MIN, NO_VALUES, in_order

__all__ = ["GroupedIndex", "Holds"]


class Holds:
    """The number of leases of each value, and the indexes in which its group is parked.

    `parkings` counts all parkings, and `parkings_left` limits those of one step.
    """

    __slots__ = ("counts", "limit", "parked", "parkings", "parkings_left")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.counts: dict[str, int] = {}
        self.parked: dict[str, dict[GroupedIndex, None]] = {}
        self.parkings = 0
        self.parkings_left = 0

    def is_blocked(self, value: str) -> bool:
        """Whether all leases of the value are in use."""
        return self.counts.get(value, 0) >= self.limit

    def hold(self, value: str) -> None:
        self.counts[value] = self.counts.get(value, 0) + 1

    def release(self, value: str) -> None:
        count = self.counts[value] - 1
        if count:
            self.counts[value] = count
        else:
            del self.counts[value]
        if count < self.limit:
            self._unpark(value)

    def _unpark(self, value: str) -> None:
        for index in self.parked.pop(value, ()):
            index.unpark(value)

    def set_limit(self, limit: int) -> None:
        self.limit = limit
        for value in [value for value in self.parked if not self.is_blocked(value)]:
            self._unpark(value)

    def park(self, value: str, index: GroupedIndex) -> None:
        self.parkings += 1
        self.parkings_left -= 1
        self.parked.setdefault(value, {})[index] = None

    def forget(self, value: str, index: GroupedIndex) -> None:
        """Record that the index has no message of the value."""
        indexes = self.parked[value]
        del indexes[index]
        if not indexes:
            del self.parked[value]


class ValueGroup:
    """Pending messages of one value in one index. `head` is None while the group is parked."""

    __slots__ = ("dead", "head", "heap", "is_parked", "live")

    def __init__(self) -> None:
        self.heap: list[int] = []
        self.live = self.dead = 0
        self.head: int | None = None
        self.is_parked = False


class GroupedIndex:
    """Pending messages by value, and the heads of the groups in order."""

    __slots__ = ("dead", "groups", "holds", "live", "messages", "ready", "skipped")

    def __init__(self, messages: dict[int, Message], holds: Holds) -> None:
        self.messages = messages  # by sequence
        self.holds = holds
        self.groups: dict[str, ValueGroup] = {}
        self.ready: list[int] = []  # keys of heads, and `dead` keys of former heads
        self.live = self.dead = 0
        self.skipped: list[int] = []

    def add(self, message: Message) -> None:
        value, key = value_of(message), message.key
        group = self.groups.get(value)
        if group is None:
            group = self.groups[value] = ValueGroup()
        heappush(group.heap, key)
        group.live += 1
        self.live += 1
        if group.head is None:
            if not group.is_parked:
                self._place(value, group, key)
        elif key < group.head:
            self.dead += 1
            self._lead(group, key)

    def _place(self, value: str, group: ValueGroup, key: int) -> None:
        """Order a group that has a new most urgent message, or park it if its value is held."""
        if self.holds.is_blocked(value):
            self._park(value, group)
        else:
            self._lead(group, key)

    def _lead(self, group: ValueGroup, key: int) -> None:
        group.head = key
        heappush(self.ready, key)
        if self.dead > DEAD_MIN and self.dead > len(self.groups):
            self.ready = [group.head for group in self.groups.values() if group.head is not None]
            heapify(self.ready)
            self.dead = 0
            self.skipped.clear()  # they are in order again

    def _park(self, value: str, group: ValueGroup) -> None:
        group.head = None
        group.is_parked = True
        self.holds.park(value, self)

    def unpark(self, value: str) -> None:
        group = self.groups[value]
        group.is_parked = False
        self._lead(group, self._least(group))

    def remove(self, key: int, message: Message) -> None:
        """Remove a message that is no longer pending or has another key."""
        value = value_of(message)
        group = self.groups[value]
        self.live -= 1
        group.live -= 1
        was_head = group.head == key
        if was_head:
            self._drop_head(key)
        if not group.live:
            self._drop_group(value, group)
            return
        self._drop_key(group, key)
        if was_head:
            self._place(value, group, self._least(group))

    def _drop_head(self, key: int) -> None:
        if self.ready[0] == key:
            heappop(self.ready)
        else:
            self.dead += 1

    def _drop_group(self, value: str, group: ValueGroup) -> None:
        del self.groups[value]
        if group.is_parked:
            self.holds.forget(value, self)

    def _drop_key(self, group: ValueGroup, key: int) -> None:
        if group.heap[0] == key:
            heappop(group.heap)
            return
        group.dead += 1
        if group.dead > DEAD_MIN and group.dead > group.live:
            group.heap = list(set(filter(self.is_pending, group.heap)))
            heapify(group.heap)
            group.dead = 0

    def _least(self, group: ValueGroup) -> int:
        while not self.is_pending(group.heap[0]):
            heappop(group.heap)
            group.dead -= 1
        return group.heap[0]

    def first(self, skipped: Set[str] = NO_VALUES) -> Message | None:
        """The most urgent message whose value is free and not skipped.

        It stays until it is removed. Also None if the parkings of this step are used up
        (`Holds.parkings_left`).
        """
        holds, ready = self.holds, self.ready
        while ready:
            key = ready[0]
            message = self.messages.get(key & SEQUENCE_MASK)
            group = self._find_led(key, message)
            if message is None or group is None:
                heappop(ready)
                self.dead -= 1
            elif value_of(message) in skipped:
                self.skipped.append(heappop(ready))
            elif not holds.is_blocked(value_of(message)):
                return message
            elif holds.parkings_left <= 0:
                return None
            else:
                heappop(ready)
                self._park(value_of(message), group)
        return None

    def _find_led(self, key: int, message: Message | None) -> ValueGroup | None:
        group = self.groups.get(value_of(message)) if message is not None else None
        return group if group is not None and group.head == key else None

    def restore_skipped(self) -> None:
        """Put skipped messages back into the order at the end of a step."""
        while self.skipped:
            heappush(self.ready, self.skipped.pop())

    def forget_parked(self) -> None:
        """Remove the index from all holds, because it is dropped."""
        for value, group in self.groups.items():
            if group.is_parked:
                self.holds.forget(value, self)

    def is_pending(self, key: int) -> bool:
        message = self.messages.get(key & SEQUENCE_MASK)
        return message is not None and message.key == key and message.state is PENDING

    def pending(self) -> Iterator[int]:
        """Keys of all messages whose values are free, without order; a key may occur twice."""
        for value, group in self.groups.items():
            if not self.holds.is_blocked(value):
                yield from filter(self.is_pending, group.heap)

    def metadata_of(self, value: str, is_each: bool) -> set[Metadata]:
        """The distinct pairs of the pending messages of a value; with `is_each` False, of one
        message only.
        """
        group = self.groups.get(value)
        if group is None:
            return set()
        keys = islice(filter(self.is_pending, group.heap), None if is_each else 1)
        return {self.messages[key & SEQUENCE_MASK].metadata for key in keys}

    def iter_ordered(self) -> Iterator[Message]:
        """The messages that `first` would return, one for each value. Nothing changes."""
        last = None
        for key in in_order(self.ready):
            message = self.messages.get(key & SEQUENCE_MASK)
            is_head = key != last and self._find_led(key, message) is not None
            if is_head and message is not None and not self.holds.is_blocked(value_of(message)):
                yield message
            last = key

    def check(self) -> None:
        assert not self.skipped
        assert self.live == sum(group.live for group in self.groups.values())
        heads = [group.head for group in self.groups.values() if group.head is not None]
        assert set(heads) <= set(self.ready)
        assert len(self.ready) == len(heads) + self.dead
        for value, group in self.groups.items():
            self._check_group(value, group)

    def _check_group(self, value: str, group: ValueGroup) -> None:
        keys = set(filter(self.is_pending, group.heap))
        assert group.live == len(keys) > 0
        assert len(group.heap) == group.live + group.dead
        assert (group.head is None) is group.is_parked
        assert group.is_parked is (self in self.holds.parked.get(value, ()))
        if group.is_parked:
            assert self.holds.is_blocked(value), f"{value} is parked, but not blocked"
        else:
            assert group.head == min(keys)


def value_of(message: Message) -> str:
    assert message.value is not None, f"message {message.id} has no exclusivity value"
    return message.value
