"""What a queue provider implements.

Owns: the contract of factories, adapters, receivers and readers (DESIGN 5a, spec/contract.md).
Parameters are positional-only here, so an author may name them freely. Not: implementations
(`millstream.providers`). Invariants: a queue has one owner, in one epoch; a method that raises
QueueFenced has changed nothing; every call has a time limit, which the runtime keeps.
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
    """The read side of one queue for one owner and epoch. QueueFenced from any method: stop.

    The runtime calls `start` once, then `read` one at a time, and beside a read at most one of
    `ack`, `release` and `extend`. None is cancelled while the receiver is used on: after a call
    that failed or was late the receiver is closed, and another one is made for the same epoch.
    """

    async def start(self, after: Token | None, /) -> None:
        """Begin behind this position; None: at the oldest message that is not acknowledged.

        With OWN_POSITION it begins at the later of `after` and its own; without ORDERED `after` is
        None. Raises CursorTooOld(text, first=token): a message behind `after` is gone; `first` is
        the oldest that is kept (None: none is), and the next read begins with it. A hole in the
        numbers is no loss.
        """
        ...

    async def read(
        self, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        """Take the next messages; [] means nothing yet.

        At most `max_events` events (items) and `max_bytes` bytes of items, but one message at
        least. Returns within `wait_s` and the time of its own I/O; with WAKEUP as soon as
        something is there.
        """
        ...

    async def ack(self, upto: Token | None, also: Sequence[Token] = (), /) -> None:
        """Every message up to and including `upto` is done, and (ITEM_ACK) those in `also`.

        Idempotent; an older position changes nothing. Tokens name whole messages.
        """
        ...

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool, /) -> None:
        """ITEM_ACK: give messages back to the queue, to be read again after `delay_s`.

        All of them, however long the list is, and none before all of `delay_s` is over.
        `has_run`: they count as tried. No effect on a log, or on what was not read here.
        """
        ...

    async def extend(self, tokens: Sequence[Token], lease_s: float, /) -> Sequence[Token]:
        """LEASED: hold these messages for `lease_s` from now on; returns those that are lost.

        All of them, however long the list is, and for all of `lease_s`.
        """
        ...

    async def aclose(self) -> None:
        """End, also a read that waits; again is harmless. LEASED: what is out is given back."""
        ...


class QueueAdapter(Protocol):
    """One opened provider in one silo."""

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        """Store messages in order; returns once all are stored, with their tokens if known.

        One call is under way per queue and silo; the runtime puts together what came meanwhile.
        Raises EnqueueFailed(accepted, cause): a prefix is stored, and nothing else of the list,
        now or later, unless the cause is PublishUnknown. Another StreamError means that nothing
        is stored. QueueFull, QueueUnavailable and StaleMapper are tried again by the runtime.
        """
        ...

    def receiver(self, queue: QueueId, epoch: int, /) -> QueueReceiver:
        """A new receiver for the owner in this epoch; it does nothing before `start`."""
        ...

    async def aclose(self) -> None:
        """End; again is harmless."""
        ...


class QueueAdapterFactory(Protocol):
    """What a user passes as a provider: opened once per silo.

    Optional: `grains`, classes that the silo hosts for it; `agreement`, a mapping of texts: what
    the factories of all silos must have alike, such as `{"directory": "one for all"}`;
    `has_bookie`, True if it keeps data of all silos in this one, so that a silo may be run for that
    alone.
    """

    @property
    def capabilities(self) -> frozenset[Capability]: ...
    async def open(self, provider: str, host: AdapterHost, /) -> QueueAdapter: ...


class QueueReader(Protocol):
    """Reads a queue beside its owner, without disturbing it, from any position that is kept."""

    async def bounds(self) -> tuple[Token | None, Token | None]:
        """The first message that is kept and the last that was accepted; None while empty."""
        ...

    async def seek(self, when: datetime, /) -> Token | None:
        """The first message accepted at this very time or after it; None: none yet."""
        ...

    async def read_from(
        self,
        position: Token,
        max_events: int,
        max_bytes: int,
        streams: frozenset[StreamId] | None,
        /,
    ) -> Page:
        """Messages from `position` (inclusive) on, of these streams (None: of all).

        `max_bytes` bounds what is looked at, found or not; one message at least is looked at. In
        the owner's process everything that `read` has returned is seen.
        Raises CursorTooOld(text, first=token): a message at `position` or behind it is gone;
        `first` is the oldest that is kept (None: none is), where the caller reads on.
        """
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class EnqueuesAtOnce(Protocol):
    """An adapter that can often store without waiting, as a queue in this process can."""

    def enqueue_at_once(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None] | None:
        """Store the whole list now, as `enqueue` would; None: it would have to wait.

        All of the list is stored or nothing: with None, or a StreamError, nothing is, and the
        runtime calls `enqueue`. It is asked only while no call of `enqueue` is under way, and
        perhaps in no task.
        """
        ...


@runtime_checkable
class LimitsMessages(Protocol):
    """An adapter whose queues refuse larger messages for good.

    The runtime refuses them before it calls `enqueue`, and cuts lists of events accordingly. To an
    adapter without this property it gives whatever a frame can carry.
    """

    @property
    def message_limits(self) -> MessageLimits:
        """The largest message; the same as long as the adapter is open."""
        ...


@runtime_checkable
class Rewinds(Protocol):
    """REWIND: an adapter whose queues can be read again."""

    def reader(self, queue: QueueId, /) -> QueueReader:
        """A reader that stands beside the owner; also in silos that do not own the queue."""
        ...


@runtime_checkable
class Retains(Protocol):
    """An adapter (REWIND) that keeps messages for readers beside the owner, by their names."""

    async def retain(self, queue: QueueId, reader: str, position: Token | None, /) -> None:
        """Keep what is there from `position` (inclusive) on, until this reader retains from
        further on, or is let go; None: everything that is there now. Durable when it returns.

        For a reader that is known the later of the two positions counts, so that again, late
        and out of order is harmless. In any silo. Raises ConfigError: there are too many;
        StreamError: it is not known whether it is kept.
        """
        ...

    async def let_go(self, queue: QueueId, reader: str, /) -> None:
        """Keep nothing for this reader; again is harmless, and so is one that is not known."""
        ...

    async def list_retained(self, queue: QueueId, /) -> Mapping[str, Token]:
        """The readers for which messages are kept, and the position from which on."""
        ...


@runtime_checkable
class Seals(Protocol):
    """SEALED: an adapter whose queues can be closed for streams that move to another one."""

    async def seal(self, queue: QueueId, mapper_epoch: int, era: int, /) -> Token | None:
        """Refuse older mapper epochs with StaleMapper from now on; later messages carry `era`.

        A sequence that is known is still answered as accepted. Returns the barrier: the last
        message that was accepted before; None: there was none. Again returns the same.
        """
        ...


@runtime_checkable
class BringsMapper(Protocol):
    """An adapter whose broker decides which queue carries a stream, and how many there are."""

    def mapper(self, changed: Callable[[], None], /) -> QueueMapper:
        """The mapper as of now, which never changes; `changed` is called, on the event loop of
        this silo, when another one holds, which has a higher epoch."""
        ...


@runtime_checkable
class TellsFailed(Protocol):
    """A receiver (ITEM_ACK, not ORDERED) whose queue tells what failed from what is done."""

    async def fail(self, tokens: Sequence[Token], reason: str, /) -> None:
        """A subscription gave these up: they are over, as by `ack`, but not done. Idempotent.

        One call of this, `ack`, `release` and `extend` is out at a time.
        """
        ...


@runtime_checkable
class Measurable(Protocol):
    """A receiver that can tell how much it has not read yet; for figures only."""

    async def backlog(self) -> int:
        """Events that are stored and that this receiver has not read."""
        ...
