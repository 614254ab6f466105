"""Clusters with priority queues in virtual time. They share one store in memory whose commits can
wait or fail, and clocks that can be set."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from millstream.providers.priority import (
    MemoryStore,
    PriorityOptions,
    PriorityQueue,
    PriorityQueues,
    Template,
    priority_queue,
)
from millstream.runtime import Client, Env, RuntimeOptions, Silo
from millstream.runtime.extending import SiloPart
from millstream.runtime.testing import Host, SimCluster, SimEnv, Simulation, run

__all__ = ["Rig", "in_cluster"]

T = TypeVar("T")
RUNTIME = RuntimeOptions(call_timeout_s=5.0, idle_after_s=20.0, collect_every_s=1.0)


class SteppedEnv(Env):
    """The clock of a host, which can be set."""

    def __init__(self, inner: SimEnv) -> None:
        super().__init__(1)
        self.inner = inner
        self.step_s = 0.0

    def wall_s(self) -> float:
        return self.inner.wall_s() + self.step_s

    def new_context(self) -> Any:
        return self.inner.new_context()


class Faults:
    """Hooks before and after commits. Each hook is awaited and may raise."""

    def __init__(self) -> None:
        self.on_before: Callable[[str], Awaitable[None]] | None = None
        self.on_after: Callable[[str], Awaitable[None]] | None = None

    async def before(self, queue: str, /) -> None:
        if self.on_before is not None:
            await self.on_before(queue)

    async def after(self, queue: str, /) -> None:
        if self.on_after is not None:
            await self.on_after(queue)


class Rig:
    """A cluster, and a client on a host of its own."""

    def __init__(
        self,
        simulation: Simulation,
        silos: int,
        *,
        auto_create: bool = True,
        templates: tuple[Template, ...] = (),
        options: PriorityOptions | None = None,
        patience_s: float = 30.0,
        store: type[MemoryStore] = MemoryStore,
        streams: Mapping[str, Callable[[], SiloPart]] | None = None,
        changes: str | None = None,
        is_operator: bool = False,
    ) -> None:
        self.simulation = simulation
        self._is_operator = is_operator
        self.patience_s = patience_s
        self.faults = Faults()
        self.env = SteppedEnv(simulation.env(simulation.host("store-of-queues")))
        self.store = store(self.env, faults=self.faults, events=True)
        self.cluster = SimCluster(
            simulation,
            silos=silos,
            grains=[],
            streams=streams,
            parts={
                "priority": lambda: PriorityQueues(
                    self.store,
                    auto_create=auto_create,
                    templates=templates,
                    options=options,
                    changes=changes,
                )
            },
            options=RUNTIME,
        )
        self.host = simulation.host("client")
        self.client: Client

    async def __aenter__(self) -> Rig:
        await self.cluster.start()
        self.client = self.cluster.client(self.host, is_operator=self._is_operator)
        await self.on(self.host, self.client.__aenter__())
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            await self.on(self.host, self.client.aclose())
            await self.cluster.close()

    async def on(self, host: Host | str, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on a host."""
        found = self.simulation.host(host) if isinstance(host, str) else host
        return await self.simulation.call(found, coro)

    def spawn(self, coro: Coroutine[Any, Any, T], host: Host | str = "client") -> asyncio.Task[T]:
        """Start a coroutine on a host."""
        found = self.simulation.host(host) if isinstance(host, str) else host
        return self.simulation.spawn(found, coro)

    def queue(self, name: str = "q") -> PriorityQueue:
        """The client's handle of a queue, for use on the client's host."""
        return priority_queue(self.client, name, patience_s=self.patience_s)

    def queue_at(self, silo: str, name: str = "q") -> PriorityQueue:
        """The handle of a silo, for use on its host."""
        return priority_queue(self.silo(silo), name, patience_s=self.patience_s)

    def silo(self, name: str) -> Silo:
        found = self.cluster.silo(name)
        assert found is not None
        return found

    def owner_of(self, name: str = "q") -> str:
        """The host whose silo has the queue's owner."""
        for host in self.cluster.names:
            silo = self.cluster.silo(host)
            if silo is None:
                continue
            if silo.assembly.catalog.find("millstream.PriorityQueue.priority", name):
                return host
        raise AssertionError(f"nobody owns {name}")

    def step(self, seconds: float) -> None:
        """Set every wall clock forward or back."""
        self.env.step_s += seconds
        for name in self.cluster.names:
            self.simulation.env(self.simulation.host(name))._skew_s += seconds

    def stored(self, name: str = "q") -> dict[str, Any]:
        """The stored rows of the queue's messages."""
        return dict(self.store._tables[name].messages)


def in_cluster(
    main: Callable[[Rig], Coroutine[Any, Any, T]], silos: int = 2, seed: int = 1, **options: Any
) -> T:
    """Run a test in a cluster, in virtual time."""

    async def driver(simulation: Simulation) -> T:
        async with Rig(simulation, silos, **options) as rig:
            return await main(rig)

    return run(driver, seed).result
