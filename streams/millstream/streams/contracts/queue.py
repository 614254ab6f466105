"""The contract that a queue provider implements.

Owns: the contract of factories, adapters, receivers and readers. Parameters are positional-only, so
an author may name them freely. Not: implementations (`millstream.providers`). Invariants: a queue
has one owner, in one epoch. A method that raises QueueFenced has changed nothing. Every call has a
time limit, which the runtime enforces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from .capability import Capability
from .host import AdapterHost
from .identity import QueueId, StreamId
from .mapping import QueueMapper
from .message import MessageLimits, OutMessage, Page, QueueMessage
from .token import Token

__all__ = [
    "BringsMapper",
    "EnqueuesAtOnce",
    "LimitsMessages",
    "Measurable",
    "QueueAdapter",
    "QueueAdapterFactory",
    "QueueReader",
    "QueueReceiver",
    "Retains",
    "Rewinds",
    "Seals",
    "TellsFailed",
]


class QueueReceiver(Protocol):
    """The read side of one queue for one owner and epoch.

    The runtime calls `start` once and then `read`, one call at a time. During a read it makes at
    most one call of `ack`, `release` or `extend`. It does not cancel a call of a receiver that it
    continues to use. After a call that failed or was late, the runtime closes the receiver and
    makes another one for the same epoch.

    Any method may raise `QueueFenced`: a newer owner has the queue, and the runtime stops reading.
    """

    async def start(self, after: Token | None, /) -> None:
        """Begin after a position.

        With `OWN_POSITION`, begin at the later of `after` and the provider's own position. A
        missing number without a message is no loss.

        Args:
            after: the last token that is acknowledged. None: begin at the oldest message that is
                not acknowledged. A provider without `ORDERED` always gets None.

        Raises:
            CursorTooOld: a message that follows `after` is gone. `first` is the oldest one that is
                kept, and the next read begins there; None: no message is kept.
        """
        ...

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        """Take the next messages; an empty list means that none is there yet.

        Return within `wait_s` plus the time of your own I/O. With `WAKEUP`, return as soon as a
        message is there.

        Args:
            max_events: largest number of events (items). One message may exceed both limits.
            max_bytes: largest number of bytes of items.
            wait_s: how long to wait for the first message, in seconds.
        """
        ...

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        """Acknowledge messages. The call is idempotent, and an older position changes nothing.

        Args:
            upto: every message up to and including this token is processed; None: no such position.
            also: with `ITEM_ACK`, tokens of single messages that are processed. Tokens name whole
                messages.
        """
        ...

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool, /) -> None:
        """With `ITEM_ACK`: return messages to the queue, to be read again after `delay_s`.

        Release all of them, however long the list is, and none of them early. A log does nothing
        here, and neither does a queue for messages that this receiver has not read.

        Args:
            tokens: the messages.
            delay_s: shortest time before they are read again, in seconds.
            has_run: the messages count as attempted.
        """
        ...

    async def extend(self, tokens: Sequence[Token], lease_s: float, /) -> Sequence[Token]:
        """With `LEASED`: extend the leases of messages, all of them, however long the list is.

        Args:
            tokens: the messages.
            lease_s: the new lease, in seconds from now.

        Returns:
            The messages whose lease is lost.
        """
        ...

    async def aclose(self) -> None:
        """Close the receiver and end a read that waits; a repeated call does nothing.

        With `LEASED`, return the messages that are not acknowledged to the queue.
        """
        ...


class QueueAdapter(Protocol):
    """An opened provider in one silo: `QueueAdapterFactory.open` returns it.

    It may implement more Protocols: `EnqueuesAtOnce`, `LimitsMessages`, `Rewinds`, `Retains`,
    `Seals` and `BringsMapper`. When a silo starts, it checks the shape of the adapter. The error
    names every missing method, and every method that is wrongly async or wrongly not async.
    """

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        """Store messages in order, and return when all are stored.

        The runtime makes one call at a time for each queue and silo; it collects the messages that
        arrive meanwhile. It retries after `QueueFull`, `QueueUnavailable` and `StaleMapper`. After
        any `StreamError` other than `EnqueueFailed` and `PublishUnknown`, it assumes that no
        message is stored.

        Args:
            queue: the queue.
            messages: the messages, in order.
            mapper_epoch: the mapper epoch of the publisher; a queue sealed for a newer epoch
                refuses it.

        Returns:
            The token of each message; None where it is not known.

        Raises:
            EnqueueFailed: a prefix of the list is stored. Unless the cause is `PublishUnknown`, the
                rest is not stored, now or later.
            StaleMapper: the queue was sealed for a newer mapper epoch.
            QueueFull: the queue has no room.
            QueueUnavailable: the queue cannot be reached.
            PublishUnknown: it is not known which messages are stored.
        """
        ...

    def receiver(self, queue: QueueId, epoch: int, /) -> QueueReceiver:
        """Return a new receiver for the owner of a queue; the receiver does nothing before `start`.

        Args:
            queue: the queue.
            epoch: the number of this ownership.
        """
        ...

    async def aclose(self) -> None:
        """Close the adapter; a repeated call does nothing."""
        ...


class QueueAdapterFactory(Protocol):
    """A queue provider as a user passes it to `PersistentStreams`; each silo opens its own adapter.

    A silo that cannot start, or was evicted, closes the adapters that it opened. The contracts are
    Protocols, so any class with these methods will do. See [Writing a queue
    adapter](../guides/queue_adapter.md) for the rules. A factory may also have these attributes:

    - `grains`: grain classes that the silo hosts for the provider.
    - `agreement`: a mapping of texts that the factories of all silos must have in common, such as
      `{"directory": "one for all"}`. A silo with other texts cannot join.
    - `has_bookie`: True if this silo keeps data of all silos, so that a silo may run for that
      purpose alone.
    """

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The promises of this provider."""
        ...

    async def open(self, provider: str, host: AdapterHost, /) -> QueueAdapter:
        """Open the adapter of one silo.

        Args:
            provider: name of the stream provider.
            host: the services of the silo.
        """
        ...


