"""What a queue adapter may use of the silo that opened it.

Owns: `AdapterHost`. Invariant: our own providers use this and nothing past it, so another author's
can do what ours do.
"""

from __future__ import annotations

from typing import Any, Protocol

from millstream.runtime import StateStore
from millstream.runtime.extending import Clock, Disk, Members, Targets, Tasks

from .identity import QueueId
from .mapping import QueueMapper

__all__ = ["AdapterHost"]


class AdapterHost(Protocol):
    """One silo, as an adapter of one provider sees it. Adapters are opened once per silo."""

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        ...

    @property
    def silo(self) -> str:
        """The silo's address, unique in the life of the cluster."""
        ...

    @property
    def silo_name(self) -> str:
        """The silo's name, which it keeps when it starts again; its address if it has none."""
        ...

    @property
    def provider(self) -> str:
        """Name of the stream provider that the adapter is opened for."""
        ...

    @property
    def mapper(self) -> QueueMapper:
        """Which queue carries a stream."""
        ...

    @property
    def clock(self) -> Clock:
        """Times and chance; under simulation, the simulator's."""
        ...

    @property
    def disk(self) -> Disk:
        """The files of the silo's machine; under simulation, the simulator's."""
        ...

    @property
    def tasks(self) -> Tasks:
        """Tasks and timers that end with the silo."""
        ...

    @property
    def members(self) -> Members:
        """The cluster as this silo sees it."""
        ...

    @property
    def targets(self) -> Targets:
        """System targets: adding one here, and calling one of any silo."""
        ...

    def grain(self, cls: type[Any], key: str, /) -> Any:
        """A typed reference to a grain; classes in the factory's `grains` are hosted here."""
        ...

    def store(self, name: str = "default", /) -> StateStore:
        """A state store of the silo. Raises ConfigError: no such store."""
        ...

    async def owner(self, queue: QueueId, /) -> tuple[str, int] | None:
        """Address of the silo that reads a queue, and its epoch; None while it is free.

        Costs a read of the state store. Raises StorageError.
        """
        ...

    async def era(self) -> int:
        """The provider's era: numbering began anew so often. Raises StorageError."""
        ...

    async def mapper_epoch(self) -> int:
        """The newest mapper epoch, also while queues are still being sealed for it.

        Costs a read of the state store. Raises StorageError.
        """
        ...

    async def raise_era(self, seen: int, /) -> int:
        """Make the era higher than `seen`, which was read before; returns it.

        By compare-and-set, so two that saw the same era raise it once. Raises StorageError.
        """
        ...
