"""The pending messages of a simple queue, or of one of its filters, in order.

Invariant: the heap has a key for every pending message that was added. Dead keys are dropped when
they reach the top, or all at once when they outnumber the live ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from heapq import heapify, heappop, heappush

from millstream.providers.priority.core.message import PENDING, SEQUENCE_MASK, Message

__all__ = ["PlainIndex", "in_order"]

DEAD_MIN = 64
NO_VALUES: Set[str] = frozenset()


class PlainIndex:
    """Pending messages, ordered by their keys alone."""

    __slots__ = ("dead", "heap", "live", "messages")

    def __init__(self, messages: dict[int, Message]) -> None:
        self.messages = messages  # by sequence
        self.heap: list[int] = []
        self.live = self.dead = 0

    def add(self, message: Message) -> None:
        self.live += 1
        heappush(self.heap, message.key)

    def remove(self, key: int, message: Message) -> None:
        """Remove a message that is no longer pending or has another key."""
        self.live -= 1
        if self.heap[0] == key:
            heappop(self.heap)
            return
        self.dead += 1
        if self.dead > DEAD_MIN and self.dead > self.live:
            self.heap = list(set(self.pending()))
            heapify(self.heap)
            self.dead = 0

    def first(self, skipped: Set[str] = NO_VALUES) -> Message | None:
        """Return the most urgent pending message, or None. The message stays in the index.

        `skipped` has no effect here, because the messages of a simple queue have no exclusivity
        values.
        """
        heap, messages = self.heap, self.messages
        while heap:
            key = heap[0]
            message = messages.get(key & SEQUENCE_MASK)
            if message is not None and message.key == key and message.state is PENDING:
                return message
            heappop(heap)
            self.dead -= 1
        return None

    def restore_skipped(self) -> None:
        """Do nothing: messages of a simple queue have no values."""

    def is_pending(self, key: int) -> bool:
        message = self.messages.get(key & SEQUENCE_MASK)
        return message is not None and message.key == key and message.state is PENDING

    def pending(self) -> Iterator[int]:
        """Keys of all available messages, without order; a key may occur twice."""
        return filter(self.is_pending, self.heap)

    def iter_ordered(self) -> Iterator[Message]:
        """The messages that `first` would return, one after the other. Nothing changes."""
        last = None
        for key in in_order(self.heap):
            if key != last and self.is_pending(key):
                yield self.messages[key & SEQUENCE_MASK]
            last = key

    def check(self) -> None:
        keys = set(self.pending())
        assert len(keys) == self.live, f"{len(keys)} pending, {self.live} counted"
        assert len(self.heap) == self.live + self.dead


def in_order(heap: list[int]) -> Iterator[int]:
    """The entries of a heap in order, without changing it: O(log n) each."""
    ahead = [(heap[0], 0)] if heap else []
    while ahead:
        entry, place = heappop(ahead)
        yield entry
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heappush(ahead, (heap[child], child))
