"""An adapter over a broker that chooses the partitions and the partition of each key, like Kafka.

The broker adds partitions while it runs. The runtime keeps the position. Retention drops the oldest
messages.
"""

from __future__ import annotations

import asyncio
import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from millstream.runtime import CursorTooOld
from millstream.streams import (
    AdapterHost,
    Capability,
    OutMessage,
    Page,
    QueueAdapter,
    QueueId,
    QueueMessage,
    StreamId,
    Token,
)

ERA = 1


@dataclass(eq=False)
class Partition:
    """A log: the offsets of records rise, with unused numbers. Messages before `first` are deleted,
    and the next record gets the offset `end`."""

    first: int = 0
    end: int = 0
    records: list[QueueMessage] = field(default_factory=list)
    bell: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, message: OutMessage, stamp_s: float) -> Token:
        token = Token(ERA, self.end)
        self.end += 1
        self.records.append(
            QueueMessage(message.stream, token, message.items, message.headers, stamp_s)
        )
        self.bell.set()
        self.bell = asyncio.Event()
        return token

    def from_offset(self, offset: int) -> list[QueueMessage]:
        at = bisect_left(self.records, offset, key=lambda record: record.token.seq)
        return self.records[at:]


class PartitionedBroker:
    """The server, which survives silos."""

    def __init__(self, partitions: int = 2) -> None:
        self.partitions = [Partition() for _ in range(partitions)]
        self.watchers: list[Callable[[], None]] = []

    def partition(self, queue: QueueId) -> Partition:
        return self.partitions[int(queue.removeprefix("p"))]

    def add_partition(self) -> None:
        self.partitions.append(Partition())
        for changed in self.watchers:
            changed()

    async def forget(self, queue: QueueId, count: int) -> None:
        partition = self.partition(queue)
        gone = partition.records[:count]
        del partition.records[:count]
        partition.first = gone[-1].token.seq + 1 if gone else partition.first

    async def skip(self, queue: QueueId, count: int) -> None:
        """Use offsets for markers, which no consumer gets."""
        self.partition(queue).end += count

    async def relayout(self) -> None:
        self.add_partition()

    async def kill(self, adapter: QueueAdapter) -> None:
        """Crash a process, which gets no more notifications. The broker keeps nothing for a
        process."""
        assert isinstance(adapter, PartitionedAdapter)
        adapter.unwatch()


class PartitionMapper:
    """The broker's own mapping, for a number of partitions."""

    def __init__(self, count: int) -> None:
        self.epoch = count  # the number only grows

    def queues(self) -> Sequence[QueueId]:
        return [f"p{number}" for number in range(self.epoch)]

    def queue_for(self, stream: StreamId, /) -> QueueId:
        return f"p{zlib.crc32(f'{stream}'.encode()) % self.epoch}"


class PartitionedQueues:
    capabilities = frozenset(
        {
            Capability.DURABLE,
            Capability.ORDERED,
            Capability.STABLE_TOKENS,
            Capability.WAKEUP,
            Capability.REWIND,
        }
    )

    def __init__(self, broker: PartitionedBroker) -> None:
        self.broker = broker

    async def open(self, provider: str, host: AdapterHost) -> PartitionedAdapter:
        return PartitionedAdapter(self.broker, host)


class PartitionedAdapter:
    def __init__(self, broker: PartitionedBroker, host: AdapterHost) -> None:
        self._broker = broker
        self._host = host
        self._watching: list[Callable[[], None]] = []

    def mapper(self, changed: Callable[[], None], /) -> PartitionMapper:
        self._watching.append(changed)
        self._broker.watchers.append(changed)
        return PartitionMapper(len(self._broker.partitions))

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int
    ) -> Sequence[Token | None]:
        await asyncio.sleep(0)
        partition, stamp_s = self._broker.partition(queue), self._host.clock.wall_s()
        return [partition.append(message, stamp_s) for message in messages]

    def receiver(self, queue: QueueId, epoch: int) -> PartitionReceiver:
        return PartitionReceiver(self._broker.partition(queue))

    def reader(self, queue: QueueId, /) -> PartitionReader:
        return PartitionReader(self._broker.partition(queue))

    async def aclose(self) -> None:
        self.unwatch()

    def unwatch(self) -> None:
        for changed in self._watching:
            self._broker.watchers.remove(changed)
        self._watching.clear()


class PartitionReceiver:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._offset = 0
        self._is_open = True

    async def start(self, after: Token | None) -> None:
        first = self._partition.first
        self._offset = first if after is None else max(first, after.seq + 1)
        if after is not None and after.seq + 1 < first:
            raise CursorTooOld(f"{after} is older than {first}", first=Token(ERA, first))

    async def read(self, max_events: int, max_bytes: int, wait_s: float) -> Sequence[QueueMessage]:
        end_s = asyncio.get_running_loop().time() + wait_s
        while self._is_open:
            records = self._partition.from_offset(self._offset)
            if found := records[: fitting(records, max_events, max_bytes)]:
                self._offset = found[-1].token.seq + 1
                return found
            try:
                async with asyncio.timeout_at(end_s):
                    await self._partition.bell.wait()
            except TimeoutError:
                break
        return []

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None: ...

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None: ...

    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        return ()

    async def aclose(self) -> None:
        self._is_open = False
        self._partition.bell.set()
        self._partition.bell = asyncio.Event()


def fitting(records: Sequence[QueueMessage], max_events: int, max_bytes: int) -> int:
    """Count the records that fit into the limits; one at least."""
    for count, record in enumerate(records):
        max_events -= len(record.items)
        max_bytes -= sum(map(len, record.items))
        if count and (max_events < 0 or max_bytes < 0):
            return count
    return len(records)


class PartitionReader:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    async def bounds(self) -> tuple[Token | None, Token | None]:
        records = self._partition.records
        return (records[0].token, records[-1].token) if records else (None, None)

    async def seek(self, when: datetime, /) -> Token | None:
        at_s = when.timestamp()
        return next((one.token for one in self._partition.records if one.enqueued_s >= at_s), None)

    async def read_from(
        self,
        position: Token,
        max_events: int,
        max_bytes: int,
        streams: frozenset[StreamId] | None,
        /,
    ) -> Page:
        """Look at `max_bytes` of records; the next page looks again at found records that do not
        fit."""
        first = self._partition.first
        if position.seq < first:
            raise CursorTooOld(f"{position} is gone", first=Token(ERA, first))
        records = self._partition.from_offset(position.seq)
        looked_at = records[: fitting(records, 10**9, max_bytes)]
        found = [one for one in looked_at if streams is None or one.stream in streams]
        returned = found[: fitting(found, max_events, 10**9)]
        if len(returned) < len(found):
            return Page(returned, found[len(returned)].token, False)
        end = looked_at[-1].token.seq + 1 if looked_at else max(position.seq, self._partition.end)
        if len(looked_at) == len(records):
            end = max(end, self._partition.end)
        return Page(returned, Token(ERA, end), end >= self._partition.end)

    async def aclose(self) -> None: ...
