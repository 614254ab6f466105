"""Priority queues in one silo, as a part of it.

Owns: `PriorityQueues`: the store's life in this silo, and what owners of queues are given. Not: the
owners (`owner`), what programs use (`surface`).
Invariants: one object serves one silo; a store that several silos of a process share is opened and
closed by each of them, and counts them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256

from millstream.runtime import ConfigError, Grain, with_options
from millstream.runtime.extending import SiloPart, SiloServices, Tasks, kind_of

from .core.settings import QueueSettings, Template, settings_for
from .owner.grain import owner_of
from .owner.options import PriorityOptions
from .owner.target import QueuesTarget
from .owner.waking import Waker
from .store.contract import PriorityStore

__all__ = ["PriorityQueues"]

log = logging.getLogger("millstream.priority")


class PriorityQueues(SiloPart):
    """Priority queues: `Silo(parts={"priority": PriorityQueues(EmbeddedStore("data/priority"))})`.

    Args:
        store: where the queues are. Silos of a cluster have the same: one object in a process, or
            the same place.
        auto_create: create a queue when it is first enqueued to or dequeued from.
        templates: what such queues are like, by the longest prefix of their names that fits; others
            are simple, with the defaults.
        options: limits and waits.
    """

    def __init__(
        self,
        store: PriorityStore,
        /,
        *,
        auto_create: bool = True,
        templates: Sequence[Template] = (),
        options: PriorityOptions | None = None,
    ) -> None:
        self.store = store
        self.options = PriorityOptions() if options is None else options
        self.is_ended = False
        self._auto_create = auto_create
        self._templates = tuple(templates)
        self._services: SiloServices | None = None
        self._waker: Waker | None = None

    def grains(self, name: str, /) -> Sequence[type[Grain]]:
        """The owners of the queues."""
        return (owner_of(name),)

    def agreement(self) -> Mapping[str, str]:
        """How queues come to be: else that would depend on where their owners are."""
        store = f"{type(self.store).__qualname__} {getattr(self.store, 'place', '')}".rstrip()
        digest = sha256(repr((self._auto_create, self._templates)).encode()).hexdigest()[:16]
        return {"store of queues": store, "queues created on use": digest}

    # -- what owners are given

    def created_on_use(self, queue: str, /) -> QueueSettings | None:
        """What a queue is like that is created by its first use; None: it is not."""
        return settings_for(queue, self._templates) if self._auto_create else None

    def new_tasks(self) -> Tasks:
        """Tasks and timers of one owner, who ends them."""
        assert self._services is not None, "owners live between open and the end"
        return self._services.new_tasks()

    # -- life

    async def open(self, services: SiloServices, name: str, /) -> None:
        """Open the store."""
        if self._services is not None:
            raise ConfigError(
                f"part {name!r}: this PriorityQueues already serves a silo; make one per silo "
                "(they may share a store)"
            )
        await self.store.open()
        self._services = services
        services.targets.add(QueuesTarget(self.store), name)
        cls = owner_of(name)

        async def wake(queue: str) -> None:
            owner = services.grain(cls, queue)
            await with_options(owner, timeout=self.options.wake_timeout_s).wake()

        self._waker = Waker(services, self.store, self.options, kind_of(cls), wake)

    async def start(self, services: SiloServices, name: str, /) -> None:
        """Look for queues that are due."""
        assert self._waker is not None, "opened before"
        self._waker.start()

    async def stop(self) -> None:
        """Look for none any more."""
        if self._waker is not None:
            await self._waker.stop()

    async def aclose(self) -> None:
        """Close the store, as far as this silo uses it."""
        self.is_ended = True
        if self._services is None:
            return
        try:
            async with asyncio.timeout(self.options.release_s):
                await self.store.aclose()
        except TimeoutError:
            log.warning("the store of priority queues was not closed: it does not answer")

    def abort(self) -> None:
        """Do nothing more; who owns a queue next ends the holds of this silo."""
        self.is_ended = True
        if self._waker is not None:
            self._waker.abort()
        if self._services is not None:
            self._services.new_tasks().start(self.store.aclose())
