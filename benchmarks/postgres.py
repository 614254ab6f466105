"""State in PostgreSQL and in SQLite, and the recovery of silos after a crash of the server.

The server runs on the same machine, with `fsync=on`. Figures:

- `write_us`, `read_us`: one caller, the median time of a write or read of 100 bytes.
- `writes_s`: acknowledged writes per second of 64 callers, each with a row of its own.
- `down_ms`: the time from SIGKILL of all processes of the server until it accepts connections.
- `recovered_ms`: the time from then until each of 100 grains in two silos has stored a change.
  Callers retry every 10 ms.
- `lost`: acknowledged changes that were lost. `evicted`: silos that left the cluster.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from millstream.providers.sqlite import SqliteStateStore
from millstream.runtime import (
    Grain,
    MembershipTable,
    MillstreamError,
    Silo,
    StateStore,
    connect,
    state,
)

__all__ = ["ours", "sqlite"]

DATA = b"x" * 100
ONE = 500
CALLERS, EACH = 64, 40
GRAINS = 100
WARM_S = 1.0


class Stored(Grain):
    """A grain with a counter."""

    count = state(int)

    async def add(self) -> int:
        self.count.value += 1
        await self.count.write()
        return self.count.value


async def ours(work: Path) -> dict[str, float]:
    """PostgreSQL."""
    from tests.real.postgres_server import PostgresServer

    from millstream.providers.postgres import PostgresMembershipTable, PostgresStateStore

    server = PostgresServer()
    try:
        url = f"{server.url}/postgres"
        store = PostgresStateStore(url)
        table = PostgresMembershipTable(url)
        figures = await measure(store)
        figures |= await crash(table, store, server.crash, server.start)
        await store.aclose()
        await table.aclose()
        return figures
    finally:
        server.close()


async def sqlite(work: Path) -> dict[str, float]:
    """SQLite files."""
    store = SqliteStateStore(work / "rows")
    try:
        return await measure(store)
    finally:
        await store.aclose()


async def measure(store: StateStore) -> dict[str, float]:
    """Return the figures of a store."""
    etag = await store.write("one", DATA, None, 0)

    async def write() -> None:
        nonlocal etag
        etag = await store.write("one", DATA, etag, 0)

    async def read() -> None:
        await store.read("one")

    figures = {"write_us": await median_us(write), "read_us": await median_us(read)}

    async def write_own(number: int) -> None:
        own = await store.write(f"k{number}", DATA, None, 0)
        for _ in range(EACH):
            own = await store.write(f"k{number}", DATA, own, 0)

    began_s = time.perf_counter()
    await asyncio.gather(*map(write_own, range(CALLERS)))
    return figures | {"writes_s": CALLERS * (EACH + 1) / (time.perf_counter() - began_s)}


async def median_us(act: Callable[[], Awaitable[None]]) -> float:
    """Return the median time of an action that runs again and again."""
    times = []
    for _ in range(ONE):
        began_s = time.perf_counter()
        await act()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times) * 1e6


async def crash(
    table: MembershipTable, store: StateStore, kill: Callable[[], None], start: Callable[[], None]
) -> dict[str, float]:
    """Return the figures of a crash of the server under two silos."""
    stores = {"default": store}
    silos = [Silo(grains=[Stored], membership=table, stores=stores) for _ in range(2)]
    async with silos[0], silos[1], connect(silos[0].gateway) as client:
        stored: dict[str, int] = {}
        last_s: dict[str, float] = {}
        all_stored = asyncio.Event()

        async def count(key: str) -> None:
            while True:
                try:
                    stored[key] = max(stored.get(key, 0), await client.grain(Stored, key).add())
                    last_s.setdefault(key, time.perf_counter())
                    if len(last_s) == GRAINS:
                        all_stored.set()
                except MillstreamError:
                    await asyncio.sleep(0.01)

        callers = [asyncio.create_task(count(f"g{number}")) for number in range(GRAINS)]
        await asyncio.sleep(WARM_S)
        killed_s = time.perf_counter()
        await asyncio.to_thread(kill)
        before = dict(stored)
        await asyncio.to_thread(start)
        started_s = time.perf_counter()
        last_s.clear()
        all_stored.clear()
        await all_stored.wait()
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        found = {key: await client.grain(Stored, key).add() - 1 for key in before}
        return {
            "down_ms": (started_s - killed_s) * 1e3,
            "recovered_ms": (max(last_s.values()) - started_s) * 1e3,
            "lost": float(sum(max(0, before[key] - found[key]) for key in before)),
            "evicted": float(len(silos) - len(silos[0].members())),
        }
