"""The contract of reminder tables, and the table in memory.

This module owns `ReminderTable`, `ReminderRow`, `MemoryReminderTable` and the buckets. Every table
keeps these rules. A row changes only if its stored etag is the expected one; no etag is used twice
for one reminder; after `Conflict` nothing has changed. A read sees every change that was
acknowledged before it began.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from millstream.runtime.cluster.ring import hash_of
from millstream.runtime.definition.storage import Etag
from millstream.runtime.env import Env
from millstream.runtime.errors import Conflict
from millstream.runtime.text import show_text

__all__ = [
    "BUCKETS",
    "BucketRange",
    "MemoryReminderTable",
    "ReminderPosition",
    "ReminderRow",
    "ReminderTable",
    "bucket_of",
    "point_of",
]

BUCKETS = 1024
"""The number of buckets. Frozen: stored rows depend on it."""
BUCKET_SHIFT = 64 - 10

BucketRange = tuple[int, int]  # from the first to the second number, both inclusive


def bucket_of(grain: str) -> int:
    """Return the bucket of a grain, `Type/key`: the ten highest bits of its hash. Frozen."""
    return hash_of(grain) >> BUCKET_SHIFT


def point_of(bucket: int) -> int:
    """Return the point of a bucket on the ring of silos."""
    return bucket << BUCKET_SHIFT


class ReminderRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of a reminder table. A table stores the fields, and knows nothing about `data`.

    Attributes:
        grain: The grain, `Type/key`.
        name: The name of the reminder. Grain and name are the key of the row.
        bucket: The bucket of the grain, 0 to 1023.
        due_ms: The time of the next occurrence, in milliseconds since 1970. None: there is none.
        data: The content.
        etag: The version of the row. Empty in a row to be stored.
    """

    grain: str
    name: str
    bucket: int
    due_ms: int | None
    data: bytes
    etag: Etag


class ReminderPosition(NamedTuple):
    """A position in the order of rows by due time.

    Attributes:
        due_ms: The time of a row.
        grain: Its grain. Rows of one time are ordered by grain and name.
        name: Its name.
    """

    due_ms: int
    grain: str = ""
    name: str = ""


class ReminderTable(Protocol):
    """A table of reminders whose only changes are compare-and-set.

    Implement it to keep reminders in a store of your own, and check the implementation with
    `millstream.runtime.testing.REMINDER_TABLE_CHECKS`. A change happens only if the stored etag is
    the expected one. Every change gives an etag that the reminder has never had, even if it was
    removed meanwhile. After `Conflict` nothing has changed. A read sees every change that was
    acknowledged before the read began. All methods raise StorageUnavailable if the table does not
    answer.

    A table may have three more attributes, as a `StateStore` has: `is_of_one_process`, `identity`
    and `place`.
    """

    async def read(self, grain: str, /) -> Sequence[ReminderRow]:
        """Return all rows of a grain, sorted by name.

        Args:
            grain: The grain, `Type/key`.
        """
        ...

    async def upsert(self, row: ReminderRow, expect: Etag | None, /) -> Etag:
        """Store a row.

        Args:
            row: The row. Its own etag is ignored.
            expect: The etag that the stored row must have. None: there must be no row.

        Returns:
            The new etag.

        Raises:
            Conflict: The stored row is another one. Nothing was changed.
            StorageUnavailable: The table did not answer. The row may be stored.
        """
        ...

    async def remove(self, grain: str, name: str, expect: Etag, /) -> None:
        """Delete a row.

        Args:
            grain: The grain of the row.
            name: The name of the row.
            expect: The etag that the stored row must have.

        Raises:
            Conflict: The stored row is another one, or there is none. Nothing was changed.
            StorageUnavailable: The table did not answer. The row may be deleted.
        """
        ...

    async def due(
        self,
        buckets: Sequence[BucketRange],
        after: ReminderPosition | None,
        before_ms: int,
        limit: int,
        /,
    ) -> Sequence[ReminderRow]:
        """Return rows with an occurrence, in the order of due time, grain and name.

        Args:
            buckets: Only rows in one of these ranges, each from its first to its second bucket.
            after: Only rows after this position. None: from the first.
            before_ms: Only rows whose time is lower than this.
            limit: The most rows to return. Fewer rows mean that there are no others.
        """
        ...

    async def aclose(self) -> None:
        """Close the table."""
        ...


