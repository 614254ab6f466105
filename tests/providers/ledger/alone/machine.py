"""A machine with simulated disks, a store, and programs that open topics and crash."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

from millstream.providers.ledger import BookieOptions, LedgerMessage, LedgerTopics, open_topics
from millstream.runtime import Env, MemoryStateStore
from millstream.runtime.testing import SimDisk, make_random

BOOKIE = BookieOptions(
    segment_bytes=65_536,
    allocate_bytes=4_096,
    entry_bytes_max=16_384,
    frame_bytes_max=16_384,
    reserve_bytes=32_768,
)
WALL_S = 1_700_000_000.0


class VirtualEnv(Env):
    """An environment whose wall time follows the loop's time."""

    def wall_s(self) -> float:
        return WALL_S + asyncio.get_running_loop().time()


def at_s(offset_s: float) -> datetime:
    """The wall time so many seconds after the loop's beginning."""
    return datetime.fromtimestamp(WALL_S + offset_s, UTC)


class Machine:
    """The disk, which forgets data that was not synced, and the programs on the machine."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = SimDisk(make_random(seed))
        self.store = MemoryStateStore()
        # keeps the programs from garbage collection
        self._starts: list[AbstractAsyncContextManager[LedgerTopics]] = []

    def topics(self, *places: str, **more: Any) -> AbstractAsyncContextManager[LedgerTopics]:
        """Start a program that opens topics."""
        chosen = {"bookie": BOOKIE, "env": VirtualEnv(len(self._starts) + 1), **more}
        made = open_topics(*(places or ("/data",)), store=self.store, disk=self.disk, **chosen)
        self._starts.append(made)
        return made

    def die(self) -> None:
        """Kill the running program, and cut the power."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        self.disk.crash()


def values(messages: list[LedgerMessage]) -> list[str]:
    """Return the values as text."""
    return [message.value.decode() for message in messages]
