"""A machine whose programs open topics: simulated disks, a store, and deaths."""

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
    """Wall time follows the loop."""

    def wall_s(self) -> float:
        return WALL_S + asyncio.get_running_loop().time()


def at_s(offset_s: float) -> datetime:
    """So many seconds after the loop's beginning."""
    return datetime.fromtimestamp(WALL_S + offset_s, UTC)


class Machine:
    """Disks that forget what was not synced, and the programs on it."""

    def __init__(self, seed: int = 1) -> None:
        self.disk = SimDisk(make_random(seed))
        self.store = MemoryStateStore()
        self._starts: list[AbstractAsyncContextManager[LedgerTopics]] = []  # kept from collection

    def topics(self, *places: str, **more: Any) -> AbstractAsyncContextManager[LedgerTopics]:
        """A program that has topics."""
        chosen = {"bookie": BOOKIE, "env": VirtualEnv(len(self._starts) + 1), **more}
        made = open_topics(*(places or ("/data",)), store=self.store, disk=self.disk, **chosen)
        self._starts.append(made)
        return made

    def die(self) -> None:
        """The program that runs is killed, and the power goes."""
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        self.disk.crash()


def values(messages: list[LedgerMessage]) -> list[str]:
    """Values as text."""
    return [message.value.decode() for message in messages]