class MemoryReminderTable:
    """A reminder table in the memory of one process. Its rows are gone when the process ends.

    Use it for tests and for a single silo. The methods without `async` act at once.

    Attributes:
        is_of_one_process: True: silos in other processes would miss the rows.
        place: Text that identifies the table to other silos.
    """

    is_of_one_process = True

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, ReminderRow]] = {}
        self._seconds: list[int] = []  # sorted; those that have rows
        self._by_second: dict[int, list[ReminderPosition]] = {}  # sorted
        self._etag = 0
        self.place = f"of one process, {Env().new_id():016x}"

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def rows_of(self, grain: str) -> Sequence[ReminderRow]:
        """Return the rows of a grain at once, like `read`."""
        found = self._rows.get(grain, {})
        return [found[name] for name in sorted(found)]

    def put(self, row: ReminderRow, expect: Etag | None) -> Etag:
        """Store a row at once, like `upsert`."""
        old = self._check(row.grain, row.name, expect)
        if old is not None:
            self._unlist(old)
        self._etag += 1
        stored = msgspec.structs.replace(row, data=bytes(row.data), etag=str(self._etag))
        self._rows.setdefault(row.grain, {})[row.name] = stored
        if row.due_ms is not None:
            second = row.due_ms // 1000
            if second not in self._by_second:
                insort(self._seconds, second)
            insort(self._by_second.setdefault(second, []), position_of(row))
        return stored.etag

    def drop(self, grain: str, name: str, expect: Etag) -> None:
        """Delete a row at once, like `remove`."""
        old = self._check(grain, name, expect)
        assert old is not None
        self._unlist(old)
        del self._rows[grain][name]
        if not self._rows[grain]:
            del self._rows[grain]

    def list_due(
        self,
        buckets: Sequence[BucketRange],
        after: ReminderPosition | None,
        before_ms: int,
        limit: int,
    ) -> Sequence[ReminderRow]:
        """Return rows at once, like `due`."""
        found: list[ReminderRow] = []
        at = 0 if after is None else bisect_left(self._seconds, after.due_ms // 1000)
        for second in self._seconds[at:]:
            if len(found) >= limit or second * 1000 >= before_ms:
                break
            listed = self._by_second[second]
            first = 0 if after is None else bisect_right(listed, after)
            for place in listed[first:]:
                if len(found) >= limit or place.due_ms >= before_ms:
                    break
                row = self._rows[place.grain][place.name]
                if any(low <= row.bucket <= high for low, high in buckets):
                    found.append(row)
        return found

    def _check(self, grain: str, name: str, expect: Etag | None) -> ReminderRow | None:
        row = self._rows.get(grain, {}).get(name)
        found = None if row is None else row.etag
        if found != expect:
            what = show_text(f"reminder {name} of {grain}")
            raise Conflict(f"{what}: etag is {found}, the writer expected {expect}")
        return row

    def _unlist(self, row: ReminderRow) -> None:
        if row.due_ms is None:
            return
        second = row.due_ms // 1000
        listed = self._by_second[second]
        del listed[bisect_left(listed, position_of(row))]
        if not listed:
            del self._by_second[second]
            del self._seconds[bisect_left(self._seconds, second)]

    async def read(self, grain: str, /) -> Sequence[ReminderRow]:
        """Return all rows of a grain, sorted by name."""
        return self.rows_of(grain)

    async def upsert(self, row: ReminderRow, expect: Etag | None, /) -> Etag:
        """Store a row, and return its new etag. Raises Conflict."""
        return self.put(row, expect)

    async def remove(self, grain: str, name: str, expect: Etag, /) -> None:
        """Delete a row. Raises Conflict."""
        self.drop(grain, name, expect)

    async def due(
        self,
        buckets: Sequence[BucketRange],
        after: ReminderPosition | None,
        before_ms: int,
        limit: int,
        /,
    ) -> Sequence[ReminderRow]:
        """Return up to `limit` rows of the buckets after a position, by due time."""
        return self.list_due(buckets, after, before_ms, limit)

    async def aclose(self) -> None:
        """Do nothing: the rows stay."""
        return None


def position_of(row: ReminderRow) -> ReminderPosition:
    """Return the position of a row that has an occurrence."""
    assert row.due_ms is not None
    return ReminderPosition(row.due_ms, row.grain, row.name)
