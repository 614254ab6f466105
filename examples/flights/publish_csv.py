"""Publishes the flights by reading the file in this process, without a JVM.

This module cuts the rows into calls to the gateways, and `NumberedPublisher` retries them. The
events of each stream are sent in file order, by one producer per namespace. At most `CHUNKS_AHEAD`
chunks wait per namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from millstream.runtime import Client
from millstream.streams import StreamNamespace
from millstream.streams.extending import IngestMessage, NumberedPublisher, encode_messages

from .data import ARRIVALS, DEPARTURES, TAILS, Flight, Row, read_flights

__all__ = ["Chunk", "publish_csv"]

CHUNK_EVENTS_MIN = 500
CHUNK_EVENTS_MAX = 16_000  # a plane has several legs in it: few deliveries, each with more events
CHUNKS_OF_JOB = 30  # a small job gets smaller chunks, so that its progress is visible
CHUNKS_AHEAD = 2

Published = Callable[[int], Awaitable[None]]
Route = tuple[StreamNamespace[Flight], Callable[[Row], str | None]]
ROUTES: Sequence[Route] = (
    (DEPARTURES, lambda row: row.flight.origin if row.departed else None),
    (ARRIVALS, lambda row: row.flight.dest if row.arrived else None),
    (TAILS, lambda row: row.flight.tailnum),
)


class Chunk:
    """Encoded events of one namespace by key, in file order."""

    __slots__ = ("by_key", "events")

    def __init__(self) -> None:
        self.by_key: dict[str, list[msgspec.Raw]] = {}
        self.events = 0

    def add(self, key: str, item: msgspec.Raw) -> None:
        """Append an event of a key."""
        self.by_key.setdefault(key, []).append(item)
        self.events += 1


class Producer:
    """Sends the chunks of one namespace, one after the other."""

    def __init__(self, publisher: NumberedPublisher, published: Published) -> None:
        self._publisher = publisher
        self._published = published
        self._seq = 0
        self.chunk = Chunk()
        self.waiting: asyncio.Queue[Chunk | None] = asyncio.Queue(CHUNKS_AHEAD)

    async def flush(self) -> None:
        """Queue the chunk, wait for room, and begin another."""
        full, self.chunk = self.chunk, Chunk()
        if full.events:
            await self.waiting.put(full)

    async def run(self) -> None:
        """Send chunks until None arrives."""
        while (chunk := await self.waiting.get()) is not None:
            messages = []
            for key, items in chunk.by_key.items():
                self._seq += 1
                messages.append(IngestMessage(key, self._seq, items))
            await self._publisher.publish(encode_messages(messages), len(messages))
            await self._published(chunk.events)


def publisher_of(client: Client, namespace: str) -> NumberedPublisher:
    """Return the publisher of one namespace."""
    producer = f"csv/{namespace}"
    name = f"{client.address}/{producer}"
    return NumberedPublisher(client.gateway, namespace, producer, name)


async def publish_csv(
    client: Client, rows_max: int | None, events: int, published: Published
) -> None:
    """Publish every event; awaits `published(count)` for each accepted chunk.

    `events` is the approximate number of events. Raises errors of a publish after a minute of
    retries.
    """
    chunk_events = max(CHUNK_EVENTS_MIN, min(CHUNK_EVENTS_MAX, events // CHUNKS_OF_JOB))
    producers = [
        Producer(publisher_of(client, namespace.name), published) for namespace, _ in ROUTES
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for producer in producers:
                group.create_task(producer.run())
            await _read(producers, rows_max, chunk_events)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def _read(producers: Sequence[Producer], rows_max: int | None, chunk_events: int) -> None:
    """Route every row to the producers."""
    routes = [(producer, key_of) for producer, (_, key_of) in zip(producers, ROUTES, strict=True)]
    for row in read_flights(rows_max):
        item = msgspec.Raw(DEPARTURES.codec.encode(row.flight))
        for producer, key_of in routes:
            key = key_of(row)
            if key is None:
                continue
            producer.chunk.add(key, item)
            if producer.chunk.events == chunk_events:
                await producer.flush()
    for producer in producers:
        await producer.flush()
        await producer.waiting.put(None)
