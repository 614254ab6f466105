"""An adapter over a log that calls back, like a broker's feed of one partition.

The feed pushes messages from an offset on, in order, and stores no position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.contract.adapters.partitions import (
    ERA,
    Partition,
    PartitionedAdapter,
    PartitionedBroker,
    PartitionedQueues,
)

from millstream.runtime import CursorTooOld
from millstream.streams import (
    AdapterHost,
    Capability,
    PushReceiver,
    QueueAdapter,
    QueueId,
    QueueMessage,
    Token,
)


class Feed:
    """A `PushSource`: one partition from an offset on."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._offset = 0
        self._flows = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self, push: Callable[[QueueMessage], None], after: Token | None, /) -> None:
        first = self._partition.first
        self._offset = first if after is None else max(first, after.seq + 1)
        self._flows.set()
        self._task = asyncio.ensure_future(self._run(push))
        if after is not None and after.seq + 1 < first:
            raise CursorTooOld(f"{after} is older than {first}", first=Token(ERA, first))

    async def _run(self, push: Callable[[QueueMessage], None]) -> None:
        while True:
            await self._flows.wait()
            bell, records = self._partition.bell, self._partition.from_offset(self._offset)
            for record in records:
                if self._flows.is_set():
                    push(record)
                    self._offset = record.token.seq + 1
            if not records:
                await bell.wait()

    def pause(self) -> None:
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    async def ack(self, upto: Token | None, also: Sequence[Token], /) -> None:
        """Do nothing: the runtime keeps the position."""

    async def aclose(self) -> None:
        self.cut()

    def cut(self) -> None:
        if self._task is not None:
            self._task.cancel()


class FedQueues(PartitionedQueues):
    capabilities = PartitionedQueues.capabilities - {Capability.REWIND}

    def __init__(self, broker: PartitionedBroker, events_max: int = 110) -> None:
        super().__init__(broker)
        self.events_max = events_max

    async def open(self, provider: str, host: AdapterHost) -> FedAdapter:
        return FedAdapter(self.broker, host, self.events_max)


class FedAdapter(PartitionedAdapter):
    def __init__(self, broker: PartitionedBroker, host: AdapterHost, events_max: int) -> None:
        super().__init__(broker, host)
        self._events_max = events_max
        self.feeds: list[Feed] = []

    def receiver(self, queue: QueueId, epoch: int) -> PushReceiver:  # type: ignore[override]
        self.feeds.append(feed := Feed(self._broker.partition(queue)))
        return PushReceiver(feed, FedQueues.capabilities, events_max=self._events_max)


async def kill_fed(adapter: QueueAdapter) -> None:
    """Crash a process: its feeds end."""
    assert isinstance(adapter, FedAdapter)
    adapter.unwatch()
    for feed in adapter.feeds:
        feed.cut()
