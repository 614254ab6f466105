"""The state store contract, and the store in memory.

Owns: `StateStore`, `Row`, `MemoryStateStore`. Not: when a grain's state is written (`state`).
Invariants of every store: a write happens only if the stored etag is the expected one and the
stored fence is not higher than the writer's; every write gives a new etag; after `Conflict`
nothing has changed.
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


@dataclass(frozen=True, slots=True)
class Row:
    """A stored value: its bytes, its etag, and the highest fence that wrote it."""

    data: bytes
    etag: Etag
    fence: int


class StateStore(Protocol):
    """A keyed store whose only write is compare-and-set.

    `expect=None` means: the row must not exist.
    Raises Conflict (etag or fence), StorageUnavailable.
    """

    async def read(self, key: str, /) -> Row | None: ...
    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag: ...
    async def clear(self, key: str, expect: Etag, fence: int, /) -> None: ...
    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]: ...
    async def aclose(self) -> None: ...


def refuse_stale(key: str, row: Row | None, expect: Etag | None, fence: int) -> None:
    """Raise Conflict unless `row` is what the writer expects; shared by every store."""
    found = None if row is None else row.etag
    if found != expect:
        raise Conflict(f"{show_text(key)}: etag is {found}, the writer expected {expect}")
    if row is not None and row.fence > fence:
        raise Conflict(f"{show_text(key)}: fence is {row.fence}, the writer has {fence}")


class MemoryStateStore:
    """Rows in one process; gone with it. The methods without `async` act at once.

    Args:
        private: each silo may have such a store of its own, under a membership table that several
            processes share; grains that move begin anew then.

    Attributes: `is_of_one_process`, False where that is said; `place`, the same for one object.
    """

    def __init__(self, *, private: bool = False) -> None:
        self._rows: dict[str, Row] = {}
        self._keys: list[str] = []  # of the rows, sorted
        self._etag = 0
        self.is_of_one_process = not private
        self.place = "of each silo" if private else f"of one process, {Env().new_id():016x}"

    def get(self, key: str) -> Row | None:
        """`read`, at once."""
        return self._rows.get(key)

    def put(self, key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
        """`write`, at once."""
        refuse_stale(key, self._rows.get(key), expect, fence)
        self._etag += 1
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = Row(bytes(data), str(self._etag), fence)
        return str(self._etag)

    def remove(self, key: str, expect: Etag, fence: int) -> None:
        """`clear`, at once."""
        refuse_stale(key, self._rows.get(key), expect, fence)
        del self._rows[key]
        del self._keys[bisect_left(self._keys, key)]

    def range(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Row]]:
        """`scan`, at once."""
        at = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        found = takewhile(lambda key: key.startswith(prefix), self._keys[at : at + limit])
        return [(key, self._rows[key]) for key in found]

    async def read(self, key: str, /) -> Row | None:
        return self.get(key)

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        return self.put(key, data, expect, fence)

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        self.remove(key, expect, fence)

    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]:
        return self.range(prefix, after, limit)

    async def aclose(self) -> None:
        return None
