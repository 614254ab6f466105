"""The contract of state stores, and the store in memory.

This module owns `StateStore`, `Row` and `MemoryStateStore`. The module `state` decides when a state
is written. Every store keeps these rules. A write happens only if the stored etag is the expected
one and the stored fence is not higher than the writer's; every write gives a new etag; after
`Conflict` nothing has changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from millstream.runtime.env import Env
from millstream.runtime.errors import Conflict
from millstream.runtime.text import show_text

__all__ = ["Etag", "MemoryStateStore", "Row", "StateStore", "refuse_stale"]

Etag = str
"""The version of a row. A store gives a new one with each write."""


@dataclass(frozen=True, slots=True)
class Row:
    """A stored row.

    Attributes:
        data: The value as bytes.
        etag: The version of the row.
        fence: The fence of its last writer, which is the highest so far.
    """

    data: bytes
    etag: Etag
    fence: int


class StateStore(Protocol):
    """A keyed store of rows whose only write is compare-and-set.

    Implement it to keep state in a store of your own, and check the implementation with
    `refuse_stale`. A write happens only if the stored etag is the expected one and the stored fence
    is not higher than the writer's. Every write gives a new etag. After `Conflict` nothing has
    changed. All methods raise StorageUnavailable if the store does not answer.

    A store may have three more attributes. `is_of_one_process` is True if other processes cannot
    see the rows. `identity`, or `place` if it has none, is text that tells where the rows are;
    silos whose stores differ refuse each other.
    """

    async def read(self, key: str, /) -> Row | None:
        """Return the row of a key, or None if there is none.

        Args:
            key: The key.
        """
        ...

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        """Store a row.

        Args:
            key: The key.
            data: The new value.
            expect: The etag that the stored row must have. None: there must be no row.
            fence: The fence of the writer. A stored row with a higher fence refuses the write.

        Returns:
            The new etag.

        Raises:
            Conflict: The stored row is another one, or has a higher fence. Nothing was changed.
            StorageUnavailable: The store did not answer. The write may have happened.
        """
        ...

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        """Delete a row.

        Args:
            key: The key.
            expect: The etag that the stored row must have.
            fence: The fence of the writer.

        Raises:
            Conflict: The stored row is another one, or has a higher fence. Nothing was changed.
            StorageUnavailable: The store did not answer. The row may be deleted.
        """
        ...

    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]:
        """Return rows in the order of their keys.

        Args:
            prefix: The beginning of the keys.
            after: Only keys after this one. Empty: from the first.
            limit: The most rows to return.
        """
        ...

    async def aclose(self) -> None:
        """Close the store."""
        ...


def refuse_stale(key: str, row: Row | None, expect: Etag | None, fence: int) -> None:
    """Check the compare-and-set rule that every `StateStore` keeps.

    Args:
        key: The key, for the message.
        row: The stored row, or None.
        expect: The etag that the writer expects. None: no row.
        fence: The fence of the writer.

    Raises:
        Conflict: The etag is not the expected one, or the row has a higher fence.
    """
    found = None if row is None else row.etag
    if found != expect:
        raise Conflict(f"{show_text(key)}: etag is {found}, the writer expected {expect}")
    if row is not None and row.fence > fence:
        raise Conflict(f"{show_text(key)}: fence is {row.fence}, the writer has {fence}")


class MemoryStateStore:
    """A state store in the memory of one process. Its rows are gone when the process ends.

    Use it for tests and for a single silo. The methods without `async` act at once.

    Args:
        private: True: each silo may have such a store of its own, although several processes share
            the membership table. The state of a grain that moves to another silo then starts from
            its default. False: a silo with a shared membership table refuses the store.

    Attributes:
        is_of_one_process: Whether silos in other processes would miss the rows, so the opposite of
            `private`.
        place: Text that identifies the store to other silos.
    """

    def __init__(self, *, private: bool = False) -> None:
        self._rows: dict[str, Row] = {}
        self._keys: list[str] = []  # sorted
        self._etag = 0
        self.is_of_one_process = not private
        self.place = "of each silo" if private else f"of one process, {Env().new_id():016x}"

    def get(self, key: str) -> Row | None:
        """Return the row of a key at once, or None, like `read`."""
        return self._rows.get(key)

    def put(self, key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
        """Store a row at once, like `write`."""
        refuse_stale(key, self._rows.get(key), expect, fence)
        self._etag += 1
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = Row(bytes(data), str(self._etag), fence)
        return str(self._etag)

    def remove(self, key: str, expect: Etag, fence: int) -> None:
        """Delete a row at once, like `clear`."""
        refuse_stale(key, self._rows.get(key), expect, fence)
        del self._rows[key]
        del self._keys[bisect_left(self._keys, key)]

    def range(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Row]]:
        """Return rows at once, like `scan`."""
        at = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        found = takewhile(lambda key: key.startswith(prefix), self._keys[at : at + limit])
        return [(key, self._rows[key]) for key in found]

    async def read(self, key: str, /) -> Row | None:
        """Return the row of a key, or None."""
        return self.get(key)

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        """Store a row, and return its new etag. Raises Conflict."""
        return self.put(key, data, expect, fence)

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        """Delete a row. Raises Conflict."""
        self.remove(key, expect, fence)

    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]:
        """Return up to `limit` rows whose keys begin with `prefix`, in order, after the key
        `after`.
        """
        return self.range(prefix, after, limit)

    async def aclose(self) -> None:
        """Do nothing: the rows stay."""
        return None
