"""Publishing from outside: clients and Spark send events to a gateway's `$ingest` target.

Owns: the target, and publishing by it (`GatewayPublisher`). Not: numbered publishing (`numbered`).

A *session* is a sequence of calls of one producer, sent in order. Invariants:

- A producer is known by its name and the namespace.
- The calls of a session are stored in order, one at a time. After a call that failed, did not
  arrive or was cancelled, no later call is stored. So the messages of a session in a queue have no
  hole.
- Other sessions of the producer, here or at other gateways, do not change that. If two sessions
  send the same messages, each finds stored the messages that the other one sent first.
- A repeated sequence is stored once if the provider drops duplicates.
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

new_stream: Callable[..., StreamId] = tuple.__new__  # `StreamId(...)` at half the cost
SESSIONS_MAX = 10_000
"""Sessions that a gateway remembers; a forgotten one has to be begun again."""


class IngestMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message of one key, as `encode_messages` takes it.

    Attributes:
        key: the key of the stream.
        seq: the producer's number of the message; 0: the producer has no name.
        items: the events, as encoded MessagePack values.
        headers: texts that are delivered with each event.
    """

    key: str
    seq: int
    items: list[msgspec.Raw]
    headers: dict[str, str] | None = None


class Store(Protocol):
    """Stores the messages: a stream provider."""

    async def store(self, messages: Sequence[OutMessage], /) -> list[Token | StreamError | None]:
        """The outcome of each message; in each queue a prefix of the messages is stored."""
        ...

    def store_together(
        self, lists: Sequence[Sequence[OutMessage]], /
    ) -> Sequence[bool | StreamError]:
        """`store` for lists of messages, each of one stream, if that needs no waiting.

        Returns for each list whether it is stored; an error: that is unknown.
        """
        ...


class Session:
    """A run of calls of one producer.

    `next` is the number of the next call, or -1 if the session is over.
    """

    __slots__ = ("lock", "next")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.next = 0


class IngestTarget(SystemTarget):
    """Stores the messages of producers, for one provider (`$ingest/<provider>`)."""

    target_name = "$ingest"

    def __init__(self, store: Store) -> None:
        self._into = store
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()

    def publish_together(
        self, calls: Sequence[tuple[str, str, list[IngestMessage]]]
    ) -> list[object]:
        """`publish` without a task, for clients' events that nothing has to wait for.

        Each queue gets the events of all its streams in one call.
        """
        lists: list[list[OutMessage]] = []
        for namespace, producer, messages in calls:
            if producer or not (len(messages) == 1 or are_of_one_stream(messages)):
                break  # keep the order: later calls must not overtake it
            lists.append(out_messages(namespace, "", messages))
        found: list[object] = [NotImplemented] * len(calls)
        for at, stored in enumerate(self._into.store_together(lists)):
            if stored is not False:
                found[at] = len(calls[at][2]) if stored is True else stored
        return found

    together = MappingProxyType({"publish": publish_together})

    @open_to(Role.CLIENT)
    async def publish(self, namespace: str, producer: str, messages: list[IngestMessage]) -> int:
        """Store messages in order; returns the number of accepted messages (repeated ones count).

        Raises the error of the first message that failed; no later message of its queue is stored.
        A producer waits for the answer to a call before it sends the next call.
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
            session: a name that no other session of this producer has.
            place: number of this call in the session; 0 begins the session here.

        Raises QueueUnavailable too: the call before this one failed or did not arrive. The session
        is over then; begin another one with the first messages that were not accepted.
        """
        identity = producer_of(namespace, producer)
        known = self._find_session(identity, session)
        async with known.lock:
            if place != known.next:
                before = (
                    "an earlier call failed"
                    if known.next < 0
                    else f"call {known.next} has not arrived"
                )
                raise QueueUnavailable(
                    f"producer {identity}: call {place} is not stored, because {before} in its "
                    "session: begin another session"
                )
            known.next = -1  # until all of it is known to be stored
            await self._store(namespace, identity, messages)
            known.next = place + 1
        return len(messages)

    async def _store(
        self, namespace: str, producer: str, messages: Sequence[IngestMessage]
    ) -> None:
        """Store messages. Raises the error of the first one that failed."""
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
    """Whether the list is not empty and all its messages are of one stream."""
    return bool(messages) and all(one.key == messages[0].key for one in messages)


def out_messages(
    namespace: str, producer: str, messages: Sequence[IngestMessage]
) -> list[OutMessage]:
    """Return messages in the form in which they are stored."""
    found: list[OutMessage] = []
    for one in messages:
        stream, items = new_stream(StreamId, (namespace, one.key)), list(map(bytes, one.items))
        mark = ProducerMark(producer, one.seq) if producer else None
        found.append(OutMessage(stream, items, one.headers or {}, mark))
    return found


def producer_of(namespace: str, producer: str) -> str:
    """The name of a producer in the queues: a writer of two namespaces is two producers."""
    return f"{len(namespace)}:{namespace}/{producer}"


@cache  # cached, because each publish makes a publisher
def limits_of_clients(frame_bytes_max: int) -> PublishLimits:
    """The largest message of a client: as in silos, except for the provider's own limit."""
    return PublishLimits(message_bytes_max=frame_bytes_max).within(frame_bytes_max)


class GatewayPublisher:
    """A client's publisher: events go through its gateway to the provider's `$ingest` target.

    A publish returns when the provider has accepted the message. The gateway knows the provider's
    limits; here only the frame limits a message.
    """

    def __init__(self, gateway: Gateway, provider: str) -> None:
        self._gateway = gateway
        self._provider = provider
        self._limits = limits_of_clients(gateway.frame_bytes_max)
        self._target = f"{IngestTarget.target_name}/{provider}"

    async def publish(
        self, stream: StreamId, bodies: Sequence[bytes], headers: Mapping[str, str] | None
    ) -> Token | None:
        """Send events in order, in as many messages as they need; the gateway may split these
        further.

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
                    "again if its silos are being restarted; otherwise correct "
                    f"StreamNamespace(provider=...), or Silo(streams=...); {error}"
                ) from None
            sent += len(part)
        return None
