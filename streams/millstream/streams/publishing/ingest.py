"""Publishing from outside: clients and Spark send events to a gateway's `$ingest` target.

Owns: the target. Not: the client's side of it (`gateway_publisher`). Invariants: a producer is
known by its name and the namespace; its calls are stored in the order in which they arrive, one at
a time; after one that failed, or whose caller went away, later calls of that producer are refused
until it begins again at or before the failed sequence, or says that this was stored since (through
another gateway), so nothing overtakes a gap; a repeated sequence is stored once where the provider
drops duplicates.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from millstream.runtime import QueueUnavailable, StreamError
from millstream.runtime.extending import SystemTarget
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import OutMessage, ProducerMark
from millstream.streams.contracts.token import Token

__all__ = ["IngestMessage", "IngestTarget"]

PRODUCERS_MAX = 10_000


class IngestMessage(msgspec.Struct, array_like=True, frozen=True):
    """Items of one stream; `seq` is the producer's, 0 where it has no name."""

    key: str
    seq: int
    items: list[msgspec.Raw]
    headers: dict[str, str] | None = None


class Store(Protocol):
    """What keeps the messages: a stream provider."""

    async def store(self, messages: Sequence[OutMessage], /) -> list[Token | StreamError | None]:
        """The outcome of each message; per queue, a prefix of them is stored."""
        ...

    def store_at_once(
        self, messages: Sequence[OutMessage], /
    ) -> Sequence[Token | StreamError | None] | None:
        """`store` for messages of one stream, where that takes no waiting; else None, and nothing
        is stored."""
        ...


class Producer:
    """One producer's calls, in order."""

    __slots__ = ("failed_at", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.failed_at: int | None = None


class IngestTarget(SystemTarget):
    """Stores what producers send, for one provider (`$ingest/<provider>`)."""

    target_name = "$ingest"
    open_to_clients = frozenset({"publish", "resume"})

    def __init__(self, store: Store) -> None:
        self._into = store
        self._producers: OrderedDict[str, Producer] = OrderedDict()

    def publish_at_once(
        self, namespace: str, producer: str, messages: list[IngestMessage]
    ) -> object:
        """`publish` of a client's events in no task, where nothing waits before them."""
        if producer or not messages or any(one.key != messages[0].key for one in messages[1:]):
            return NotImplemented
        outcomes = self._into.store_at_once(out_messages(namespace, "", messages))
        if outcomes is None:
            return NotImplemented
        for outcome in outcomes:
            if isinstance(outcome, StreamError):
                raise outcome
        return len(messages)

    at_once = MappingProxyType({"publish": publish_at_once})

    async def publish(self, namespace: str, producer: str, messages: list[IngestMessage]) -> int:
        """Store messages in order; returns how many were accepted (repeated ones count).

        Raises the error of the first message that failed; per queue nothing behind it is stored.
        """
        if not producer:
            await self._store(namespace, "", messages)
            return len(messages)
        identity = producer_of(namespace, producer)
        known = self._known(identity)
        async with known.lock:
            return await self._publish_in_order(known, namespace, identity, messages)

    async def resume(self, namespace: str, producer: str, stored: int) -> None:
        """The producer was told, here or by another gateway, that all up to `stored` is stored.

        A failure at or before it is over; what that call had sent comes no more.
        """
        known = self._known(producer_of(namespace, producer))
        async with known.lock:
            if known.failed_at is not None and known.failed_at <= stored:
                known.failed_at = None

    async def _publish_in_order(
        self, known: Producer, namespace: str, producer: str, messages: list[IngestMessage]
    ) -> int:
        first = messages[0].seq if messages else 0
        if known.failed_at is not None and first > known.failed_at:
            raise QueueUnavailable(
                f"producer {producer}: sequence {known.failed_at} failed; begin again there, "
                f"not at {first}"
            )
        failed_at, known.failed_at = known.failed_at, first  # unless it is known to be stored
        if not messages:
            known.failed_at = failed_at
            return 0
        await self._store(namespace, producer, messages, known)
        known.failed_at = None
        return len(messages)

    async def _store(
        self,
        namespace: str,
        producer: str,
        messages: Sequence[IngestMessage],
        known: Producer | None = None,
    ) -> None:
        """Store them; raises the error of the first that failed, and notes its sequence."""
        outcomes = await self._into.store(out_messages(namespace, producer, messages))
        for one, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, StreamError):
                if known is not None:
                    known.failed_at = one.seq
                raise outcome

    def _known(self, producer: str) -> Producer:
        known = self._producers.setdefault(producer, Producer())
        self._producers.move_to_end(producer)
        if len(self._producers) > PRODUCERS_MAX:
            oldest = next(iter(self._producers))
            if not self._producers[oldest].lock.locked():
                del self._producers[oldest]
        return known


def out_messages(
    namespace: str, producer: str, messages: Sequence[IngestMessage]
) -> list[OutMessage]:
    """Messages as they are stored."""
    return [
        OutMessage(
            StreamId(namespace, one.key),
            [bytes(item) for item in one.items],
            one.headers or {},
            ProducerMark(producer, one.seq) if producer else None,
        )
        for one in messages
    ]


def producer_of(namespace: str, producer: str) -> str:
    """What a producer is known by in the queues: a writer of two namespaces is two producers."""
    return f"{len(namespace)}:{namespace}/{producer}"
