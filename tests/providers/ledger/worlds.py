"""Processes that share ledgers and rows. Each one opens topics, crashes and returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from random import Random
from typing import Any

from tests.contract.in_virtual_time import in_virtual_time
from tests.providers.ledger.clocks import LoopClock
from tests.providers.ledger.memory_ledgers import Bookies, MemoryLedgers

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings
from millstream.providers.ledger.inspection import StoredMessage
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.topic.form import TopicMessage
from millstream.providers.ledger.topic.topic import Topic
from millstream.providers.ledger.topic.topics import Topics
from millstream.runtime.extending import Tasks
from millstream.runtime.testing import FailingStore

__all__ = ["Process", "World", "in_a_world", "marked", "plain", "texts"]


class Process:
    """One process with its topics, ledgers, clock and tasks."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        self.clock = LoopClock(seed)
        self.tasks = Tasks(asyncio.get_running_loop(), Context, f"process {name}")
        metadata = Metadata(world.store, "c", self.clock, name)
        self.ledgers = MemoryLedgers(world.bookies, metadata)
        self.ledgers.wall_s = self.clock.wall_s()
        self.topics = Topics(self.ledgers, metadata, self.clock, self.tasks)

    def kill(self) -> None:
        """Stop at once, as SIGKILL does. Nothing is closed."""
        self.tasks.cancel()
        self.ledgers.kill()


class World:
    """Bookies, a state store, and the processes that use them."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.bookies = Bookies(seed)
        self.store = FailingStore(Random(seed + 1))
        self.processes: list[Process] = []

    def process(self, name: str = "") -> Process:
        made = Process(self, name or f"p{len(self.processes)}", len(self.processes))
        self.processes.append(made)
        return made

    async def open(
        self,
        epoch: int = 1,
        options: LedgerTopicOptions | None = None,
        settings: LedgerTopicSettings | None = None,
    ) -> Topic:
        """Open the topic `t` in a new process."""
        return await self.process().topics.open("t", epoch, options, settings)

    async def all(self, number: int = 1) -> list[StoredMessage]:
        """Read all stored messages, as a reader elsewhere sees them."""
        reader = self.process().topics.reader("t")
        found: list[StoredMessage] = []
        while page := await reader.read(number, 1000, 2**20):
            found += page
            number = page[-1].number + 1
        await reader.aclose()
        return found

    async def aclose(self) -> None:
        for process in self.processes:
            process.kill()
            await process.tasks.aclose()


def in_a_world(main: Callable[[World], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    """Run the test in virtual time."""

    async def run() -> None:
        world = World(seed)
        async with asyncio.timeout(10**6):
            await main(world)
        await world.aclose()

    in_virtual_time(run)


def plain(*names: str) -> list[TopicMessage]:
    return [TopicMessage(text.encode()) for text in names]


def marked(producer: str, *seqs: int) -> list[TopicMessage]:
    return [TopicMessage(f"{producer}{seq}".encode(), producer, seq) for seq in seqs]


def texts(found: Sequence[StoredMessage]) -> list[str]:
    return [one.message.payload.decode() for one in found]
