"""Publishing from outside: clients and Spark send events to a gateway's `$ingest` target.

Owns: the target. Not: the client's side of it (`gateway_publisher`). Invariants: the calls of one
producer are stored in the order in which they arrive, one at a time; after one that failed, later
calls of that producer are refused until it begins again at or before the failed sequence, so
nothing overtakes a gap; a repeated sequence is stored once where the provider drops duplicates.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import msgspec

from millstream.runtime import QueueUnavailable
from millstream.runtime.extending import SystemTarget
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.queue import OutMessage, ProducerMark
from millstream.streams.contracts.token import Token

__all__ = ["IngestMessage", "IngestTarget"]

PRODUCERS_MAX = 10_000
IngestMessage = tuple[str, int, list[msgspec.Raw]]  # key, sequence (0: none), items


class Store(Protocol):
    """What keeps the messages: a stream provider."""

    async def enqueue(self, message: OutMessage, /) -> Token | None: ...


class Producer:
    """One producer's calls, in order."""

    __slots__ = ("failed_at", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failed_at: int | None = None


class IngestTarget(SystemTarget):
    """Stores what producers send, for one provider (`$ingest/<provider>`)."""

    target_name = "$ingest"
    open_to_clients = frozenset({"publish"})

    def __init__(self, store: Store) -> None:
        self._into = store
        self._producers: OrderedDict[str, Producer] = OrderedDict()

    async def publish(self, namespace: str, producer: str, messages: list[IngestMessage]) -> int:
        """Store messages in order; returns how many were accepted (repeated ones count)."""
        if not producer:
            for key, _, items in messages:
                await self._store(StreamId(namespace, key), items, None)
            return len(messages)
        known = self._known(producer)
        async with known.lock:
            return await self._publish_in_order(known, namespace, producer, messages)

    async def _publish_in_order(
        self, known: Producer, namespace: str, producer: str, messages: list[IngestMessage]
    ) -> int:
        first = messages[0][1] if messages else 0
        if known.failed_at is not None and first > known.failed_at:
            raise QueueUnavailable(
                f"producer {producer}: sequence {known.failed_at} failed; begin again there, "
                f"not at {first}"
            )
        sends = [
            self._store(StreamId(namespace, key), items, ProducerMark(producer, seq))
            for key, seq, items in messages
        ]
        results = await asyncio.gather(*sends, return_exceptions=True)
        for (_, seq, _), result in zip(messages, results, strict=True):
            if isinstance(result, BaseException):
                known.failed_at = seq
                raise result
        known.failed_at = None
        return len(messages)

    async def _store(
        self, stream: StreamId, items: Sequence[msgspec.Raw], mark: ProducerMark | None
    ) -> Token | None:
        bodies = [bytes(item) for item in items]
        return await self._into.enqueue(OutMessage(stream, bodies, {}, mark))

    def _known(self, producer: str) -> Producer:
        known = self._producers.setdefault(producer, Producer())
        self._producers.move_to_end(producer)
        if len(self._producers) > PRODUCERS_MAX:
            oldest = next(iter(self._producers))
            if not self._producers[oldest].lock.locked():
                del self._producers[oldest]
        return known
