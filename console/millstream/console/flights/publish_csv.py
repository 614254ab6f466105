"""Publishing the flights by reading the file here: no JVM.

Owns: cutting the rows into calls to the gateways. Invariant: each stream's events leave in file
order, by one producer per namespace, each with one call out at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from millstream.runtime import Client, ClusterError
from millstream.streams import StreamError, StreamNamespace
from millstream.streams.ingest import IngestTarget

from .data import ARRIVALS, DEPARTURES, TAILS, Flight, Row, read_flights

__all__ = ["STREAMS", "publish_csv"]

CHUNK_EVENTS = 4_000
TRIES_MAX = 60
RETRY_S = 0.5

log = logging.getLogger("millstream.flights")
Namespace = StreamNamespace[Flight]
STREAMS: Sequence[tuple[Namespace, Callable[[Row], str | None]]] = (
    (DEPARTURES, lambda row: row.flight.origin if row.departed else None),
    (ARRIVALS, lambda row: row.flight.dest if row.arrived else None),
    (TAILS, lambda row: row.flight.tailnum),
)


async def publish_csv(
    client: Client, rows_max: int | None, published: Callable[[int], None]
) -> int:
    """Publish every event; tells `published` how many were accepted; returns their number."""
    counts = await asyncio.gather(
        *(_publish_stream(client, ns, key, rows_max, published) for ns, key in STREAMS)
    )
    return sum(counts)


async def _publish_stream(
    client: Client,
    namespace: Namespace,
    key_of: Callable[[Row], str | None],
    rows_max: int | None,
    published: Callable[[int], None],
) -> int:
    spec: Any = IngestTarget.publish.__millstream_spec__  # type: ignore[attr-defined]
    count = seq = 0
    for chunk in _chunks(key_of, rows_max):
        messages = []
        for key, flights in chunk.items():
            seq += 1
            items = [msgspec.Raw(namespace.codec.encode(flight)) for flight in flights]
            messages.append((key, seq, items))
        producer = f"csv/{namespace.name}"
        args = (namespace.name, producer, messages)
        await _send(client, namespace.name, spec, args)
        size = sum(map(len, chunk.values()))
        count += size
        published(size)
    return count


async def _send(client: Client, name: str, spec: Any, args: tuple[Any, ...]) -> None:
    """Send one call; again with the same sequences when its fate is unknown: they count once."""
    for attempt in range(TRIES_MAX):
        try:
            await client.host.ask_gateway(name, "$ingest", "default", spec, args)
            return
        except (ClusterError, StreamError) as error:
            if attempt + 1 == TRIES_MAX:
                raise
            log.info("publishing again: %s", error)
            await asyncio.sleep(RETRY_S)


def _chunks(
    key_of: Callable[[Row], str | None], rows_max: int | None
) -> Iterator[dict[str, list[Flight]]]:
    """Events by key, in file order, about `CHUNK_EVENTS` at a time."""
    chunk: dict[str, list[Flight]] = {}
    size = 0
    for row in read_flights(rows_max):
        key = key_of(row)
        if key is None:
            continue
        chunk.setdefault(key, []).append(row.flight)
        size += 1
        if size == CHUNK_EVENTS:
            yield chunk
            chunk, size = {}, 0
    if chunk:
        yield chunk
