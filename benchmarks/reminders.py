"""A silo that starts with a million reminders, in memory and in SQLite.

The table is filled first, with times spread over an hour around the start, so half of the reminders
are overdue. Figures:

- `start_s`: time until the silo is active.
- `loaded_most`: the most reminders that the silo kept in memory. `reminders_loaded_max` is 10,000.
- `silo_mb`: memory beyond that of the filled table, at the end.
- `delivered_per_s`: occurrences delivered in each second, while reminders are overdue.
- `delivery_us`: processor time for each delivered occurrence.
- `lag_p99_ms`, `lag_max_ms`: how late the event loop was, looked at each 10 ms.
- `fill_s`: time to fill the table.

`MILLSTREAM_REMINDERS=100000` sets another number of reminders.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from benchmarks.measure import memory_bytes, settle_memory
from benchmarks.timers import part
from millstream.providers.sqlite import SqliteReminderTable
from millstream.runtime import (
    Grain,
    MemoryReminderTable,
    Occurrence,
    ReminderTable,
    Silo,
    reminder,
)
from millstream.runtime.definition.reminders import ReminderSchedule
from millstream.runtime.reminders.record import ReminderRecord, make_row

__all__ = ["memory", "sqlite"]

REMINDERS = int(os.environ.get("MILLSTREAM_REMINDERS", "1000000"))
HOUR_MS = 3_600_000
AT_ONCE = 5_000
WATCHED_S = 20.0
LOOK_S = 0.01


class Sleeper(Grain):
    """A grain with one reminder for each hour."""

    @reminder
    async def wake(self, occurrence: Occurrence) -> None: ...


async def memory(work: Path) -> dict[str, float]:
    """A table in memory."""
    return await measure(MemoryReminderTable())


async def sqlite(work: Path) -> dict[str, float]:
    """A table in a SQLite file."""
    table = SqliteReminderTable(work / "reminders")
    try:
        return await measure(table)
    finally:
        await table.aclose()


async def measure(table: ReminderTable) -> dict[str, float]:
    """Fill a table, and watch a silo that starts with it."""
    began_s = time.monotonic()
    await fill(table)
    fill_s = time.monotonic() - began_s
    settle_memory()
    before = memory_bytes()
    began_s = time.monotonic()
    async with Silo(grains=[Sleeper], reminders=table) as silo:
        start_s = time.monotonic() - began_s
        busy_s, lags, loaded = await watch(silo)
        delivered = silo.reminder_counts().delivered
        settle_memory()
        used = memory_bytes() - before
    return {
        "start_s": start_s,
        "loaded_most": loaded,
        "silo_mb": used / 2**20,
        "delivered_per_s": delivered / WATCHED_S,
        "delivery_us": 1e6 * busy_s / max(1, delivered),
        "lag_p99_ms": 1e3 * part(lags, 0.99),
        "lag_max_ms": 1e3 * lags[-1],
        "fill_s": fill_s,
    }


async def fill(table: ReminderTable) -> None:
    """Store the reminders, with times over an hour around now."""
    start_ms = int(time.time() * 1000) - HOUR_MS // 2
    schedule = ReminderSchedule(every_ms=HOUR_MS, missed="once")
    for first in range(0, REMINDERS, AT_ONCE):
        rows = []
        for number in range(first, min(first + AT_ONCE, REMINDERS)):
            due_ms = start_ms + number * HOUR_MS // REMINDERS
            record = ReminderRecord(schedule, due_ms - HOUR_MS, due_ms)
            rows.append(make_row(f"Sleeper/{number:07}", "wake", record))
        await asyncio.gather(*(table.upsert(row, None) for row in rows))


async def watch(silo: Silo) -> tuple[float, list[float], int]:
    """Return processor time, lags of the loop in order, and the most loaded reminders."""
    lags: list[float] = []
    loaded, loop = 0, asyncio.get_running_loop()
    began_s, end_s = time.process_time(), loop.time() + WATCHED_S
    while loop.time() < end_s:
        due_s = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        lags.append(loop.time() - due_s)
        loaded = max(loaded, silo.reminder_counts().loaded)
    return time.process_time() - began_s, sorted(lags), loaded
