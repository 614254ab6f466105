"""Programs with handles of one queue.

They are clients of a simulated cluster in virtual time. For stores with their own threads, they are
a client and silos of a real cluster in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

from millstream.providers.priority import (
    PriorityQueue,
    PriorityQueues,
    PriorityStore,
    priority_queue,
)
from millstream.runtime import LocalCluster, RuntimeOptions
from millstream.runtime.testing import Host, SimCluster, Simulation

__all__ = ["LocalPrograms", "Programs", "SimPrograms", "local", "pause", "rounds", "simulated"]

OPTIONS = RuntimeOptions(call_timeout_s=5.0)
PATIENCE_S = 30.0
LONG_S = 0.03
"""The unit of `share` in virtual time, longer than most calls take."""
LONG_ROUNDS = 150
"""The unit of `share` in a real loop, in iterations."""


class Programs(Protocol):
    queues: list[PriorityQueue]

    def spawn(self, number: int, act: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Let a program make a call."""
        ...

    async def wait(self, share: float, task: asyncio.Task[Any] | None = None) -> None:
        """Wait for a share of the time of a long call, or until the task is done."""
        ...


class SimPrograms:
    """Clients on hosts of their own."""

    def __init__(self, simulation: Simulation, hosts: list[Host], cluster: SimCluster) -> None:
        self._simulation, self._hosts = simulation, hosts
        self._clients = [cluster.client(host) for host in hosts]
        self.queues: list[PriorityQueue] = []

    async def __aenter__(self) -> SimPrograms:
        for number, client in enumerate(self._clients):
            await self.spawn(number, client.__aenter__())
            self.queues.append(priority_queue(client, "q", patience_s=PATIENCE_S))
        return self

    async def __aexit__(self, *error: object) -> None:
        for number, client in enumerate(self._clients):
            await self.spawn(number, client.aclose())

    def spawn(self, number: int, act: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._simulation.spawn(self._hosts[number], act)

    async def wait(self, share: float, task: asyncio.Task[Any] | None = None) -> None:
        await pause(share, task)


async def pause(share: float, task: asyncio.Task[Any] | None = None) -> None:
    """Wait in virtual time."""
    if task is None:
        await asyncio.sleep(share * LONG_S)
    else:
        await asyncio.wait([task], timeout=share * LONG_S)


@asynccontextmanager
async def simulated(
    simulation: Simulation, count: int, store: Callable[[], PriorityStore]
) -> AsyncIterator[SimPrograms]:
    """Run `count` clients of a cluster whose silos share the store of `store`."""
    parts = {"priority": lambda: PriorityQueues(store())}
    cluster = SimCluster(simulation, grains=[], parts=parts, options=OPTIONS)
    await cluster.start()
    hosts = [simulation.host(f"client{number}") for number in range(count)]
    async with SimPrograms(simulation, hosts, cluster) as programs:
        yield programs
    await cluster.close()


class LocalPrograms:
    """A client and each silo."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.queues = [
            priority_queue(cluster.client, "q", patience_s=PATIENCE_S),
            *(priority_queue(silo, "q", patience_s=PATIENCE_S) for silo in cluster.silos),
        ]

    def spawn(self, number: int, act: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.ensure_future(act)

    async def wait(self, share: float, task: asyncio.Task[Any] | None = None) -> None:
        await rounds(share, task)


async def rounds(share: float, task: asyncio.Task[Any] | None = None) -> None:
    """Wait for iterations of a real loop."""
    for _ in range(int(share * LONG_ROUNDS)):
        if task is None or not task.done():
            await asyncio.sleep(0)


@asynccontextmanager
async def local(count: int, store: Callable[[], PriorityStore]) -> AsyncIterator[LocalPrograms]:
    """Run `count` programs. All but one are silos, each with its own store."""
    parts = {"priority": lambda: PriorityQueues(store())}
    async with LocalCluster(grains=[], silos=count - 1, parts=parts) as cluster:
        yield LocalPrograms(cluster)
