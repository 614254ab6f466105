"""Bookies on simulated disks, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from millstream.providers.ledger import BookieOptions
from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.bookie.options import AskKnown, nothing_known
from millstream.providers.ledger.protocol.entry import EntryHeader, pack
from millstream.runtime.extending import Disk
from millstream.runtime.testing import SimDisk, SimLoop, make_random

T = TypeVar("T")

PATH = "/data/bookie"
FRESH = "0123456789abcdef" * 2
SMALL = BookieOptions(
    segment_bytes=16_384,
    allocate_bytes=4_096,
    entry_bytes_max=8_192,
    frame_bytes_max=8_192,
    unsynced_bytes_max=65_536,
    cache_bytes=8_192,
    read_ahead_bytes=4_096,
    reserve_bytes=32_768,
)


def entry(ledger: int, number: int, size: int = 10, confirmed: int | None = None) -> bytes:
    """Make an entry whose payload follows from its number."""
    payload = Random(f"{ledger}/{number}").randbytes(size)
    before = number - 1 if confirmed is None else confirmed
    return pack(EntryHeader(ledger, number, before, -1, (number + 1) * size, size), payload)


class Looked(dict[int, int]):
    """Counts its lookups."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)


def new_disk(seed: object = 1) -> SimDisk:
    return SimDisk(make_random(seed))


async def opened(
    disk: Disk,
    options: BookieOptions = SMALL,
    *,
    cluster: str = "c",
    fresh: str = FRESH,
    ask_known: AskKnown = nothing_known,
) -> Bookie:
    return await Bookie.open(disk, PATH, options, cluster=cluster, fresh=fresh, ask_known=ask_known)


def on_loop(test: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run a coroutine in virtual time, and cancel the tasks that it leaves."""
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(test(*args))
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