class QueueReader(Protocol):
    """Reads a queue from any stored position, independently of the queue's owner."""

    async def bounds(self) -> tuple[Token | None, Token | None]:
        """Return the first message that is kept and the last one that was accepted; None while
        empty."""
        ...

    async def seek(self, when: datetime, /) -> Token | None:
        """Return the token of the first message accepted at a time or later; None if there is none
        yet. The position of the reader stays.

        Args:
            when: the time, with a time zone.
        """
        ...

    async def read_from(
        self,
        position: Token,
        max_events: int,
        max_bytes: int,
        streams: frozenset[StreamId] | None,
        /,
    ) -> Page:
        """Read messages from a position on.

        In the owner's process, the reader sees every message that the receiver's `read` has
        returned.

        Args:
            position: the first position to look at, inclusive.
            max_events: largest number of events (items) to return.
            max_bytes: largest number of bytes to look at, including messages of other streams. At
                least one message is looked at.
            streams: return only messages of these streams. None: of all streams.

        Raises:
            CursorTooOld: a message at `position` or after it is gone. `first` is the oldest
                message that is kept, where the caller continues; None: no message is kept.
        """
        ...

    async def aclose(self) -> None:
        """Close the reader."""
        ...


@runtime_checkable
class EnqueuesAtOnce(Protocol):
    """An adapter that can often store without waiting, such as a queue in this process."""

    def enqueue_at_once(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None] | None:
        """Store the whole list now, as `enqueue` would, or store nothing and return None.

        After None or a `StreamError`, the runtime calls `enqueue`. It calls this method only while
        no call of `enqueue` is under way. The caller may not be a task.

        Args:
            queue: the queue.
            messages: the messages, in order.
            mapper_epoch: the mapper epoch of the publisher.
        """
        ...


@runtime_checkable
class LimitsMessages(Protocol):
    """An adapter whose queues refuse messages above a size for good.

    The runtime refuses larger messages before it calls `enqueue`, and splits lists of events
    accordingly. An adapter without this property may get any message that fits into a frame.
    """

    @property
    def message_limits(self) -> MessageLimits:
        """The largest message; constant while the adapter is open."""
        ...


@runtime_checkable
class Rewinds(Protocol):
    """An adapter with `REWIND`: its queues can be read again."""

    def reader(self, queue: QueueId, /) -> QueueReader:
        """Return a reader of a queue. It works independently of the owner, and in any silo.

        Args:
            queue: the queue.
        """
        ...


@runtime_checkable
class Retains(Protocol):
    """An adapter with `REWIND` that keeps messages for named readers as well as for the owner.

    Programs outside the cluster use this: for example, a query of Spark keeps the messages that it
    has not processed. Optional.
    """

    async def retain(self, queue: QueueId, reader: str, position: Token | None, /) -> None:
        """Keep the messages from a position on for a reader. The promise is durable when the call
        returns.

        For a known reader, the later of the two positions counts; repeated, late and reordered
        calls do no harm. Any silo may call this.

        Args:
            queue: the queue.
            reader: name of the reader.
            position: the first message to keep. None: keep every message that is there now.

        Raises:
            ConfigError: the queue has too many readers.
            StreamError: it is not known whether the messages are kept.
        """
        ...

    async def let_go(self, queue: QueueId, reader: str, /) -> None:
        """Keep nothing for a reader any more. An unknown reader and a repeated call do no harm.

        Args:
            queue: the queue.
            reader: name of the reader.
        """
        ...

    async def list_retained(self, queue: QueueId, /) -> Mapping[str, Token]:
        """Return the position from which messages are kept, by name of the reader.

        Args:
            queue: the queue.
        """
        ...


@runtime_checkable
class Seals(Protocol):
    """An adapter with `SEALED`: its queues can be closed to publishers that use an older mapper."""

    async def seal(self, queue: QueueId, mapper_epoch: int, era: int, /) -> Token | None:
        """Refuse publishers of older mapper epochs with `StaleMapper` from now on.

        A producer's sequence that was accepted before is still answered as accepted. A repeated
        call returns the same barrier.

        Args:
            queue: the queue.
            mapper_epoch: the lowest mapper epoch that the queue accepts.
            era: the era of the tokens of later messages.

        Returns:
            The barrier: the last message that was accepted before. None: there was none.
        """
        ...


@runtime_checkable
class BringsMapper(Protocol):
    """An adapter whose broker decides how many queues there are, and which queue carries a stream.

    The runtime uses this mapper if `PersistentStreams` was given none.
    """

    def mapper(self, changed: Callable[[], None], /) -> QueueMapper:
        """Return the current mapper, which never changes itself.

        Args:
            changed: call this on the silo's event loop when another mapper with a higher epoch
                applies.
        """
        ...


@runtime_checkable
class TellsFailed(Protocol):
    """A receiver with `ITEM_ACK` and without `ORDERED` whose queue tells failed from processed
    messages."""

    async def fail(self, tokens: Sequence[Token], reason: str, /) -> None:
        """Report messages that a subscription has given up; the runtime calls this instead of
        `ack`.

        The call is idempotent. At most one call of `fail`, `ack`, `release` and `extend` is under
        way.

        Args:
            tokens: the messages.
            reason: why they were given up.
        """
        ...


@runtime_checkable
class Measurable(Protocol):
    """A receiver that can count the events that it has not read yet; used for figures only."""

    async def backlog(self) -> int:
        """Return the number of stored events that this receiver has not read."""
        ...
