"""Filters: sets of metadata pairs, and the indexes that find the messages that have all of them.

Owns the index of all pending messages, the indexes of shapes, and the counts of messages by state.
A shape is a set of metadata keys. The settings of the queue name some shapes, and filters add
learned shapes. `grouped` has the exclusivity values that are leased.

With n pending messages and s shapes, adding or removing a message costs O(s log n). A
filter whose keys are a shape costs O(log n). Any other filter checks the pending messages of the
smallest index that contains all candidates, at most `SCAN_MAX`. A filter that would check more than
`LEARN_MIN` messages gets a shape of its own (a learned shape) while there are fewer than
`SHAPES_MAX`.

Invariants: a shape under construction contains the messages up to `looked` and those after `last`,
and is not used until it is complete. A learned shape is not stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from enum import Enum
from heapq import heapify, heappop
from typing import Protocol

from millstream.providers.priority.core.message import (
    PENDING,
    SEQUENCE_MASK,
    Message,
    Metadata,
    State,
)
from millstream.providers.priority.core.settings import SHAPES_MAX

from .grouped import GroupedIndex, Holds
from .plain import NO_VALUES, PlainIndex

__all__ = ["SCAN_MAX", "Filters", "MessageSource", "Readiness"]

LEARN_MIN = 1_000
"""A filter that checks more messages than this gets a shape."""
SCAN_MAX = 20_000
"""Maximum number of messages that one operation checks for a filter, about 50 ms."""
BUILD_STEPS = 4_096
"""Messages that an operation adds to the shape for which its filter waits."""

Index = PlainIndex | GroupedIndex
Values = tuple[str, ...]


class Readiness(Enum):
    """Whether a filter can be answered at once."""

    READY = "ready"
    BUILDING = "building"  # its shape is under construction: ask again
    REFUSED = "refused"  # too many messages to check, and no room for another shape


class MessageSource(Protocol):
    """A source of messages, the most urgent first."""

    def first(self, skipped: Set[str] = NO_VALUES) -> Message | None: ...
    def restore_skipped(self) -> None: ...
    def iter_ordered(self) -> Iterator[Message]: ...


class Shape:
    """The indexes of one set of keys, by the values of the keys."""

    __slots__ = ("counts", "indexes", "keys", "last", "looked", "todo")

    def __init__(self, keys: tuple[str, ...], messages: dict[int, Message]) -> None:
        self.keys = keys
        self.indexes: dict[Values, Index] = {}
        self.counts: dict[Values, list[int]] = {}  # numbers of messages by state
        self.todo = list(reversed(messages))
        self.looked = 0
        self.last = self.todo[0] if self.todo else 0

    def values_of(self, message: Message) -> Values | None:
        """The message's values of the keys; None if a key is missing or the message is not added
        yet."""
        if self.todo and self.looked < message.key & SEQUENCE_MASK <= self.last:
            return None
        pairs = dict(message.metadata)
        try:
            return tuple([pairs[key] for key in self.keys])
        except KeyError:
            return None

    def count(self, values: Values, source: State | None, target: State | None) -> None:
        counts = self.counts.setdefault(values, [0] * len(State))
        if source is not None:
            counts[source] -= 1
        if target is not None:
            counts[target] += 1
        elif not any(counts):
            del self.counts[values]


class Filters:
    """The index of all pending messages, and the indexes of the shapes."""

    __slots__ = ("all", "holds", "learned", "messages", "shapes")

    def __init__(self, messages: dict[int, Message], holds: Holds | None) -> None:
        self.messages = messages  # by sequence
        self.holds = holds  # None in a simple queue
        self.all: Index = self._new_index()
        self.shapes: dict[tuple[str, ...], Shape] = {}
        self.learned: dict[tuple[str, ...], None] = {}  # the oldest first

    def _new_index(self) -> Index:
        if self.holds is None:
            return PlainIndex(self.messages)
        return GroupedIndex(self.messages, self.holds)

    def add(self, message: Message) -> None:
        """Add a message that became pending."""
        self.all.add(message)
        for shape in self.shapes.values():
            self._add_to(shape, message)

    def _add_to(self, shape: Shape, message: Message) -> None:
        values = shape.values_of(message)
        if values is not None:
            index = shape.indexes.get(values)
            if index is None:
                index = shape.indexes[values] = self._new_index()
            index.add(message)

    def remove(self, key: int, message: Message) -> None:
        """Remove a message that had this key, and is no longer pending or has another key."""
        self.all.remove(key, message)
        if not self.shapes:
            return
        for shape in self.shapes.values():
            values = shape.values_of(message)
            if values is not None:
                index = shape.indexes[values]
                index.remove(key, message)
                if not index.live:
                    del shape.indexes[values]

    def count(self, message: Message, source: State | None, target: State | None) -> None:
        """Count a message in another state; None stands for the time before and after its life."""
        for shape in self.shapes.values():
            values = shape.values_of(message)
            if values is not None:
                shape.count(values, source, target)

    def prepare(self, wanted: Metadata) -> Readiness:
        """Prepare to find pending messages with these pairs, as far as one step can."""
        near = self.near(wanted)
        return Readiness.READY if near is None else self._prepare(wanted, near.live)

    def prepare_counts(self, wanted: Metadata) -> Readiness:
        """Prepare to count messages with these pairs in any state."""
        return self._prepare(wanted, len(self.messages))

    def _prepare(self, wanted: Metadata, scanned: int) -> Readiness:
        keys = tuple([key for key, _ in wanted])
        shape = self.shapes.get(keys)
        if shape is None and scanned > LEARN_MIN and len(self.shapes) < SHAPES_MAX:
            shape = self.shapes[keys] = Shape(keys, self.messages)
            self.learned[keys] = None
        if scanned <= SCAN_MAX:
            return Readiness.READY
        if shape is None:
            return Readiness.REFUSED
        for _ in range(min(BUILD_STEPS, len(shape.todo))):
            self._build_step(shape)
        return Readiness.BUILDING if shape.todo else Readiness.READY

    def source(self, wanted: Metadata) -> MessageSource:
        """The source of messages that have all these pairs; call `prepare` first."""
        if not wanted:
            return self.all
        shape = self.shapes.get(tuple([key for key, _ in wanted]))
        if shape is None or shape.todo:
            return Scan(self, wanted)
        index = shape.indexes.get(tuple([value for _, value in wanted]))
        return index if index is not None else NOTHING

    def counts(self, wanted: Metadata) -> list[int] | None:
        """The number of messages with these pairs in each state; None if there is no complete
        shape.
        """
        shape = self.shapes.get(tuple([key for key, _ in wanted]))
        if shape is None or shape.todo:
            return None
        return shape.counts.get(tuple([value for _, value in wanted]), [0] * len(State))

    def metadata_of(self, value: str, wanted: Collection[Metadata]) -> set[Metadata]:
        """The pairs of one pending message of an exclusivity value, and enough others to decide
        which of the `wanted` filters its messages help.
        """
        assert isinstance(self.all, GroupedIndex), "only exclusive queues have values"
        found = self.all.metadata_of(value, is_each=False)
        if not found:
            return found
        for one in filter(None, wanted):
            if not self._has_index(one):
                return self.all.metadata_of(value, is_each=True)
            source = self.source(one)
            if isinstance(source, GroupedIndex) and value in source.groups:
                found.add(one)
        return found

    def _has_index(self, wanted: Metadata) -> bool:
        shape = self.shapes.get(tuple([key for key, _ in wanted]))
        return shape is not None and not shape.todo

    def near(self, wanted: Metadata) -> Index | None:
        """The smallest index that contains all candidates; None if no message fits."""
        pairs, best = dict(wanted), self.all
        for shape in self.shapes.values():
            if not shape.todo and all(key in pairs for key in shape.keys):
                index = shape.indexes.get(tuple([pairs[key] for key in shape.keys]))
                if index is None:
                    return None
                best = min(best, index, key=lambda one: one.live)
        return best

    def set_shapes(self, shapes: tuple[tuple[str, ...], ...]) -> None:
        """Replace the shapes that the settings of the queue name.

        Learned shapes are kept, the newest first, while there are at most `SHAPES_MAX` shapes in
        all. `build` fills the new shapes with messages.
        """
        room = SHAPES_MAX - len(shapes)
        extra = [keys for keys in self.learned if keys not in shapes]
        self.learned = dict.fromkeys(extra[max(len(extra) - room, 0) :])
        for keys in [keys for keys in self.shapes if keys not in (*shapes, *self.learned)]:
            self._drop(self.shapes.pop(keys))
        for keys in shapes:
            if keys not in self.shapes:
                self.shapes[keys] = Shape(keys, self.messages)

    def _drop(self, shape: Shape) -> None:
        if self.holds is not None:
            for index in shape.indexes.values():
                if isinstance(index, GroupedIndex):
                    index.forget_parked()

    @property
    def is_building(self) -> bool:
        """Whether a shape is incomplete."""
        return any(shape.todo for shape in self.shapes.values())

    def build(self, steps: int) -> int:
        """Add this number of messages to incomplete shapes at most, and return their number."""
        done = 0
        for shape in self.shapes.values():
            while shape.todo and done < steps:
                self._build_step(shape)
                done += 1
        return done

    def _build_step(self, shape: Shape) -> None:
        sequence = shape.looked = shape.todo[-1]
        message = self.messages.get(sequence)
        if message is not None:
            values = shape.values_of(message)
            if values is not None:
                shape.count(values, None, message.state)
                if message.state is PENDING:
                    self._add_to(shape, message)
        shape.todo.pop()

    def check(self) -> None:
        self.all.check()
        for shape in self.shapes.values():
            for index in shape.indexes.values():
                assert index.live
                index.check()


class Scan:
    """The messages that fit a filter without a shape, found by checking all candidates."""

    __slots__ = ("filters", "heap")

    def __init__(self, filters: Filters, wanted: Metadata) -> None:
        self.filters = filters
        near = filters.near(wanted)
        pairs = set(wanted)
        messages = filters.messages
        keys = set(near.pending()) if near is not None else set()
        self.heap = [k for k in keys if pairs.issubset(messages[k & SEQUENCE_MASK].metadata)]
        heapify(self.heap)

    def first(self, skipped: Set[str] = NO_VALUES) -> Message | None:
        holds, messages = self.filters.holds, self.filters.messages
        while self.heap:
            message = messages[self.heap[0] & SEQUENCE_MASK]
            value = message.value
            if message.state is PENDING and (
                holds is None
                or value is None
                or (value not in skipped and not holds.is_blocked(value))
            ):
                return message
            heappop(self.heap)
        return None

    def restore_skipped(self) -> None:
        """Do nothing: the scan ends with the step."""

    def iter_ordered(self) -> Iterator[Message]:
        seen: set[str] = set()
        while (message := self.first(seen)) is not None:
            if message.value is not None:
                seen.add(message.value)
            heappop(self.heap)
            yield message


class Nothing:
    """The source of a filter that no pending message fits."""

    __slots__ = ()

    def first(self, skipped: Set[str] = NO_VALUES) -> Message | None:
        return None

    def restore_skipped(self) -> None:
        """Do nothing: no message was skipped."""

    def iter_ordered(self) -> Iterator[Message]:
        return iter(())


NOTHING = Nothing()
