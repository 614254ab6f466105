"""Simulated silos with a directory each, and questions about their contents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import (
    BookieOptions,
    LedgerOptions,
    LedgerQueues,
    LedgerTopicOptions,
    LedgerTopicSettings,
    Quorum,
)
from millstream.providers.ledger.inspection import BookieRecord, LedgerRecord
from millstream.providers.ledger.queues.adapter import LedgerAdapter
from millstream.providers.ledger.topic.reading.reader import TopicReader
from millstream.runtime import MemoryStateStore, Silo, StreamError
from millstream.runtime.extending import unseal
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    AdapterHost,
    HashRingMapper,
    OutMessage,
    PersistentStreams,
    StreamId,
    StreamOptions,
    Token,
)

T = TypeVar("T")
QUEUE = "queue-0"
DIRECTORY = "/ledger/{silo}"
SMALL_BOOKIE = BookieOptions(
    reserve_bytes=64 * 1024,
    segment_bytes=1 << 20,
    entry_bytes_max=1 << 20,
    frame_bytes_max=1 << 18,
    allocate_bytes=4096,
)


class Queues(LedgerQueues):
    """Remembers the adapter that it opened in each silo."""

    opened: dict[str, LedgerAdapter]

    async def open(self, provider: str, host: AdapterHost, /) -> LedgerAdapter:
        adapter = await super().open(provider, host)
        self.opened[host.silo_name] = adapter
        return adapter


class Silos:
    """A simulated cluster that publishes into one queue."""

    def __init__(
        self,
        simulation: Simulation,
        silos: int = 3,
        *,
        quorum: Quorum | None = None,
        options: LedgerOptions | None = None,
        store: MemoryStateStore | None = None,
    ) -> None:
        self.simulation = simulation
        self.store = store or MemoryStateStore()
        self.adapters: dict[str, LedgerAdapter] = {}
        self._options = options or LedgerOptions(
            settings=LedgerTopicSettings(quorum=quorum),
            topic=LedgerTopicOptions(tend_every_s=5.0, entry_bytes_max=1 << 19, retention_s=None),
            bookie=SMALL_BOOKIE,
        )
        self.cluster = SimCluster(
            simulation,
            silos=silos,
            grains=[],
            stores={"default": self.store},
            streams={"default": self._streams},
        )

    def _streams(self) -> PersistentStreams:
        queues = Queues(DIRECTORY, self._options)
        queues.opened = self.adapters
        return PersistentStreams(
            queues,
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.2),
            options=StreamOptions(enqueue_wait_s=6.0),
        )

    async def __aenter__(self) -> Silos:
        await self.cluster.start()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.cluster.__aexit__(*error)

    def silo(self, name: str) -> Silo:
        silo = self.cluster.silo(name)
        assert silo is not None, f"{name} is down"
        return silo

    async def on(self, name: str, act: Callable[[], Awaitable[T]]) -> T:
        """Run a function in a silo's process."""

        async def acted() -> T:
            return await act()

        return await self.simulation.call(self.simulation.host(name), acted())

    async def publish(self, name: str, *words: str) -> list[int]:
        """Store words in the queue from a silo, and return their numbers. Raises StreamError."""
        messages = [OutMessage(StreamId("words", "k"), [msgspec.msgpack.encode(w)]) for w in words]
        queue = self.queue
        tokens = await self.on(name, lambda: self.adapters[name].enqueue(queue, messages, 1))
        return [token.seq for token in tokens if token is not None]

    @property
    def queue(self) -> str:
        return HashRingMapper(queues=1).queues()[0]

    async def words(self, name: str) -> list[str]:
        """Return all stored words, read in a silo beside the owner."""
        return await self.on(name, lambda: self._words(name))

    async def _words(self, name: str) -> list[str]:
        reader = self.adapters[name].reader(self.queue)
        try:
            first, last = await reader.bounds()
            found: list[str] = []
            position = first
            while position is not None and last is not None and position <= last:
                page = await reader.read_from(position, 100, 1 << 20, None)
                found += [msgspec.msgpack.decode(i) for one in page.messages for i in one.items]
                position = Token(position.era, page.next.seq)
            return found
        finally:
            await reader.aclose()

    async def topic_reader(self, name: str) -> TopicReader:
        """Return a reader of the queue's topic that is beside its owner."""
        return self.adapters[name]._node.reader(self.queue)

    async def close_services(self) -> None:
        """Close the shared services, once all silos have left."""
        self.cluster._table_service.close()
        self.cluster._store_service.close()

    async def owner(self, within_s: float = 30.0) -> str:
        """Return the name of the silo that writes the queue."""
        async with asyncio.timeout(within_s):
            while True:
                for name, adapter in self.adapters.items():
                    if self.cluster.silo(name) is not None:
                        if adapter._desk.topic(self.queue) is not None:
                            return name
                await asyncio.sleep(0.05)

    def bookies(self) -> dict[str, BookieRecord]:
        """Return the newest row of each bookie, by the name of its silo."""
        rows = self.store.range("ledger/sim/bookies/", "", 100)
        found = [
            msgspec.msgpack.decode(unseal(key, row.data).content, type=BookieRecord)
            for key, row in rows
        ]
        return {one.owner: one for one in sorted(found, key=lambda one: one.said_s)}

    def ledgers(self) -> list[LedgerRecord]:
        """Return the rows of ledgers, by number."""
        rows = self.store.range("ledger/sim/ledgers/", "", 100)
        return [
            msgspec.msgpack.decode(unseal(key, row.data).content, type=LedgerRecord)
            for key, row in rows
        ]


def with_silos(main: Callable[[Simulation], Any], seed: int = 1) -> Any:
    return run(main, seed).result


async def outcome(act: Awaitable[T]) -> T | StreamError:
    """Return the result or the error of an awaitable."""
    try:
        return await act
    except StreamError as error:
        return error
