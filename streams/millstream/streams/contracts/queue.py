"""What a queue provider implements, and what a queue mapper and a balancer are.

Owns: the plug-in contracts. Parameters are positional-only here, so an author may name them freely.
Not: implementations (`millstream.providers`, `millstream.balancers`).
Invariants: a queue has one owner, in one epoch; `read` gives messages in the order of their tokens;
`ack` is idempotent; a method that raises QueueFenced has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Protocol, runtime_checkable

from millstream.runtime.extending import Tasks

from .identity import QueueId, StreamId
from .token import Token

__all__ = [
    "AdapterContext",
    "Capability",
    "Measurable",
    "OutMessage",
    "ProducerMark",
    "QueueAdapter",
    "QueueAdapterFactory",
    "QueueBalancer",
    "QueueMapper",
    "QueueMessage",
    "QueueReceiver",
    "Rewindable",
    "SiloSet",
]


class Capability(Enum):
    """What a provider can do; the runtime asks for nothing that is not declared."""

    DURABLE = "durable"  # an accepted message survives the death of every silo
    REWIND = "rewind"  # `Rewindable` is implemented
    WAKEUP = "wakeup"  # `read` returns as soon as something is there: no polling
    ORDERED = "ordered"  # messages of one stream are read in the order of acceptance
    STABLE_TOKENS = "stable_tokens"  # a message read again has the same token
    ITEM_ACK = "item_ack"  # `ack(also=...)` acknowledges single messages
    FENCED_ACK = "fenced_ack"  # `start` and `ack` refuse an older epoch
    FENCED_ENQUEUE = "fenced_enqueue"  # `enqueue` refuses an older mapper epoch
    DEDUP = "dedup"  # a producer's message with a sequence that was accepted is dropped


@dataclass(frozen=True, slots=True)
class ProducerMark:
    """Identifies a message of a producer, so that sending it twice stores it once."""

    producer: str
    seq: int


@dataclass(frozen=True, slots=True)
class OutMessage:
    """Items of one stream on their way into a queue; `items` are encoded MessagePack values."""

    stream: StreamId
    items: Sequence[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    mark: ProducerMark | None = None


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A stored message: `token` is that of its first item (index 0); item i has index i."""

    stream: StreamId
    token: Token
    items: Sequence[bytes]
    headers: Mapping[str, str] = field(default_factory=dict)
    enqueued_s: float = 0.0  # wall clock, for lag figures


class AdapterContext(Protocol):
    """What an adapter may use of the silo or client that opened it."""

    @property
    def cluster(self) -> str: ...
    @property
    def silo(self) -> str | None:
        """The silo's address; None in a client."""
        ...

    @property
    def mapper(self) -> QueueMapper | None:
        """Which queue carries a stream here; None where nobody has decided."""
        ...

    @property
    def tasks(self) -> Tasks:
        """Tasks and timers that end with the silo."""
        ...

    def grain(self, cls: type[Any], key: str, /) -> Any: ...
    def wall_s(self) -> float: ...


class QueueReceiver(Protocol):
    """The read side of one queue for one owner and epoch. QueueFenced from any method: stop."""

    async def start(self, after: Token | None, /) -> None:
        """Begin after this position; None: at the oldest unacknowledged message."""
        ...

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        """Take the next messages; wait up to `wait_s` for the first; [] means nothing yet."""
        ...

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        """Everything up to and including `upto` is done; `also` needs ITEM_ACK."""
        ...

    async def release(self, tokens: Sequence[Token], delay_s: float, /) -> None:
        """Give messages back to the queue; no effect on a log."""
        ...

    async def aclose(self) -> None: ...


class QueueAdapter(Protocol):
    """One opened provider in one silo or client."""

    async def enqueue(
        self, queue: QueueId, message: OutMessage, mapper_epoch: int, /
    ) -> Token | None:
        """Store a message; returns once it is accepted, with its token if that is known.

        Raises QueueFull, QueueUnavailable, StaleMapper, or PublishUnknown (may have been accepted).
        """
        ...

    def receiver(self, queue: QueueId, epoch: int, /) -> QueueReceiver: ...
    async def aclose(self) -> None: ...


class QueueAdapterFactory(Protocol):
    """What a user passes as a provider: opened once per silo or client."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...
    async def open(self, provider: str, context: AdapterContext, /) -> QueueAdapter: ...


@runtime_checkable
class Rewindable(Protocol):
    """An adapter's receiver that can read an older range beside its own position."""

    async def read_from(
        self, position: Token | datetime, max_events: int, max_bytes: int, /
    ) -> Sequence[QueueMessage]:
        """Messages from `position` (inclusive). Raises CursorTooOld."""
        ...


@runtime_checkable
class Measurable(Protocol):
    """A receiver that can tell how much it has not read yet; for figures only."""

    async def backlog(self) -> int:
        """Events that are stored and that this receiver has not read."""
        ...


class QueueMapper(Protocol):
    """Which queue carries a stream. Pure: equal inputs give equal answers everywhere."""

    @property
    def epoch(self) -> int: ...
    def queues(self) -> Sequence[QueueId]: ...
    def queue_for(self, stream: StreamId, /) -> QueueId: ...


class SiloSet(Protocol):
    """The live silos that may own queues, as a balancer sees them."""

    @property
    def me(self) -> str: ...
    @property
    def tasks(self) -> Tasks:
        """Tasks and timers that end with the silo."""
        ...

    def silos(self) -> Sequence[str]: ...
    def names(self) -> Mapping[str, str]:
        """Configured name by silo address."""
        ...

    def watch(self, changed: Callable[[], None], /) -> Callable[[], None]:
        """Call back after each change; returns a function that ends it."""
        ...


class QueueBalancer(Protocol):
    """Says which queues its silo wants; never starts, stops or releases anything."""

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[frozenset[QueueId]], None],
        /,
    ) -> None: ...
    async def aclose(self) -> None: ...
