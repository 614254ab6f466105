"""The embedded ledger, the disk's limit and SQLite: records per second, latency, reading.

There is one process with one directory. 100 records of 1 KB make an entry, and 16 entries are in
flight. The limit writes and syncs 100 KB at a time into a file of the same layout, one after the
other. SQLite commits 100 rows at a time with `synchronous=FULL`.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import statistics
import time
from asyncio import Future
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from pathlib import Path

from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.bookie.local import LocalBookies
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.ledgers import BookieLedgers
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.handle.writer import LedgerWriter
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.quorum import Quorum
from millstream.runtime import MemoryStateStore
from millstream.runtime.extending import RealDisk, Tasks

__all__ = ["disk", "embedded", "rows"]

RECORDS, RECORD_BYTES = 100, 1_000
ENTRIES = 1_500
IN_FLIGHT = 16
PACED, PACE_S = 2_000, 0.001
SEGMENT_BYTES = 64 << 20
NAME = "0" * 32
ALONE = Quorum(1, 1, 1)


class LoopClock:
    """The clock of this program."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return time.time()

    def uniform(self, low: float, high: float, /) -> float:
        return random.uniform(low, high)


@asynccontextmanager
async def opened(work: Path) -> AsyncIterator[tuple[BookieLedgers, Bookie]]:
    """Yield ledgers over one bookie in this process."""
    bookie = await Bookie.open(RealDisk(), str(work / "ledger"), cluster="bench", fresh=NAME)
    metadata, clock = Metadata(MemoryStateStore(), "bench", LoopClock()), LoopClock()
    tasks = Tasks(asyncio.get_running_loop(), Context)
    bookies = LocalBookies({bookie.name: bookie})
    context = HandleContext(bookies, ledger_rows(metadata), clock, tasks, HandleOptions())
    try:
        yield BookieLedgers(context, LedgerIds(metadata)), bookie
    finally:
        await bookie.aclose()


async def embedded(work: Path) -> dict[str, float]:
    """The ledger."""
    figures: dict[str, float] = {}
    async with opened(work) as (ledgers, _):
        writer = await ledgers.create(ALONE, "bench")
        payload = os.urandom(RECORDS * RECORD_BYTES)
        started_s, cpu_s = time.perf_counter(), time.process_time()
        room = asyncio.Semaphore(IN_FLIGHT)
        last: Future[int] | None = None
        for _ in range(ENTRIES):
            await room.acquire()
            last = writer.append(payload)
            last.add_done_callback(lambda _: room.release())
        assert last is not None
        await last
        figures["append_records_per_s"] = ENTRIES * RECORDS / (time.perf_counter() - started_s)
        figures["append_cpu_us"] = (time.process_time() - cpu_s) / ENTRIES * 1e6
        reader = await ledgers.reader(writer.ledger)
        started_s, at = time.perf_counter(), 0
        while at < ENTRIES:
            at += len(await reader.read(at, 64, 4 << 20))
        figures["read_records_per_s"] = ENTRIES * RECORDS / (time.perf_counter() - started_s)
        await writer.close()
        waits = await paced(await ledgers.create(ALONE, "paced"))
        figures["p50_us"], figures["p99_us"] = quantiles(waits)
    figures["opened_ms"] = await reopened(work)
    return figures


async def paced(writer: LedgerWriter) -> list[float]:
    """Return the seconds from append to confirmation, for records sent every millisecond."""
    waits: list[float] = []
    loop, payload = asyncio.get_running_loop(), os.urandom(RECORD_BYTES)
    begin_s = loop.time()
    futures: list[Future[int]] = []
    for number in range(PACED):
        await asyncio.sleep(max(0.0, begin_s + number * PACE_S - loop.time()))
        future = writer.append(payload)
        future.add_done_callback(partial(note, waits, time.perf_counter()))
        futures.append(future)
    await asyncio.gather(*futures)
    return waits


def note(waits: list[float], sent_s: float, _: Future[int]) -> None:
    """Record that an append is confirmed."""
    waits.append(time.perf_counter() - sent_s)


async def reopened(work: Path) -> float:
    """Return the milliseconds to open the directory as after a crash: its last segment is read."""
    (*_, last) = sorted((work / "ledger").glob("*.idx"))
    last.unlink()
    async with opened(work) as (_, bookie):
        return bookie.opened_s * 1000


def quantiles(waits: list[float]) -> tuple[float, float]:
    """Return median and 99th percentile, in microseconds."""
    return statistics.median(waits) * 1e6, statistics.quantiles(waits, n=100)[98] * 1e6


async def disk(work: Path) -> dict[str, float]:
    """The disk's limit: one write and sync after the other."""
    return await asyncio.to_thread(_disk, work)


def _disk(work: Path) -> dict[str, float]:
    file = RealDisk().create(str(work / "limit"))
    file.preallocate(SEGMENT_BYTES)
    payload, step = os.urandom(RECORDS * RECORD_BYTES), RECORDS * RECORD_BYTES + 512
    started_s = time.perf_counter()
    for number in range(ENTRIES):
        file.write_at(number * step % (SEGMENT_BYTES - step), payload)
        file.datasync()
    rate = ENTRIES * RECORDS / (time.perf_counter() - started_s)
    waits: list[float] = []
    for number in range(PACED // 4):
        time.sleep(PACE_S)
        sent_s = time.perf_counter()
        file.write_at(number * 1024, payload[:RECORD_BYTES])
        file.datasync()
        waits.append(time.perf_counter() - sent_s)
    p50_us, p99_us = quantiles(waits)
    return {"append_records_per_s": rate, "p50_us": p50_us, "p99_us": p99_us}


async def rows(work: Path) -> dict[str, float]:
    """SQLite, a hundred rows for each commit."""
    return await asyncio.to_thread(_rows, work)


def _rows(work: Path) -> dict[str, float]:
    database = sqlite3.connect(work / "rows.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, data BLOB)")
    record, commits = os.urandom(RECORD_BYTES), ENTRIES // 3
    started_s = time.perf_counter()
    for _ in range(commits):
        database.execute("BEGIN")
        database.executemany("INSERT INTO rows (data) VALUES (?)", [(record,)] * RECORDS)
        database.execute("COMMIT")
    rate = commits * RECORDS / (time.perf_counter() - started_s)
    database.close()
    return {"append_records_per_s": rate}
