"""Filters: conjunctions of metadata pairs, and how the messages that fit one are found.

Owns: the index of all pending messages, and those of the shapes (sets of keys) that the settings
name; their counts by state. Not: what a held value is (`grouped`).
Ideas: spec/queues.md C6 and C9.
Costs, with n pending messages and s shapes that a message fits: entering and leaving O(s log n); a
filter whose keys are a shape, O(log n); any other filter looks at the pending messages of the
smallest index that has all that fit, at most `SCAN_MAX`. A filter that would look at more than
`LEARN_MIN` gets a shape of its own (a learned shape), while there are fewer than `SHAPES_MAX`.
Invariants: a shape that is being built has the messages up to `looked` and those after `last`, and
is not used to find any until it has all; a learned shape is not stored.
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
"""A filter that looks at more messages than this gets a shape."""
SCAN_MAX = 20_000
"""Messages that one operation looks at for a filter, some 50 ms."""
BUILD_STEPS = 4_096
"""Messages that an operation looks at to build the shape that its filter waits for."""

Index = PlainIndex | GroupedIndex
Values = tuple[str, ...]


class Readiness(Enum):
    """Can a filter be answered at once?"""

    READY = "ready"
    BUILDING = "building"  # its shape is being built: ask again
    REFUSED = "refused"  # too many messages to look at, and no room for one more shape


class MessageSource(Protocol):
    """Where a step takes messages from, the most urgent first."""

    def first(self, skipped: Set[str] = NO_VALUES) -> Message | None: ...
    def restore_skipped(self) -> None: ...
    def iter_ordered(self) -> Iterator[Message]: ...


class Shape:
    """The indexes of one set of keys, by the values of these."""

    __slots__ = ("counts", "indexes", "keys", "last", "looked", "todo")

    def __init__(self, keys: tuple[str, ...], messages: dict[int, Message]) -> None:
        self.keys = keys
        self.indexes: dict[Values, Index] = {}
        self.counts: dict[Values, list[int]] = {}  # messages by state
        self.todo = list(reversed(messages))
        self.looked = 0
        self.last = self.todo[0] if self.todo else 0

    def values_of(self, message: Message) -> Values | None:
        """The values of its keys; None: it has not all keys, or its turn has not come."""
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
    """The index of all pending messages, and those of the shapes."""

    __slots__ = ("all", "holds", "learned", "messages", "shapes")

    def __init__(self, messages: dict[int, Message], holds: Holds | None) -> None:
        self.messages = messages  # by sequence
        self.holds = holds  # None: the queue is simple
        self.all: Index = self._new_index()
        self.shapes: dict[tuple[str, ...], Shape] = {}
        self.learned: dict[tuple[str, ...], None] = {}  # the oldest first

    def _new_index(self) -> Index:
        if self.holds is None:
            return PlainIndex(self.messages)
        return GroupedIndex(self.messages, self.holds)

    def add(self, message: Message) -> None:
        """It is pending now."""
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
        """It had the key, and is no longer pending, or has another key by now."""
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
        """It went from one state to another; None: before its life, or after it."""
        for shape in self.shapes.values():
            values = shape.values_of(message)
            if values is not None:
                shape.count(values, source, target)

    def prepare(self, wanted: Metadata) -> Readiness:
        """Make ready what finds the pending messages with all these pairs, as far as one step
        does."""
        near = self.near(wanted)
        return Readiness.READY if near is None else self._prepare(wanted, near.live)

    def prepare_counts(self, wanted: Metadata) -> Readiness:
        """The same for the counts of messages with all these pairs, in any state."""
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
        """Where the messages that have all these pairs are taken from; `prepare` comes before."""
        if not wanted:
            return self.all
        shape = self.shapes.get(tuple([key for key, _ in wanted]))
        if shape is None or shape.todo:
            return Scan(self, wanted)
        index = shape.indexes.get(tuple([value for _, value in wanted]))
        return index if index is not None else NOTHING

    def counts(self, wanted: Metadata) -> list[int] | None:
        """How many messages with these pairs are in each state; None: nobody counted."""
        shape = self.shapes.get(tuple([key for key, _ in wanted]))
        if shape is None or shape.todo:
            return None
        return shape.counts.get(tuple([value for _, value in wanted]), [0] * len(State))

    def metadata_of(self, value: str, wanted: Collection[Metadata]) -> set[Metadata]:
        """Of the pending messages of an exclusivity value: the pairs of one, and of as many others
        as tell whom they help of those who want these pairs."""
        assert isinstance(self.all, GroupedIndex), "values are of exclusive queues"
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
        """The smallest index that has all that fit; None: nothing fits."""
        pairs, best = dict(wanted), self.all
        for shape in self.shapes.values():
            if not shape.todo and all(key in pairs for key in shape.keys):
                index = shape.indexes.get(tuple([pairs[key] for key in shape.keys]))
                if index is None:
                    return None
                best = min(best, index, key=lambda one: one.live)
        return best

    def set_shapes(self, shapes: tuple[tuple[str, ...], ...]) -> None:
        """Forget the shapes that are not named, but keep as many of the learned ones as there is
        room for; begin those that are new (`build` makes them)."""
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
        return any(shape.todo for shape in self.shapes.values())

    def build(self, steps: int) -> int:
        """Look at so many messages for shapes that are not whole yet; how many it were."""
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
    """The messages that fit a filter without a shape, found by looking at all that could."""

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
        """Nothing to restore: the scan ends with the step."""

    def iter_ordered(self) -> Iterator[Message]:
        seen: set[str] = set()
        while (message := self.first(seen)) is not None:
            if message.value is not None:
                seen.add(message.value)
            heappop(self.heap)
            yield message


class Nothing:
    """No pending message fits."""

    __slots__ = ()

    def first(self, skipped: Set[str] = NO_VALUES) -> Message | None:
        return None

    def restore_skipped(self) -> None:
        """Nothing was skipped."""

    def iter_ordered(self) -> Iterator[Message]:
        return iter(())


NOTHING = Nothing()
