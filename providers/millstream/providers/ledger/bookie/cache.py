"""The entries that were added or read last, in memory.

Owns: `Cache`. Invariants: the cache never exceeds its limit, which includes the bytes of each entry
and its fixed cost. The entry that was unused for the longest time is removed first.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["ENTRY_COST_BYTES", "Cache"]

ENTRY_COST_BYTES = 200
"""The memory that an entry in the cache takes in addition to its bytes."""


class Cache:
    """Packed entries by ledger and number, up to `size_bytes_max`."""

    __slots__ = ("_entries", "_size_bytes_max", "size_bytes")

    def __init__(self, size_bytes_max: int) -> None:
        self.size_bytes = 0
        self._size_bytes_max = size_bytes_max
        self._entries: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def get(self, ledger: int, entry: int) -> bytes | None:
        found = self._entries.get((ledger, entry))
        if found is not None:
            self._entries.move_to_end((ledger, entry))
        return found

    def drop(self, ledger: int, entry: int) -> None:
        """Remove an entry, if it is here."""
        old = self._entries.pop((ledger, entry), None)
        if old is not None:
            self.size_bytes -= len(old) + ENTRY_COST_BYTES

    def put(self, ledger: int, entry: int, packed: bytes) -> None:
        """Keep an entry, and remove others if the cache is full."""
        key = (ledger, entry)
        self.drop(ledger, entry)
        self._entries[key] = packed
        self.size_bytes += len(packed) + ENTRY_COST_BYTES
        while self.size_bytes > self._size_bytes_max:
            _, gone = self._entries.popitem(last=False)
            self.size_bytes -= len(gone) + ENTRY_COST_BYTES
