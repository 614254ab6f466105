"""Publishing from outside: clients and Spark send events to a gateway's `$ingest` target.

Owns: the target, and publishing by it (`GatewayPublisher`). Not: numbered publishing (`numbered`).
Invariants: a producer is known by its name and the namespace. A *session* is a run of one
producer's calls, each sent behind the one before: they are stored in their order, one at a time,
and behind one that failed, did not come, or whose caller went away, none. So what a session stores
in a queue is without a hole, whatever other sessions of the producer do meanwhile, here or at other
gateways: of two that send the same messages, each finds stored what the other was quicker with. A
repeated sequence is stored once where the provider drops duplicates.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Protocol

import msgspec

from millstream.runtime import NotHosted, QueueUnavailable, StreamError
from millstream.runtime.extending import Gateway, Role, SystemTarget, open_to
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import OutMessage, ProducerMark
from millstream.streams.contracts.token import Token

from .split import PublishLimits, messages_of

__all__ = ["GatewayPublisher", "IngestMessage", "IngestTarget"]

new_stream: Callable[..., StreamId] = tuple.__new__  # `StreamId(...)`, at half the cost
SESSIONS_MAX = 10_000
"""Runs of producers that a gateway knows; who is forgotten begins another."""


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

    def store_together(
        self, lists: Sequence[Sequence[OutMessage]], /
    ) -> Sequence[bool | StreamError]:
        """`store` for lists of messages, each of one stream, where that takes no waiting. Is each
        stored? An error: that is unknown."""
        ...


class Session:
    """A run of one producer's calls. `next`: the place of the one that may come; -1: none."""

    __slots__ = ("lock", "next")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.next = 0


class IngestTarget(SystemTarget):
    """Stores what producers send, for one provider (`$ingest/<provider>`)."""

    target_name = "$ingest"

    def __init__(self, store: Store) -> None:
        self._into = store
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()

    def publish_together(
        self, calls: Sequence[tuple[str, str, list[IngestMessage]]]
    ) -> list[object]:
        """`publish` of clients' events in no task, where nothing waits before them: each queue
        gets those of all its streams at once."""
        lists: list[list[OutMessage]] = []
        for namespace, producer, messages in calls:
            if producer or not (len(messages) == 1 or are_of_one_stream(messages)):
                break  # what comes behind it stays behind it
            lists.append(out_messages(namespace, "", messages))
        found: list[object] = [NotImplemented] * len(calls)
        for at, stored in enumerate(self._into.store_together(lists)):
            if stored is not False:
                found[at] = len(calls[at][2]) if stored is True else stored
        return found

    together = MappingProxyType({"publish": publish_together})

    @open_to(Role.CLIENT)
    async def publish(self, namespace: str, producer: str, messages: list[IngestMessage]) -> int:
        """Store messages in order; returns how many were accepted (repeated ones count).

        Raises the error of the first message that failed; per queue nothing behind it is stored.
        A producer sends one call after the other, each once it has the answer of the one before.
        """
        identity = producer_of(namespace, producer) if producer else ""
        await self._store(namespace, identity, messages)
        return len(messages)

    @open_to(Role.CLIENT)
    async def publish_next(
        self,
        namespace: str,
        producer: str,
        session: str,
        place: int,
        messages: list[IngestMessage],
    ) -> int:
        """`publish` for a producer that does not wait for the answers.

        Args:
            session: a name that no other run of calls of this producer has.
            place: of this call in it; the first one is 0, and begins the session here.

        Raises QueueUnavailable too: the call before this one failed, or did not come. The session
        is over then: begin another with the first messages that were not accepted.
        """
        identity = producer_of(namespace, producer)
        known = self._find_session(identity, session)
        async with known.lock:
            if place != known.next:
                before = "a call failed" if known.next < 0 else f"call {known.next} did not come"
                raise QueueUnavailable(
                    f"producer {identity}: call {place} is not stored, since before it {before} in "
                    f"its session: begin another session"
                )
            known.next = -1  # unless all of it is known to be stored
            await self._store(namespace, identity, messages)
            known.next = place + 1
        return len(messages)

    async def _store(
        self, namespace: str, producer: str, messages: Sequence[IngestMessage]
    ) -> None:
        """Store them. Raises the error of the first that failed."""
        for outcome in await self._into.store(out_messages(namespace, producer, messages)):
            if isinstance(outcome, StreamError):
                raise outcome

    def _find_session(self, producer: str, session: str) -> Session:
        name = producer, session
        known = self._sessions.setdefault(name, Session())
        self._sessions.move_to_end(name)
        if len(self._sessions) > SESSIONS_MAX:
            oldest = next(iter(self._sessions))
            if not self._sessions[oldest].lock.locked():
                del self._sessions[oldest]
        return known


def are_of_one_stream(messages: Sequence[IngestMessage]) -> bool:
    """Are there messages, and all of one stream?"""
    return bool(messages) and all(one.key == messages[0].key for one in messages)


def out_messages(
    namespace: str, producer: str, messages: Sequence[IngestMessage]
) -> list[OutMessage]:
    """Messages as they are stored."""
    found: list[OutMessage] = []
    for one in messages:
        stream, items = new_stream(StreamId, (namespace, one.key)), list(map(bytes, one.items))
        mark = ProducerMark(producer, one.seq) if producer else None
        found.append(OutMessage(stream, items, one.headers or {}, mark))
    return found


def producer_of(namespace: str, producer: str) -> str:
    """What a producer is known by in the queues: a writer of two namespaces is two producers."""
    return f"{len(namespace)}:{namespace}/{producer}"


@cache  # a publisher is made for each publish
def limits_of_clients(frame_bytes_max: int) -> PublishLimits:
    """The largest message of a client: as in silos, but for the provider's own limit."""
    return PublishLimits(message_bytes_max=frame_bytes_max).within(frame_bytes_max)


class GatewayPublisher:
    """A client's publisher: events go through its gateway to the provider's `$ingest` target.

    A publish returns once the provider has accepted the message. The gateway knows the provider's
    own limits, here it is what a frame allows.
    """

    def __init__(self, gateway: Gateway, provider: str) -> None:
        self._gateway = gateway
        self._provider = provider
        self._limits = limits_of_clients(gateway.frame_bytes_max)
        self._target = f"{IngestTarget.target_name}/{provider}"

    async def publish(
        self, stream: StreamId, bodies: Sequence[bytes], headers: Mapping[str, str] | None
    ) -> Token | None:
        """Send events in order, in as many messages as they need; the gateway cuts these again as
        its queues need.

        Raises ValueError (too large), NotHosted (no silo has the provider).
        """
        parts: Sequence[Sequence[bytes]] = (bodies,)
        if self._limits.small(stream, bodies, headers) < 0:
            parts = messages_of(stream, bodies, headers, self._limits)
        given, sent = dict(headers) if headers else None, 0
        for part in parts:
            messages = [IngestMessage(stream.key, 0, [msgspec.Raw(body) for body in part], given)]
            try:
                await self._gateway.call(
                    f"{stream.namespace}/{stream.key}",
                    self._target,
                    IngestTarget.publish,
                    stream.namespace,
                    "",
                    messages,
                )
            except StreamError as error:
                error.accepted_events += sent
                raise
            except NotHosted as error:
                raise NotHosted(
                    f"stream {stream}: the cluster has no stream provider {self._provider!r}. Try "
                    "again if its silos are being restarted; else mend "
                    f"StreamNamespace(provider=...), or Silo(streams=...); {error}"
                ) from None
            sent += len(part)
        return None
