"""The services of its silo that a queue adapter may use.

Owns: `AdapterHost`. Invariant: the providers of this project use only this, so a provider of
another author can do the same.
"""

from __future__ import annotations

from typing import Any, Protocol

from millstream.runtime import StateStore
from millstream.runtime.extending import Clock, Disk, Members, MetricRegistry, Targets, Tasks

from .identity import QueueId
from .mapping import QueueMapper

__all__ = ["AdapterHost"]


class AdapterHost(Protocol):
    """One silo, as an adapter of one provider sees it. Each silo opens its own adapter.

    `QueueAdapterFactory.open` is given this object.
    """

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        ...

    @property
    def silo(self) -> str:
        """The silo's address, unique during the life of the cluster."""
        ...

    @property
    def silo_name(self) -> str:
        """The silo's name, which is the same after a restart; the silo's address if it has no
        name."""
        ...

    @property
    def provider(self) -> str:
        """Name of the stream provider that the adapter is opened for."""
        ...

    @property
    def mapper(self) -> QueueMapper:
        """The mapper, which tells the queue of each stream."""
        ...

    @property
    def clock(self) -> Clock:
        """The source of time and random numbers; in a simulation, the simulator's."""
        ...

    @property
    def disk(self) -> Disk:
        """The files of the silo's machine; in a simulation, the simulator's."""
        ...

    @property
    def tasks(self) -> Tasks:
        """Tasks and timers that end with the silo."""
        ...

    @property
    def members(self) -> Members:
        """The members of the cluster as this silo sees them."""
        ...

    @property
    def targets(self) -> Targets:
        """System targets: add one to this silo, or call one of any silo."""
        ...

    @property
    def metrics(self) -> MetricRegistry:
        """The metrics of the silo, to which an adapter adds its own."""
        ...

    def grain(self, cls: type[Any], key: str, /) -> Any:
        """Return a typed reference to a grain. This silo hosts the classes in the factory's
        `grains`.

        Args:
            cls: the grain class.
            key: the key of the grain.
        """
        ...

    def store(self, name: str = "default", /) -> StateStore:
        """Return a state store of the silo.

        Args:
            name: name of the store.

        Raises:
            ConfigError: the silo has no such store.
        """
        ...

    async def owner(self, queue: QueueId, /) -> tuple[str, int] | None:
        """Return the address of the silo that reads a queue, and the epoch, or None if the queue
        has no owner.

        Each call reads the state store.

        Args:
            queue: the queue.

        Raises:
            StorageError: the store failed.
        """
        ...

    async def era(self) -> int:
        """Return the provider's era: the number of times that token numbering has started anew.

        Raises:
            StorageError: the store failed.
        """
        ...

    async def mapper_epoch(self) -> int:
        """Return the newest mapper epoch, even while queues are still being sealed for it.

        Each call reads the state store.

        Raises:
            StorageError: the store failed.
        """
        ...

    async def raise_era(self, seen: int, /) -> int:
        """Make the era higher than `seen` and return it.

        The write is a compare-and-set: two callers that saw the same era raise it once.

        Args:
            seen: the era that the caller has read.

        Raises:
            StorageError: the store failed.
        """
        ...
