"""The time to recover a ledger and to open its directory after a crash, by size.

The writer does not close the ledger, as in a crash. The ledger is fenced, read and sealed through
the same bookie. Then the directory is opened in the state of a crashed process, with its last
segment without an index. At most one segment of 64 MiB is read.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ledger import ALONE, RECORD_BYTES, RECORDS, opened, reopened
from benchmarks.measure import now

__all__ = ["full", "recovery"]

IN_FLIGHT = 16
MB = 1_000_000
SIZES_MB = (1, 30, 100)
FULL_SIZES_MB = (1_000,)


async def recovery(work: Path) -> dict[str, float]:
    """Small ledgers."""
    return await _recovery(work, SIZES_MB)


async def full(work: Path) -> dict[str, float]:
    """A large ledger."""
    return await _recovery(work, FULL_SIZES_MB)


async def _recovery(work: Path, sizes_mb: Sequence[int]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for size_mb in sizes_mb:
        below = work / f"{size_mb}"
        figures[f"recover_{size_mb}MB_ms"] = await _recovered(below, size_mb * MB)
        figures[f"open_{size_mb}MB_ms"] = await reopened(below)
    return figures


async def _recovered(work: Path, size: int) -> float:
    """Return the milliseconds to recover a ledger of `size` bytes that was not closed."""
    payload = os.urandom(RECORDS * RECORD_BYTES)
    async with opened(work) as (ledgers, _):
        writer = await ledgers.create(ALONE, "bench")
        room, last = asyncio.Semaphore(IN_FLIGHT), None
        for _ in range(size // len(payload)):
            await room.acquire()
            last = writer.append(payload)
            last.add_done_callback(lambda _: room.release())
        assert last is not None
        await last
        started_s = now()
        found = await ledgers.recover(writer.ledger)
        assert found.last == size // len(payload) - 1, found
        return (now() - started_s) * 1000
