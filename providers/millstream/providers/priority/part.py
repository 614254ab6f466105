"""`PriorityQueues`: the part of a silo that owns priority queues.

Owns the lifetime of the store in this silo, and the objects that owners of queues need. The owners
are in `owner`, and the handles of programs are in `surface`.

Invariants:

- One `PriorityQueues` serves one silo.
- Silos of one process may share a store. Each of them opens and closes the store, and the store
  counts its users.
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
from .core.shards import JOBS, SHARD_MARK, STREAMS
from .owned_queues import PRIORITY_METRICS, OwnedQueues
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
"""Capabilities that the stream provider for changes needs: it loses no accepted event, stores no
event twice, and can be read again by an index.
"""


class PriorityQueues(SiloPart):
    """The part of a silo that owns priority queues.

    Give every silo of the cluster this part, under one name and with the same store:
    `Silo(parts={"priority": PriorityQueues(EmbeddedStore("data/priority"))})`. Programs then use
    the queues by `priority_queue`.

    A queue is a name. It costs nothing while nobody uses it. While it is used, one silo owns it: a
    grain of that silo decides every operation, and writes the changes to the store before it
    answers. If that silo crashes, another silo opens the queue from its stored rows.

    All silos must agree on the store, `auto_create`, `templates` and `changes`; a silo that differs
    is refused. Options of `PriorityOptions` may differ between silos.

    Args:
        store: Where the queues are stored: an `EmbeddedStore`, a `RedisStore`, a `MemoryStore`, or
            your own `PriorityStore`. Silos of one process may share one object; silos of several
            processes each open the same place.
        auto_create: Whether the first enqueue or dequeue creates the queue. If False, call
            `PriorityQueue.create` first. Queues whose names begin with `stream/` or `job/` are
            never created on first use, because stream providers and `Jobs` create them.
        templates: Settings for queues that are created on first use. The template with the longest
            prefix of the queue's name applies. Without one, the queue gets the default
            `QueueSettings`.
        changes: Name of the stream provider that publishes each change of a message to the streams
            `PRIORITY_CHANGES`. The provider must be durable, drop repeats and be able to rewind, as
            `LedgerQueues` is. The store must keep events (`events=True`). None publishes nothing.
        options: Limits and waits of this silo.

    Raises:
        ConfigError: An argument has another type, or `changes` is set and the store keeps no
            events. At the start of the silo: the provider does not exist or lacks a capability, or
            the object serves another silo already.
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
        self.owned: OwnedQueues

    def grains(self, name: str, /) -> Sequence[type[Grain]]:
        """The grain class that owns queues."""
        return (owner_of(name),)

    def agreement(self) -> Mapping[str, str]:
        """The settings on which all silos must agree, because a queue must not depend on the
        silo that owns it.
        """
        store = f"{type(self.store).__qualname__} {getattr(self.store, 'place', '')}".rstrip()
        digest = sha256(repr((self._auto_create, self._templates)).encode()).hexdigest()[:16]
        changes = self._changes or "nobody relays"
        return {"store of queues": store, "queues created on use": digest, "changes": changes}

    # -- for the owners of queues

    def find_created_on_use(self, queue: str, /) -> QueueSettings | None:
        """The settings with which first use creates this queue; None if first use does not
        create it.
        """
        if SHARD_MARK in queue or queue.startswith((STREAMS, JOBS)):
            return None  # shards are created by shard 0, and these queues by their parts
        return settings_for(queue, self._templates) if self._auto_create else None

    def shard(self, name: str, /) -> Shard:
        """The owner of one shard, with calls that may take as long as opening a queue may."""
        assert self._services is not None, "owners exist only while the part is open"
        owner = self._services.grain(owner_of(self._name), name)
        return with_options(owner, timeout=self.options.wake_timeout_s)

    def new_tasks(self) -> Tasks:
        """Create a group of tasks and timers for one owner, which ends them."""
        assert self._services is not None, "owners exist only while the part is open"
        return self._services.new_tasks()

    # -- lifetime

    async def open(self, services: SiloServices, name: str, /) -> None:
        """Open the store, and prepare the search for due queues and the relay of changes."""
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
        lag_s = None if into is None else self.target.changes_lag_s
        self.owned = OwnedQueues(name, lag_s)
        services.metrics.add(PRIORITY_METRICS, self.owned.read)
        if services.metrics.is_on:
            services.tasks.start(self.owned.look_while_running())
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
        """Start to look for queues with due work, and to relay changes."""
        assert self._waker is not None, "open comes before start"
        self._waker.start()
        if self._relay is not None:
            self._relay.start()

    async def stop(self) -> None:
        """Stop looking for due work and relaying changes; another silo continues both."""
        if self._waker is not None:
            await self._waker.stop()
        if self._relay is not None:
            await self._relay.stop()

    async def aclose(self) -> None:
        """Close the store for this silo, waiting at most `release_s`."""
        self.is_ended = True
        if self._services is None:
            return
        try:
            async with asyncio.timeout(self.options.release_s):
                await self.store.aclose()
        except TimeoutError:
            log.warning(
                "the store of priority queues was not closed: it did not answer within release_s"
            )

    def abort(self) -> None:
        """Stop at once; the next owner of each queue ends the ownership of this silo."""
        self.is_ended = True
        if self._waker is not None:
            self._waker.abort()
        if self._relay is not None:
            self._relay.abort()
        if self._services is not None:
            self._services.new_tasks().start(self.store.aclose())


def check_template(one: object) -> None:
    """Raise ConfigError if the object is not a valid template."""
    what = "a template of PriorityQueues"
    check_kind(what, one, Template)
    prefix, settings = cast(Template, one)
    check_kind(f"the prefix of {what}", prefix, str)
    check_kind(f"the settings of {what}", settings, QueueSettings)


def check_changes(store: PriorityStore, changes: str | None) -> None:
    """Raise ConfigError if changes are to be relayed from a store that keeps no events."""
    if changes is not None and not store.keeps_events:
        kind = type(store).__qualname__
        raise ConfigError(
            f"PriorityQueues(changes={changes!r}): this {kind} keeps no events to relay: write "
            f"{kind}(..., events=True)"
        )


def provider_of(services: SiloServices, name: str, changes: str) -> PersistentStreams:
    """The stream provider for changes.

    Raises ConfigError if it does not exist or lacks a capability.
    """
    found = services.part(changes)
    what = f"part {name!r}: PriorityQueues(changes={changes!r})"
    if not isinstance(found, PersistentStreams):
        raise ConfigError(f"{what}: {type(found).__name__} is not a stream provider")
    missing = ", ".join(sorted(one.name for one in CHANGES_NEED - found.capabilities))
    if missing:
        text = "lacks {}, so changes could be lost or duplicated: use LedgerQueues"
        raise ConfigError(f"{what}: stream provider {changes!r} {text.format(missing)}")
    return found
