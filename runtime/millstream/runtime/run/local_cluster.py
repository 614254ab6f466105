"""Several silos in one process, for development and tests.

Owns: nothing that the silos do not own; the shared table and store in memory. Invariants: silos
talk through the transport like those of a real cluster, and so does the cluster's own client, which
is an operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TypeVar

from millstream.runtime.client.client import Client
from millstream.runtime.cluster.table import MembershipTable, MemoryMembershipTable
from millstream.runtime.definition.grain import Contract, Grain, Openable
from millstream.runtime.definition.storage import StateStore
from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, NotInCluster
from millstream.runtime.options import MembershipOptions, RuntimeOptions
from millstream.runtime.silo.arguments import check_grains, makers_of, stores_of
from millstream.runtime.silo.part import SiloPart
from millstream.runtime.silo.silo import Silo
from millstream.runtime.wire.transport import Transport

from .import_check import refuse_while_importing

__all__ = ["LocalCluster"]

C = TypeVar("C", bound=Contract)
H = TypeVar("H")


class LocalCluster:
    """`async with LocalCluster(silos=3, grains=[...]) as cluster`.

    Args:
        silos: how many silos to start.
        streams: stream providers by name: functions that make one per silo.
        parts: other parts by name, likewise.
        stores: state stores shared by the silos; default: one in memory.
    """

    def __init__(
        self,
        *,
        grains: Sequence[type[Grain]],
        silos: int = 1,
        streams: Mapping[str, Callable[[], SiloPart]] | None = None,
        parts: Mapping[str, Callable[[], SiloPart]] | None = None,
        stores: Mapping[str, StateStore] | None = None,
        cluster: str = "dev",
        membership: MembershipTable | None = None,
        options: RuntimeOptions | None = None,
        membership_options: MembershipOptions | None = None,
        env: Env | None = None,
        transport: Transport | None = None,
    ) -> None:
        if isinstance(silos, bool) or not isinstance(silos, int) or silos < 1:
            raise ConfigError(f"LocalCluster(silos={silos!r}): start at least one, a whole number")
        makers = makers_of("LocalCluster", streams=streams, parts=parts)
        self._count = silos
        self._cluster = cluster
        self._grains = check_grains(grains, "LocalCluster")
        self._streams, self._parts = makers["streams"], makers["parts"]
        self._stores = stores_of(stores, "LocalCluster")
        self._table = MemoryMembershipTable() if membership is None else membership
        self._options = options
        self._membership_options = membership_options
        self._env = env
        self._transport = transport
        self._stack = AsyncExitStack()
        self._client: Client | None = None
        self._is_open = False
        self.silos: list[Silo] = []

    @property
    def client(self) -> Client:
        """The cluster's own client. Raises NotInCluster before start."""
        if self._client is None:
            raise NotInCluster("this cluster is not started: use `async with LocalCluster(...)`")
        return self._client

    def grain(self, cls: type[C], key: str, /) -> C:
        """A typed reference, called through a gateway."""
        return self.client.grain(cls, key)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """A typed handle of a stream, published through a gateway."""
        return self.client.stream(namespace, key)

    async def start_silo(self) -> Silo:
        """Start one more silo. Raises NotInCluster before the start and after the end."""
        self._check_open()
        silo = Silo(
            grains=self._grains,
            cluster=self._cluster,
            membership=self._table,
            stores=self._stores,
            streams={name: make() for name, make in self._streams.items()},
            parts={name: make() for name, make in self._parts.items()},
            name=f"silo-{len(self.silos)}",
            options=self._options,
            membership_options=self._membership_options,
            env=self._env,
            transport=self._transport,
        )
        await silo.start()
        try:
            self._check_open()  # it may have ended meanwhile
        except NotInCluster:
            await silo.stop()
            raise
        self._stack.push_async_exit(silo)
        self.silos.append(silo)
        return silo

    def _check_open(self) -> None:
        if not self._is_open:
            raise NotInCluster(
                "this cluster is not started, or has ended: start silos within "
                "`async with LocalCluster(...)`"
            )

    async def __aenter__(self) -> LocalCluster:
        refuse_while_importing("a cluster")
        self._is_open = True
        try:
            for _ in range(self._count):
                await self.start_silo()
            client = Client(
                [silo.gateway for silo in self.silos],
                cluster=self._cluster,
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
        self._is_open = False
        await asyncio.shield(self._stack.aclose())
