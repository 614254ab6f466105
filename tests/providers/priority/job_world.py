"""Clusters with durable jobs in virtual time, and a grain that notes its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from millstream.providers.priority import MemoryStore, PriorityQueue, PriorityQueues, priority_queue
from millstream.providers.priority.jobs import Job, JobOptions, JobRetry, Jobs, schedule
from millstream.runtime import (
    CallFilters,
    Client,
    Contract,
    Grain,
    Role,
    RuntimeOptions,
    Silo,
    grain,
    one_way,
    open_to,
    timeout,
)
from millstream.runtime.testing import SimCluster, Simulation, run

T = TypeVar("T")
RUNTIME = RuntimeOptions(call_timeout_s=5.0, idle_after_s=60.0, collect_every_s=1.0)


class Ran(NamedTuple):
    """A call of `Order` by a job."""

    key: str
    value: int
    at_s: float
    silo: str
    headers: Mapping[str, str]


class Notes:
    """The calls of all grains of a test, and the errors that they raise."""

    def __init__(self) -> None:
        self.ran: list[Ran] = []
        self.ended: list[str] = []
        self.errors: list[Exception] = []
        self.running = 0
        self.most = 0


_notes = Notes()


class SoldOut(Exception):
    """An error of the program."""


@grain(name="Order")
class Order(Grain):
    async def charge(self, cents: int, /, wait_s: float = 0.0, *, note: str = "") -> int:
        """Note the call; fail if the test wants it."""
        now_s = asyncio.get_running_loop().time()
        headers = dict(self.context.headers)
        _notes.ran.append(Ran(self.key, cents, now_s, self.context.silo, headers))
        _notes.running += 1
        _notes.most = max(_notes.most, _notes.running)
        try:
            if _notes.errors:
                raise _notes.errors.pop(0)
            await asyncio.sleep(wait_s)
        finally:
            _notes.running -= 1
        _notes.ended.append(self.key)
        return cents * 2

    async def forget(self) -> None:
        """Return nothing."""

    async def large(self, size: int) -> bytes:
        return b"x" * size

    async def partner(self) -> Order:
        return self.grain(Order, f"{self.key}'s partner")

    @timeout(1.0)
    async def hang(self) -> None:
        await asyncio.Event().wait()

    @timeout(120.0)
    async def long(self, wait_s: float) -> int:
        return await self.charge(1, wait_s)

    async def rows(self) -> AsyncGenerator[int, None]:
        yield 1

    @one_way
    async def tell(self) -> None:
        """Answer nobody."""

    @open_to(Role.OPERATOR)
    async def rule(self) -> None:
        """Be closed to clients."""

    async def plan(self, delay_s: float) -> str:
        """Schedule a job of this grain."""
        own = self.grain(Order, self.key)
        return (await schedule(self, timedelta(seconds=delay_s), own.charge, 7)).id


@grain(name="Order")
class OrderCalls(Contract):
    """The order as a program without its class calls it."""

    def rows(self) -> AsyncGenerator[int, None]:
        raise NotImplementedError


class Basket(Grain):
    """Another grain type, which some silos lack."""

    async def empty(self) -> str:
        return self.context.silo


class World:
    """A cluster, and a client on a host of its own."""

    def __init__(
        self,
        simulation: Simulation,
        silos: int,
        *,
        retry: JobRetry | None = None,
        options: JobOptions | None = None,
        filters: CallFilters | None = None,
        lacking: Mapping[str, Collection[type[Grain]]] | None = None,
        parts: Callable[[World], Mapping[str, Any]] | None = None,
        grains: Sequence[type[Grain]] = (Order, Basket),
    ) -> None:
        global _notes
        self.notes = _notes = Notes()
        self.simulation = simulation
        self.host = simulation.host("client")
        self.store = MemoryStore(simulation.env(simulation.host("queues")))
        made = {
            "priority": lambda: PriorityQueues(self.store),
            "jobs": lambda: Jobs(retry=retry, options=options),
        }
        self.cluster = SimCluster(
            simulation,
            silos=silos,
            grains=grains,
            parts=made if parts is None else parts(self),
            filters=CallFilters() if filters is None else filters,
            options=RUNTIME,
            lacking=lacking,
            skew_s=0.0,
        )
        self.client: Client

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def order(self, key: str = "tea") -> Order:
        return self.client.grain(Order, key)

    def queue(self, name: str = "job/calls") -> PriorityQueue:
        return priority_queue(self.client, name)

    def silo(self, name: str) -> Silo:
        found = self.cluster.silo(name)
        assert found is not None
        return found

    async def on(self, name: str, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the host of a silo."""
        return await self.simulation.call(self.simulation.host(name), coro)

    async def after(self, delay_s: float, cents: int = 5, key: str = "tea") -> Job[int]:
        """Schedule a job."""
        return await schedule(
            self.client, timedelta(seconds=delay_s), self.order(key).charge, cents
        )

    def host_of(self, address: str) -> str:
        return address.partition(":")[0]


def in_world(
    main: Callable[[World], Coroutine[Any, Any, T]], silos: int = 2, seed: int = 1, **options: Any
) -> T:
    """Run a test on the client's host of a cluster, in virtual time."""

    async def driver(simulation: Simulation) -> T:
        world = World(simulation, silos, **options)
        await world.cluster.start()
        world.client = world.cluster.client(world.host)

        async def use() -> T:
            async with world.client:
                return await main(world)

        found = await simulation.call(world.host, use())
        await world.cluster.close()
        return found

    return run(driver, seed).result
