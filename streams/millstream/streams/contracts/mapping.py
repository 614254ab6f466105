"""Which queue carries a stream, and which silo wants to read which queue.

Owns: the contracts of mappers and balancers. Not: implementations (`ownership.mapper`,
`millstream.balancers`). Invariant: a mapper is pure; a balancer only says what its silo wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from millstream.runtime.extending import Tasks

from .identity import QueueId, StreamId

__all__ = ["QueueBalancer", "QueueMapper", "QueueOwner", "SiloSet"]


class QueueMapper(Protocol):
    """Which queue carries a stream. Pure: equal inputs give equal answers in every process and at
    any time, so `hash()`, whose seed is another one in each process, must not be used."""

    @property
    def epoch(self) -> int: ...
    def queues(self) -> Sequence[QueueId]: ...
    def queue_for(self, stream: StreamId, /) -> QueueId: ...


class QueueOwner(Struct, frozen=True):
    """Who owns a queue, as its record says.

    `is_pausing`: it is about to give the queue away. `has_lapsed`: its lease has run out, counted
    from when this silo first saw the last renewal.
    """

    silo: str
    epoch: int
    is_pausing: bool = False
    has_lapsed: bool = False


class SiloSet(Protocol):
    """The live silos that may own queues, and which they own, as a balancer sees them."""

    @property
    def me(self) -> str: ...
    @property
    def lease_s(self) -> float:
        """The lease of an owner (`OwnershipOptions.lease_s`); 0: owners have none."""
        ...

    @property
    def tasks(self) -> Tasks:
        """Tasks and timers that end with the silo."""
        ...

    def silos(self) -> Sequence[str]: ...
    def names(self) -> Mapping[str, str]:
        """Configured name by silo address."""
        ...

    async def owners(self) -> Mapping[QueueId, QueueOwner]:
        """The owner of each queue that has one. Raises StorageError."""
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
        wanted: Callable[[Iterable[QueueId]], None],
        /,
    ) -> None: ...
    async def aclose(self) -> None: ...
