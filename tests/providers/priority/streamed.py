"""Grains that receive streams over priority queues, in virtual time, and the record of their
calls."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.providers.priority.world import RUNTIME

from millstream.balancers import DeploymentBalancer
from millstream.providers.priority import (
    DeadlineOptions,
    DeadlineQueues,
    MemoryStore,
    PriorityQueue,
    PriorityQueues,
    State,
    priority_queue,
)
from millstream.providers.priority.core.changes import MessageRow
from millstream.runtime import Client, Grain
from millstream.runtime.testing import Host, SimCluster, Simulation, current_host, run
from millstream.streams import (
    Backoff,
    DeliveryFailure,
    DeliveryOptions,
    Event,
    FailureHandler,
    GiveUpDecision,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

__all__ = ["JOBS", "Given", "Jobs", "Work", "in_streams"]

T = TypeVar("T")
JOBS = StreamNamespace("jobs", str, provider="work")
QUEUE = "stream/work/"


@dataclass
class Given:
    """One call of a handler."""

    key: str
    item: str
    begin_s: float
    host: str
    end_s: float | None = None
    error: str = ""


class Jobs:
    """The behaviour of the handlers, and the record of their calls."""

    def __init__(self) -> None:
        self.given: list[Given] = []
        self.act: Callable[[Given], Coroutine[Any, Any, None]] | None = None
        self.failures: list[DeliveryFailure] = []
        self.refusals = 0  # raised by the failure handler
        self.decision: GiveUpDecision = "skip"

    async def run(self, key: str, item: str) -> None:
        host, loop = current_host(), asyncio.get_running_loop()
        assert host is not None
        one = Given(key, item, loop.time(), host.name)
        self.given.append(one)
        try:
            if self.act is not None:
                await self.act(one)
        except Exception as error:
            one.error = str(error)
            raise
        finally:
            one.end_s = loop.time()

    async def give_up(self, failure: DeliveryFailure) -> GiveUpDecision:
        self.failures.append(failure)
        if len(self.failures) <= self.refusals:
            raise OSError("nobody listens")
        return self.decision

    def items(self, key: str | None = None) -> list[str]:
        return [one.item for one in self.given if key is None or one.key == key]

    def check_one_at_a_time(self) -> None:
        """Check that no two calls of one key overlapped."""
        for key in {one.key for one in self.given}:
            mine = sorted((g for g in self.given if g.key == key), key=lambda one: one.begin_s)
            for a, b in itertools.pairwise(mine):
                assert a.end_s is None or a.end_s <= b.begin_s, (a, b)


present = Jobs()


class Worker(Grain):
    @subscribe(JOBS)
    async def on_job(self, event: Event[str]) -> None:
        await present.run(self.key, event.item)


class Work:
    """A cluster, and a client on a host of its own."""

    def __init__(
        self,
        simulation: Simulation,
        jobs: Jobs,
        silos: int = 2,
        retries: int = 3,
        backoff_s: float = 2.0,
        attempts: int = 100,
        lease_s: float = 10.0,
    ) -> None:
        self.simulation = simulation
        self.jobs = jobs
        self.store = MemoryStore(simulation.env(simulation.host("store-of-queues")), events=True)
        queues = DeadlineOptions(lease_s=lease_s, attempts=attempts)
        delivery = DeliveryOptions(retries=retries, backoff=Backoff(backoff_s, 1.0, backoff_s))
        handler: FailureHandler = jobs

        def streams() -> PersistentStreams:
            return PersistentStreams(
                DeadlineQueues(durable=False, options=queues),
                mapper=HashRingMapper(queues=1),
                balancer=DeploymentBalancer(),
                options=StreamOptions(delivery=delivery),
                on_give_up=handler,
            )

        self.cluster = SimCluster(
            simulation,
            silos=silos,
            grains=[Worker],
            streams={"work": streams},
            parts={"priority": lambda: PriorityQueues(self.store)},
            options=RUNTIME,
        )
        self.host = simulation.host("client")
        self.client: Client

    async def __aenter__(self) -> Work:
        await self.cluster.start()
        self.client = self.cluster.client(self.host, is_operator=True)
        await self.on(self.host, self.client.__aenter__())
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is None:
            await self.on(self.host, self.client.aclose())
            await self.cluster.close()

    async def on(self, host: Host | str, coro: Coroutine[Any, Any, T]) -> T:
        found = self.simulation.host(host) if isinstance(host, str) else host
        return await self.simulation.call(found, coro)

    async def publish(self, key: str, *items: str, priority: int | None = None) -> None:
        """Publish events of one stream from the client."""
        headers = None if priority is None else {"priority": str(priority)}
        stream = self.client.stream(JOBS, key)
        await self.on(self.host, stream.publish_many(items, headers=headers))

    @property
    def queue(self) -> PriorityQueue:
        """The queue of the stream, for use on the client's host."""
        return priority_queue(self.client, self.queue_name)

    @property
    def queue_name(self) -> str:
        [name] = [name for name in self.store._tables if name.startswith(QUEUE)]
        return name

    def rows(self) -> list[MessageRow]:
        """The stored rows of the messages."""
        return list(self.store._tables[self.queue_name].messages.values())

    def states(self) -> dict[State, int]:
        """The number of stored messages in each state."""
        rows = self.rows() if self.store._tables else ()
        return {state: sum(State(row.state) is state for row in rows) for state in State}

    async def until(self, is_so: Callable[[], bool], within_s: float = 120.0) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + within_s
        while not is_so():
            assert loop.time() < end_s, (self.jobs.given, self.states())
            await asyncio.sleep(0.05)

    def owner(self) -> str:
        """The host whose silo reads the queue."""
        for name in self.cluster.names:
            silo = self.cluster.silo(name)
            if silo is not None and silo.services.part("work").stats():
                return name
        raise AssertionError("nobody reads")


def in_streams(main: Callable[[Work], Coroutine[Any, Any, T]], seed: int = 1, **options: Any) -> T:
    """Run a test in a cluster, in virtual time."""
    global present
    jobs = present = Jobs()

    async def driver(simulation: Simulation) -> T:
        async with Work(simulation, jobs, **options) as work:
            return await main(work)

    return run(driver, seed).result
