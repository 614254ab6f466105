"""The items of one generator that its consumer has not received yet. Pure.

Items leave in numbered batches, and the consumer asks for batches by number. Asking again for the
last number repeats the last batch, because its answer may have been lost. Asking for the next
number shows that the last batch has arrived, and drops it.

Invariants:

- The waiting items never exceed one batch: `items_max` items and `bytes_max` bytes, or one item
  that is larger.
- Each item is in exactly one batch, and the batches have the order of the items.
"""

from __future__ import annotations

from millstream.runtime.errors import ResultsAborted

__all__ = ["ResultBuffer"]


class ResultBuffer:
    """The waiting items and the last batch of one generator.

    Args:
        items_max: the most items of a batch.
        bytes_max: the most bytes of a batch; one item alone may be larger.
    """

    __slots__ = ("_bytes", "_bytes_max", "_items", "_items_max", "_last", "_number")

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._items: list[bytes] = []
        self._bytes = 0
        self._last: list[bytes] = []
        self._number = 0

    @property
    def is_empty(self) -> bool:
        """True if no item waits."""
        return not self._items

    def has_room(self, size_bytes: int) -> bool:
        """Return whether an item of this size fits into the next batch."""
        if not self._items:
            return True
        return len(self._items) < self._items_max and self._bytes + size_bytes <= self._bytes_max

    def put(self, item: bytes) -> None:
        """Add an encoded item, for which there is room."""
        assert self.has_room(len(item))
        self._items.append(item)
        self._bytes += len(item)

    def repeats(self, number: int) -> bool:
        """Return whether a request asks for the last batch again.

        Raises ResultsAborted if the number is neither the last nor the next one.
        """
        if number not in (self._number, self._number + 1) or number < 1:
            raise ResultsAborted(
                f"batch {number} of a generator was asked for after batch {self._number}: only one "
                "consumer can read it"
            )
        return number == self._number

    def take(self, number: int) -> list[bytes]:
        """Return the batch with a number: the last one, or all waiting items as the next one.

        Raises ResultsAborted as `repeats` does.
        """
        if not self.repeats(number):
            self._number = number
            self._last, self._items, self._bytes = self._items, [], 0
        return self._last
