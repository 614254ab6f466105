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
from functools import partial
from hashlib import sha256
from typing import cast

from millstream.runtime import ConfigError, Grain, with_options
from millstream.runtime.extending import (
    SiloPart,
    SiloServices,
    Tasks,
    check_kind,
    is_first_host,
    kind_of,
)
from millstream.streams import Capability, PersistentStreams

from .core.settings import QueueSettings, Template, settings_for
from .core.shards import SHARD_MARK, STREAMS
from .owner.grain import owner_of
from .owner.options import PriorityOptions
from .owner.spreading import Shard
from .owner.target import QueuesTarget
from .owner.waking import Waker
from .relay.relay import Relay
from .store.contract import PriorityStore

__all__ = ["PriorityQueues"]

log = logging.getLogger("millstream.priority")

CHANGES_NEED = frozenset({Capability.DURABLE, Capability.DEDUP, Capability.REWIND})
"""What is accepted is not lost, is there once, and can be read again by an index."""


class PriorityQueues(SiloPart):
    """Priority queues: `Silo(parts={"priority": PriorityQueues(EmbeddedStore("data/priority"))})`.

    Args:
        store: where the queues are. Silos of a cluster have the same: one object in a process, or
            the same place.
        auto_create: create a queue when it is first enqueued to or dequeued from.
        templates: what such queues are like, by the longest prefix of their names that fits; others
            are simple, with the defaults.
        changes: the stream provider that the changes of all messages are published with, as
            `PRIORITY_CHANGES`; the store keeps events then (`events=True`). None: nobody relays.
        options: limits and waits.

    Raises ConfigError: an argument is of another type; `changes`, and the store keeps no events.
    """

    def __init__(
        self,
        store: PriorityStore,
        /,
        *,
        auto_create: bool = True,
        templates: Sequence[Template] = (),
        changes: str | None = None,
        options: PriorityOptions | None = None,
    ) -> None:
        self.options = PriorityOptions() if options is None else options
        check_kind("PriorityQueues(options=...)", self.options, PriorityOptions)
        check_kind("PriorityQueues(auto_create=...)", auto_create, bool)
        check_kind("PriorityQueues(templates=...)", templates, Sequence)
        for one in templates:
            check_template(one)
        self.store = store
        self.target: QueuesTarget
        self.is_ended = False
        self._changes = changes
        check_changes(store, changes)
        self._auto_create = auto_create
        self._templates = tuple(templates)
        self._services: SiloServices | None = None
        self._name = ""
        self._waker: Waker | None = None
        self._relay: Relay | None = None

    def grains(self, name: str, /) -> Sequence[type[Grain]]:
        """The owners of the queues."""
        return (owner_of(name),)

    def agreement(self) -> Mapping[str, str]:
        """How queues come to be: else that would depend on where their owners are."""
        store = f"{type(self.store).__qualname__} {getattr(self.store, 'place', '')}".rstrip()
        digest = sha256(repr((self._auto_create, self._templates)).encode()).hexdigest()[:16]
        changes = self._changes or "nobody relays"
        return {"store of queues": store, "queues created on use": digest, "changes": changes}

    # -- what owners are given

    def find_created_on_use(self, queue: str, /) -> QueueSettings | None:
        """The settings of a queue that its first use creates; None: a use creates none."""
        if SHARD_MARK in queue or queue.startswith(STREAMS):
            return None  # the owner of the queue makes its shards, a stream provider its queues
        return settings_for(queue, self._templates) if self._auto_create else None

    def shard(self, name: str, /) -> Shard:
        """The owner of a shard of a queue, each call of which takes so long as waking one may."""
        assert self._services is not None, "owners live between open and the end"
        owner = self._services.grain(owner_of(self._name), name)
        return with_options(owner, timeout=self.options.wake_timeout_s)

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
        into = None if self._changes is None else provider_of(services, name, self._changes)
        await self.store.open()
        self._services, self._name = services, name
        self.target = QueuesTarget(self.store, services.clock)
        services.targets.add(self.target, name)
        cls = owner_of(name)

        async def wake(queue: str) -> None:
            owner = services.grain(cls, queue)
            await with_options(owner, timeout=self.options.wake_timeout_s).wake()

        is_first = partial(is_first_host, services.members, services.address, kind_of(cls))
        self._waker = Waker(services, self.store, self.options, is_first, wake)
        if into is not None:
            clock, tasks = services.clock, services.new_tasks()
            self._relay = Relay(self.store, into, self.options, is_first, clock, tasks)

    async def start(self, services: SiloServices, name: str, /) -> None:
        """Look for queues that are due, and relay changes."""
        assert self._waker is not None, "opened before"
        self._waker.start()
        if self._relay is not None:
            self._relay.start()

    async def stop(self) -> None:
        """Look for none any more; another silo relays."""
        if self._waker is not None:
            await self._waker.stop()
        if self._relay is not None:
            await self._relay.stop()

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
        if self._relay is not None:
            self._relay.abort()
        if self._services is not None:
            self._services.new_tasks().start(self.store.aclose())


def check_template(one: object) -> None:
    """Raise ConfigError for what is no template."""
    what = "a template of PriorityQueues"
    check_kind(what, one, Template)
    prefix, settings = cast(Template, one)
    check_kind(f"the prefix of {what}", prefix, str)
    check_kind(f"the settings of {what}", settings, QueueSettings)


def check_changes(store: PriorityStore, changes: str | None) -> None:
    """Raise ConfigError if there would be nothing to relay."""
    if changes is not None and not store.keeps_events:
        kind = type(store).__qualname__
        raise ConfigError(
            f"PriorityQueues(changes={changes!r}): this {kind} keeps no events to relay: write "
            f"{kind}(..., events=True)"
        )


def provider_of(services: SiloServices, name: str, changes: str) -> PersistentStreams:
    """The stream provider for changes. Raises ConfigError: there is none, or it cannot be."""
    found = services.part(changes)
    what = f"part {name!r}: PriorityQueues(changes={changes!r})"
    if not isinstance(found, PersistentStreams):
        raise ConfigError(f"{what}: {type(found).__name__} is no stream provider")
    missing = ", ".join(sorted(one.name for one in CHANGES_NEED - found.capabilities))
    if missing:
        text = "has no {}: what is relayed would be lost or doubled; LedgerQueues has them"
        raise ConfigError(f"{what}: stream provider {changes!r} {text.format(missing)}")
    return found
