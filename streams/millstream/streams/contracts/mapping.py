"""The contracts of mappers and balancers: the queue of a stream, and the reader of a queue.

Owns: these contracts. Not: implementations (`ownership.mapper`,
`millstream.balancers`). Invariants: a mapper is pure. A balancer only says which queues its silo
wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from millstream.runtime.extending import Tasks

from .identity import QueueId, StreamId

__all__ = ["QueueBalancer", "QueueMapper", "QueueOwner", "SiloSet"]


class QueueMapper(Protocol):
    """Tells the queue that carries each stream.

    A mapper is pure: equal arguments give equal answers in every process and for ever. Do not use
    `hash()`, because each process seeds it differently. To support `resize`, a mapper also needs a
    method `with_queues(queues, epoch)` that returns a mapper for another number of queues.

    If `queue_for` raises, or answers a name that is not in `queues()`, the publisher gets a
    `StreamError` that names the stream, the mapper and the answer. Nothing is sent.
    """

    @property
    def epoch(self) -> int:
        """The version of the mapping: each change of the queues has a higher epoch."""
        ...

    def queues(self) -> Sequence[QueueId]:
        """Return the names of all queues."""
        ...

    def queue_for(self, stream: StreamId, /) -> QueueId:
        """Return the queue that carries a stream; always one of `queues()`.

        Args:
            stream: the stream.
        """
        ...


class QueueOwner(Struct, frozen=True):
    """The owner of a queue, as the queue record says.

    Attributes:
        silo: address of the owner.
        epoch: number of this ownership.
        is_pausing: the owner is about to hand the queue over.
        has_lapsed: the owner's lease has run out, counted from when this silo first saw its last
            renewal.
    """

    silo: str
    epoch: int
    is_pausing: bool = False
    has_lapsed: bool = False


class SiloSet(Protocol):
    """The live silos that may own queues, and the queues that they own, as a balancer sees them."""

    @property
    def me(self) -> str:
        """The address of the balancer's own silo."""
        ...

    @property
    def lease_s(self) -> float:
        """The lease of an owner in seconds (`OwnershipOptions.lease_s`), or 0 if owners have no
        lease."""
        ...

    @property
    def tasks(self) -> Tasks:
        """Tasks and timers that end with the silo."""
        ...

    def silos(self) -> Sequence[str]:
        """Return the addresses of the live silos that may own queues."""
        ...

    def names(self) -> Mapping[str, str]:
        """Return the configured name of each silo, by address."""
        ...

    async def owners(self) -> Mapping[QueueId, QueueOwner]:
        """Return the owner of each queue that has one. Reads the state store.

        Raises:
            StorageError: the store failed.
        """
        ...

    def watch(self, changed: Callable[[], None], /) -> Callable[[], None]:
        """Call a function after each change of the live silos.

        Args:
            changed: the function.

        Returns:
            A function that ends the calls.
        """
        ...


class QueueBalancer(Protocol):
    """Says which queues its silo wants to read; it never acquires or releases a queue itself.

    One balancer object serves one silo. Pass it to `PersistentStreams(balancer=...)`.
    """

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[Iterable[QueueId]], None],
        /,
    ) -> None:
        """Call `wanted` with the queues that this silo wants, and again whenever the answer
        changes.

        Args:
            queues: all queues of the provider.
            silos: the live silos and the owners of queues.
            wanted: takes the queues that this silo wants; the newest call counts.
        """
        ...

    async def aclose(self) -> None:
        """Stop calling `wanted`."""
        ...
