"""Several silos in one process, for development and tests.

This module owns the shared membership table and stores in memory; the rest belongs to the silos.
The silos talk through the transport, as those of a real cluster do. So does the cluster's own
client, which is an operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import TypeVar

from millstream.runtime.client.client import Client
from millstream.runtime.cluster.table import MembershipTable, MemoryMembershipTable
from millstream.runtime.definition.filters import NO_FILTERS, CallFilters
from millstream.runtime.definition.grain import Contract, Grain, Openable
from millstream.runtime.definition.labels import labels_of_each
from millstream.runtime.definition.observer import Observer
from millstream.runtime.definition.storage import StateStore
from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, NotInCluster
from millstream.runtime.options import (
    MembershipOptions,
    PlacementOptions,
    Rebalancing,
    RuntimeOptions,
)
from millstream.runtime.reminders.table import MemoryReminderTable, ReminderTable
from millstream.runtime.silo.arguments import check_grains, makers_of, stores_of
from millstream.runtime.silo.part import SiloPart
from millstream.runtime.silo.silo import Silo
from millstream.runtime.wire.transport import Transport

from .import_check import refuse_while_importing

__all__ = ["LocalCluster"]

C = TypeVar("C", bound=Contract)
H = TypeVar("H")
OB = TypeVar("OB", bound=Observer)


class LocalCluster:
    """Several silos and a client in one process, for development and tests.

    ```python
    async with LocalCluster(silos=3, grains=[Airport]) as cluster:
        await cluster.grain(Airport, "BOS").land("MS 12")
    ```

    The silos share one membership table and one set of stores. Calls go through the cluster's own
    client, which is an operator, and through real connections. The arguments are those of `Silo`,
    without `address`, `advertise`, `name` and `can_own_queues`; each silo listens at a free port of
    loopback. `labels` has the labels of each silo.

    Args:
        grains: The grain classes that each silo hosts.
        silos: How many silos to start.
        streams: Functions by name. Each makes a stream provider for one silo.
        parts: Functions by name. Each makes a part for one silo.
        stores: The state stores by name, shared by the silos. None: one store in memory, named
            `default`.
        reminders: The table of reminders, shared by the silos. None: one in memory.
        cluster: The name of the cluster.
        membership: The membership table, shared by the silos. None: one in memory.
        labels: The labels of the silos, in their order. Silos beyond the list have none.
        filters: Run around the calls of each silo and of the client.
        options: The options of silos and client.
        membership_options: The options of membership.
        placement_options: The options of `LEAST_LOADED`.
        rebalancing: Evens out the activations of the silos. None: they stay where they are.
        env: Wall time, chance and ids.
        transport: The transport.

    Attributes:
        silos: The silos, in the order of their start.

    Raises:
        ConfigError: An argument has a wrong type or value.
    """

    def __init__(
        self,
        *,
        grains: Sequence[type[Grain]],
        silos: int = 1,
        streams: Mapping[str, Callable[[], SiloPart]] | None = None,
        parts: Mapping[str, Callable[[], SiloPart]] | None = None,
        stores: Mapping[str, StateStore] | None = None,
        reminders: ReminderTable | None = None,
        cluster: str = "dev",
        membership: MembershipTable | None = None,
        labels: Sequence[Mapping[str, str]] = (),
        filters: CallFilters = NO_FILTERS,
        options: RuntimeOptions | None = None,
        membership_options: MembershipOptions | None = None,
        placement_options: PlacementOptions | None = None,
        rebalancing: Rebalancing | None = None,
        env: Env | None = None,
        transport: Transport | None = None,
    ) -> None:
        if isinstance(silos, bool) or not isinstance(silos, int) or silos < 1:
            raise ConfigError(f"LocalCluster(silos={silos!r}): pass a whole number, at least 1")
        makers = makers_of("LocalCluster", streams=streams, parts=parts)
        self._count = silos
        self._cluster = cluster
        self._grains = check_grains(grains, "LocalCluster")
        self._streams, self._parts = makers["streams"], makers["parts"]
        self._stores = stores_of(stores, "LocalCluster")
        self._reminders = MemoryReminderTable() if reminders is None else reminders
        self._table = MemoryMembershipTable() if membership is None else membership
        self._labels = labels_of_each("LocalCluster(labels=...)", labels)
        self._filters = filters
        self._options = options
        self._membership_options = membership_options
        self._placement_options = placement_options
        self._rebalancing = rebalancing
        self._env = env
        self._transport = transport
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._is_open = False
        self.silos: list[Silo] = []

    @property
    def client(self) -> Client:
        """The cluster's own client.

        Raises:
            NotInCluster: The cluster is not started.
        """
        if self._client is None:
            raise NotInCluster("this cluster is not started: use `async with LocalCluster(...)`")
        return self._client

    def grain(self, cls: type[C], key: str, /) -> C:
        """Return a typed reference to a grain, called through a gateway.

        Args:
            cls: The grain class, or a contract.
            key: The key of the grain.
        """
        return self.client.grain(cls, key)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """Return a typed handle of a stream, used through a gateway.

        Args:
            namespace: The namespace of the stream.
            key: The key of the stream.
        """
        return self.client.stream(namespace, key)

    def observe(self, observer: OB, /) -> AbstractAsyncContextManager[OB]:
        """Let grains call an object of this program, through the cluster's own client.

        Args:
            observer: The object. See `Client.observe`, also for the errors.
        """
        return self.client.observe(observer)

    async def start_silo(self) -> Silo:
        """Start one more silo, and return it. Errors of `Silo.start` reach the caller.

        Raises:
            NotInCluster: The cluster is not started, or has ended.
        """
        self._check_open()
        silo = Silo(
            grains=self._grains,
            cluster=self._cluster,
            membership=self._table,
            stores=self._stores,
            reminders=self._reminders,
            streams={name: make() for name, make in self._streams.items()},
            parts={name: make() for name, make in self._parts.items()},
            name=f"silo-{len(self.silos)}",
            labels=dict(enumerate(self._labels)).get(len(self.silos)),
            filters=self._filters,
            options=self._options,
            membership_options=self._membership_options,
            placement_options=self._placement_options,
            rebalancing=self._rebalancing,
            env=self._env,
            transport=self._transport,
        )
        await silo.start()
        try:
            self._check_open()  # the cluster may have ended meanwhile
        except NotInCluster:
            await silo.stop()
            raise
        self._stack.push_async_exit(silo)
        self.silos.append(silo)
        return silo

    def _check_open(self) -> None:
        if not self._is_open:
            raise NotInCluster(
                "this cluster is not started, or has stopped: start silos inside "
                "`async with LocalCluster(...)`"
            )

    async def __aenter__(self) -> LocalCluster:
        """Start the silos and the client. Their errors reach the caller."""
        refuse_while_importing("a cluster")
        self._is_open = True
        try:
            for _ in range(self._count):
                await self.start_silo()
            client = Client(
                [silo.gateway for silo in self.silos],
                cluster=self._cluster,
                filters=self._filters,
                options=self._options,
                env=self._env,
                transport=self._transport,
                operator_secret=self.silos[0].assembly.engine.end.secrets.operator.decode(
                    errors="surrogateescape"
                ),
            )
            self._client = await self._stack.enter_async_context(client)
        except BaseException:
            self._is_open = False
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the client, and stop the silos. No grain moves, since all silos stop."""
        self._is_open = False
        for silo in self.silos:
            silo.assembly.catalog.mover.until_s = 0.0
        await asyncio.shield(self._stack.aclose())
