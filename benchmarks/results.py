"""Streamed results of a grain in another silo, beside one list and one call for each item."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from millstream.runtime import PREFER_LOCAL, Grain, LocalCluster, grain

__all__ = ["ours"]

ITEMS = 100_000
CALLS = 3_000
WINDOWS = 5


@grain(placement=PREFER_LOCAL)
class Sheet(Grain):
    """The called grain."""

    async def rows(self, count: int) -> AsyncGenerator[int, None]:
        """Yield the numbers below `count`."""
        for number in range(count):
            yield number

    async def all_rows(self, count: int) -> list[int]:
        """Return the numbers below `count`."""
        return list(range(count))

    async def row(self, number: int) -> int:
        """Return one number."""
        return number


async def ours(work: Path) -> dict[str, float]:
    """Processor time of both silos for one item, in microseconds: the best of several windows."""
    async with LocalCluster(silos=2, grains=[Sheet]) as cluster:
        here, elsewhere = cluster.silos
        await here.grain(Sheet, "here").row(0)
        await elsewhere.grain(Sheet, "elsewhere").row(0)
        local, remote = here.grain(Sheet, "here"), here.grain(Sheet, "elsewhere")
        return {
            "streamed_local_us": await measure(lambda: read(local), ITEMS),
            "streamed_remote_us": await measure(lambda: read(remote), ITEMS),
            "list_remote_us": await measure(lambda: remote.all_rows(ITEMS), ITEMS),
            "calls_remote_us": await measure(lambda: call_each(remote), CALLS),
        }


async def read(sheet: Sheet) -> None:
    """Read a streamed result."""
    async for _ in sheet.rows(ITEMS):
        pass


async def call_each(sheet: Sheet) -> None:
    """Make one call for each item."""
    for number in range(CALLS):
        await sheet.row(number)


async def measure(work: Callable[[], Awaitable[object]], items: int) -> float:
    """Return the processor time for one item in microseconds."""
    windows = []
    for _ in range(WINDOWS):
        began_s = time.process_time()
        await work()
        windows.append(time.process_time() - began_s)
    return 1e6 * min(windows) / items
