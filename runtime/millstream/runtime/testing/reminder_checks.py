"""The contract of reminder tables, one check per rule.

Each check takes an empty table, and raises AssertionError or the table's own error if the table
breaks the rule. An author of a table runs all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from millstream.runtime.definition.storage import Etag
from millstream.runtime.errors import Conflict
from millstream.runtime.reminders.table import (
    BUCKETS,
    ReminderPosition,
    ReminderRow,
    ReminderTable,
    bucket_of,
)

__all__ = ["REMINDER_TABLE_CHECKS"]

Check = Callable[[ReminderTable], Coroutine[Any, Any, None]]
ALL = [(0, BUCKETS - 1)]
WRITERS = 20


def row_of(grain: str, name: str, due_ms: int | None, data: bytes = b"x") -> ReminderRow:
    """Return a row to be stored."""
    return ReminderRow(grain, name, bucket_of(grain), due_ms, data, "")


async def is_refused(change: Awaitable[object]) -> bool:
    """Return whether a change raises Conflict."""
    try:
        await change
    except Conflict:
        return True
    return False


async def found(table: ReminderTable, grain: str) -> list[tuple[str, int | None, bytes, Etag]]:
    """Return the rows of a grain without grain and bucket, after a check of these."""
    rows = await table.read(grain)
    assert all(row.grain == grain and row.bucket == bucket_of(grain) for row in rows), rows
    return [(row.name, row.due_ms, row.data, row.etag) for row in rows]


async def due(
    table: ReminderTable,
    after: ReminderPosition | None = None,
    before_ms: int = 10**15,
    limit: int = 1000,
    buckets: Sequence[tuple[int, int]] = ALL,
) -> list[tuple[str, str]]:
    """Return grain and name of the rows that are due."""
    rows = await table.due(buckets, after, before_ms, limit)
    return [(row.grain, row.name) for row in rows]


async def absent_rows_are_not_found(table: ReminderTable) -> None:
    """An empty table has no rows."""
    assert await found(table, "Type/a") == []
    assert await due(table) == []


async def rows_are_read_as_they_were_written(table: ReminderTable) -> None:
    """Any text and any bytes are kept."""
    data = bytes(range(256)) * 40
    etags = {
        name: await table.upsert(row_of("Type/\u00e9 /%2F\n", name, due_ms, data), None)
        for name, due_ms in (("b", 5), ("a", -1), ("\u00e9", None), ("c", 2**52))
    }
    assert await found(table, "Type/\u00e9 /%2F\n") == [
        ("a", -1, data, etags["a"]),
        ("b", 5, data, etags["b"]),
        ("c", 2**52, data, etags["c"]),
        ("\u00e9", None, data, etags["\u00e9"]),
    ]
    assert await found(table, "Type/\u00e9 /%2F") == []


async def a_row_is_replaced_only_by_its_etag(table: ReminderTable) -> None:
    """A refused change changes nothing."""
    first = await table.upsert(row_of("Type/a", "n", 1), None)
    second = await table.upsert(row_of("Type/a", "n", 2), first)
    assert second != first
    for etag in (None, first, "", "0", "x" * 40):
        assert await is_refused(table.upsert(row_of("Type/a", "n", 3), etag)), etag
    assert await found(table, "Type/a") == [("n", 2, b"x", second)]
    assert await due(table) == [("Type/a", "n")]


async def a_row_is_removed_only_by_its_etag(table: ReminderTable) -> None:
    """A removed row is in no answer."""
    first = await table.upsert(row_of("Type/a", "n", 1), None)
    second = await table.upsert(row_of("Type/a", "n", 1), first)
    for etag in (first, "", "x" * 40):
        assert await is_refused(table.remove("Type/a", "n", etag)), etag
    assert await is_refused(table.remove("Type/a", "m", second))
    assert await is_refused(table.remove("Type/b", "n", second))
    await table.remove("Type/a", "n", second)
    assert await found(table, "Type/a") == [] and await due(table) == []
    assert await is_refused(table.remove("Type/a", "n", second))


async def an_etag_of_an_absent_row_is_refused(table: ReminderTable) -> None:
    """A row that was removed is not stored again by its old etag."""
    etag = await table.upsert(row_of("Type/a", "n", 1), None)
    await table.remove("Type/a", "n", etag)
    assert await is_refused(table.upsert(row_of("Type/a", "n", 2), etag))
    assert await found(table, "Type/a") == []


async def an_etag_is_never_used_again(table: ReminderTable) -> None:
    """A removed and stored row has new etags."""
    seen: list[Etag] = []
    for _ in range(3):
        seen.append(await table.upsert(row_of("Type/a", "n", 1), None))
        seen.append(await table.upsert(row_of("Type/a", "n", 1), seen[-1]))
        await table.remove("Type/a", "n", seen[-1])
    assert len(set(seen)) == len(seen), seen


async def rows_of_one_name_are_apart(table: ReminderTable) -> None:
    """Grains and names do not touch each other."""
    first = await table.upsert(row_of("Type/a", "n", 1), None)
    await table.upsert(row_of("Type/a", "m", 2), None)
    other = await table.upsert(row_of("Type/b", "n", 3), None)
    await table.remove("Type/a", "n", first)
    assert [name for name, *_ in await found(table, "Type/a")] == ["m"]
    assert await found(table, "Type/b") == [("n", 3, b"x", other)]


async def due_rows_come_in_order(table: ReminderTable) -> None:
    """The order is due time, grain, name. Rows without a time are left out."""
    for grain, name, due_ms in (
        ("Type/b", "n", 2_000),
        ("Type/a", "n", 2_000),
        ("Type/a", "m", 2_000),
        ("Type/c", "n", 1_999),
        ("Type/z", "n", -5),
        ("Type/d", "n", None),
        ("Type/e", "n", 70_000),
    ):
        await table.upsert(row_of(grain, name, due_ms), None)
    ordered = [("Type/z", "n"), ("Type/c", "n"), ("Type/a", "m"), ("Type/a", "n"), ("Type/b", "n")]
    assert await due(table) == [*ordered, ("Type/e", "n")]
    assert await due(table, before_ms=70_000) == ordered
    assert await due(table, before_ms=2_000) == ordered[:2]
    assert await due(table, before_ms=2_001) == ordered
    assert await due(table, after=ReminderPosition(2_000)) == [*ordered[2:], ("Type/e", "n")]
    after = ReminderPosition(2_000, "Type/a", "n")
    assert await due(table, after=after) == [("Type/b", "n"), ("Type/e", "n")]


async def pages_cover_all_rows_once(table: ReminderTable) -> None:
    """Pages that begin after the last row of the page before miss nothing."""
    every = {(f"Type/{number:03}", name) for number in range(30) for name in "xy"}
    for grain, name in sorted(every):
        await table.upsert(row_of(grain, name, 1_000 * (int(grain[-1]) // 4)), None)
    seen: list[tuple[str, str]] = []
    after: ReminderPosition | None = None
    while page := await table.due(ALL, after, 10**15, 7):
        seen += [(row.grain, row.name) for row in page]
        after = ReminderPosition(page[-1].due_ms or 0, page[-1].grain, page[-1].name)
    assert len(seen) == len(every) and set(seen) == every
    assert await due(table, limit=0) == []


async def due_rows_are_of_the_buckets(table: ReminderTable) -> None:
    """Only rows of the given ranges are returned."""
    grains = [f"Type/{number}" for number in range(60)]
    for grain in grains:
        await table.upsert(row_of(grain, "n", 1), None)
    buckets = sorted(bucket_of(grain) for grain in grains)
    low, high = buckets[10], buckets[30]
    ranges = [(low, low), (low + 1, high - 1), (high, high), (buckets[40], buckets[40])]
    wanted = {grain for grain in grains if any(a <= bucket_of(grain) <= b for a, b in ranges)}
    assert {grain for grain, _ in await due(table, buckets=ranges)} == wanted
    assert await due(table, buckets=[]) == []
    many = [(bucket, bucket) for bucket in range(0, BUCKETS, 2)]
    even = {grain for grain in grains if bucket_of(grain) % 2 == 0}
    assert {grain for grain, _ in await due(table, buckets=many)} == even


async def a_change_moves_a_row_in_the_order(table: ReminderTable) -> None:
    """A row is due at its newest time only."""
    etag = await table.upsert(row_of("Type/a", "n", 1_000), None)
    etag = await table.upsert(row_of("Type/a", "n", 9_000), etag)
    assert await due(table, before_ms=9_000) == []
    assert await due(table) == [("Type/a", "n")]
    etag = await table.upsert(row_of("Type/a", "n", None), etag)
    assert await due(table) == []
    await table.upsert(row_of("Type/a", "n", 500), etag)
    assert await due(table, before_ms=501) == [("Type/a", "n")]


async def one_of_many_writers_wins(table: ReminderTable) -> None:
    """Of writers with one etag, exactly one changes the row."""
    etag = await table.upsert(row_of("Type/a", "n", 1), None)
    changes = [
        table.upsert(row_of("Type/a", "n", 1, bytes([number])), etag) for number in range(WRITERS)
    ]
    refused = await asyncio.gather(*map(is_refused, changes))
    assert refused.count(False) == 1
    new = [table.upsert(row_of("Type/b", "n", 1), None) for _ in range(WRITERS)]
    assert (await asyncio.gather(*map(is_refused, new))).count(False) == 1


REMINDER_TABLE_CHECKS: Sequence[Check] = (
    absent_rows_are_not_found,
    rows_are_read_as_they_were_written,
    a_row_is_replaced_only_by_its_etag,
    a_row_is_removed_only_by_its_etag,
    an_etag_of_an_absent_row_is_refused,
    an_etag_is_never_used_again,
    rows_of_one_name_are_apart,
    due_rows_come_in_order,
    pages_cover_all_rows_once,
    due_rows_are_of_the_buckets,
    a_change_moves_a_row_in_the_order,
    one_of_many_writers_wins,
)
"""The checks of a reminder table. Await each one with an empty table.

```python
@pytest.mark.parametrize("check", REMINDER_TABLE_CHECKS)
async def test_the_table_keeps_the_contract(check, tmp_path):
    await check(MyReminderTable(tmp_path))
```
"""
