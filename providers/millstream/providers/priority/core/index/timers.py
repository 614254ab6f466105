"""The due times of messages, ordered by time and then by sequence.

Invariants: a message has at most one valid entry, `Message.timer`. Invalid entries are dropped when
they reach the top, or all at once when they outnumber the valid ones.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from millstream.providers.priority.core.message import (
    COMPLETED,
    SEQUENCE_BITS,
    SEQUENCE_MASK,
    Message,
)

__all__ = ["Timers"]

DEAD_MIN = 64


class Timers:
    """The timers of finished messages, or those of unfinished ones."""

    __slots__ = ("dead", "heap", "is_of_finished", "messages")

    def __init__(self, messages: dict[int, Message], is_of_finished: bool) -> None:
        self.messages = messages  # by sequence
        self.is_of_finished = is_of_finished
        self.heap: list[int] = []  # time and sequence, packed into one number
        self.dead = 0

    def set(self, message: Message, due_ms: int) -> None:
        message.due_ms = due_ms
        message.timer = entry = (due_ms << SEQUENCE_BITS) | (message.key & SEQUENCE_MASK)
        heappush(self.heap, entry)

    def clear(self, message: Message) -> None:
        entry = message.timer
        message.due_ms = message.timer = 0
        if self.heap[0] == entry:
            heappop(self.heap)
            return
        self.dead += 1
        if self.dead > DEAD_MIN and self.dead * 2 > len(self.heap):
            self._rebuild()

    def _rebuild(self) -> None:
        self.heap = list({entry for entry in self.heap if self._valid(entry) is not None})
        heapify(self.heap)
        self.dead = 0

    def _valid(self, entry: int) -> Message | None:
        message = self.messages.get(entry & SEQUENCE_MASK)
        if message is None or message.timer != entry:
            return None
        return message if (message.state >= COMPLETED) is self.is_of_finished else None

    def next_due_ms(self) -> int | None:
        """The time of the next due message; None if there is none."""
        heap = self.heap
        while heap:
            if self._valid(heap[0]) is not None:
                return heap[0] >> SEQUENCE_BITS
            heappop(heap)
            self.dead -= 1
        return None

    def due(self, now_ms: int) -> Message | None:
        """The first message that is due, or None. It stays until its timer is cleared."""
        next_ms = self.next_due_ms()
        if next_ms is None or next_ms > now_ms:
            return None
        return self.messages[self.heap[0] & SEQUENCE_MASK]

    def check(self) -> None:
        """Assert the invariants: O(n)."""
        valid = {entry for entry in self.heap if self._valid(entry) is not None}
        wanted = [one for one in self.messages.values() if one.is_finished is self.is_of_finished]
        assert valid == {message.timer for message in wanted if message.timer}
        assert len(self.heap) == len(valid) + self.dead
