"""The published load of Netflix's Timestone on one queue, and the cost of handles and HTTP.

Netflix published these figures: 30,000 dequeue calls a second, mostly empty, with p99 45 ms; 1,200
enqueues a second, with p99 25 ms; bursts of 5,000 a second, with p99 85 ms. Timestone uses Redis
and a fleet of servers over gRPC. This benchmark is one process: silo, store and callers on one
loop, with SQLite files.

This module owns the subjects `calls`, `handles` and `http`. A call begins when it is due, whether
or not earlier calls are answered, so the waits that a queue causes are counted. If `LATE_MAX` calls
are in flight, further calls are skipped, and the rate becomes lower.
"""

from __future__ import annotations

import asyncio
import itertools
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from benchmarks.measure import settle_memory
from benchmarks.priority.load import PAYLOAD, Costs, Figures, now, scaled
from benchmarks.priority.stores import opened
from millstream.providers.priority import (
    EmbeddedStore,
    PriorityQueues,
    QueueSettings,
    priority_queue,
)
from millstream.providers.priority.core.commands import Complete, Dequeue, Enqueue
from millstream.providers.priority.http import PriorityApi
from millstream.runtime import LocalCluster

__all__ = ["calls", "handles", "http"]

SECONDS = 10.0
POLLS_S, ENQUEUES_S, BURST_S = 30_000, 1_200, 5_000
LATE_MAX = 4_000
TICK_S = 0.002
TOKEN = "token-of-this-benchmark"
CALLS, CALLERS = 5_000, 64
POLL = Dequeue("w")


class Paced:
    """Makes calls at a rate, and notes the seconds of each since it was due.

    A task makes one call after the other: to create 30,000 tasks a second would use a third of a
    core.
    """

    def __init__(
        self, rate: float, seconds: float, call: Callable[[int], Awaitable[object]]
    ) -> None:
        self.laps_s: list[float] = []
        self.took_s = 0.0
        self._due = [number / rate for number in range(int(rate * seconds))]
        self._call = call
        self._tasks: list[asyncio.Task[None]] = []
        self._idle: list[asyncio.Future[int]] = []
        self._begin_s = 0.0

    async def run(self) -> None:
        """Begin each call when it is due."""
        self._begin_s, at = now(), 0
        while at < len(self._due):
            reached_s = now() - self._begin_s
            while at < len(self._due) and self._due[at] <= reached_s:
                self._give(at)
                at += 1
            await asyncio.sleep(TICK_S)
        while len(self._idle) < len(self._tasks):  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)
        self.took_s = now() - self._begin_s
        for task in self._tasks:
            task.cancel()

    def _give(self, number: int) -> None:
        """Give the call to an idle task."""
        if self._idle:
            self._idle.pop().set_result(number)
        elif len(self._tasks) < LATE_MAX:
            self._tasks.append(asyncio.get_running_loop().create_task(self._caller(number)))

    async def _caller(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._call(number)
            self.laps_s.append(now() - self._begin_s - self._due[number])
            idle: asyncio.Future[int] = loop.create_future()
            self._idle.append(idle)
            number = await idle


@asynccontextmanager
async def running(work: Path) -> AsyncIterator[LocalCluster]:
    """Yield a cluster of one silo with queues in SQLite files."""
    part = PriorityQueues(EmbeddedStore(work / "priority"))
    async with LocalCluster(grains=[], parts={"priority": lambda: part}) as cluster:
        yield cluster


async def calls(work: Path, size: float) -> Figures:
    """Polls and enqueues together, as calls of the queue's owner, then bursts of a second.

    Leased messages are completed.
    """
    costs, seconds, ids = Costs("published"), max(0.5, SECONDS * size), itertools.count()
    async with opened(EmbeddedStore(work / "priority")) as store:
        queue = await store.acquire("encode", QueueSettings())

        async def poll(number: int) -> None:
            for lease in (await queue.do(POLL)).leases:
                await queue.do(Complete(lease.id, lease.token))

        async def enqueue(number: int) -> None:
            await queue.do(Enqueue(f"m{next(ids)}", PAYLOAD, queue.now_ms()))

        polls, enqueues = Paced(POLLS_S, seconds, poll), Paced(ENQUEUES_S, seconds, enqueue)
        settle_memory()
        await asyncio.gather(polls.run(), enqueues.run())
        note(costs, {"polls": polls, "enqueues": enqueues})
        burst = Paced(BURST_S, 1.0, enqueue)
        await burst.run()
        note(costs, {"burst": burst})
    return costs.figures


async def handles(work: Path, size: float) -> Figures:
    """64 callers of a handle, in the silo's process: polls of an empty queue, and enqueues."""
    costs, count = Costs("handle"), scaled(CALLS, size)
    async with running(work) as cluster:
        queue = priority_queue(cluster, "encode")
        await queue.dequeue(worker="w")
        await costs.crowd("polls", count, lambda _: queue.dequeue(worker="w"), CALLERS)
        await costs.crowd("enqueues", count, lambda _: queue.enqueue(PAYLOAD), CALLERS)
    return costs.figures


def note(costs: Costs, found: dict[str, Paced]) -> None:
    """Record rate and laps of each."""
    for name, paced in found.items():
        costs.note(f"{name}_s", len(paced.laps_s) / paced.took_s)
        costs.note_laps(name, paced.laps_s)


async def http(work: Path, size: float) -> Figures:
    """64 callers over HTTP to a server in this process: polls of an empty queue, and enqueues."""
    costs, count = Costs("http"), scaled(CALLS, size)
    async with (
        running(work) as cluster,
        PriorityApi(cluster, token=TOKEN, port=0) as api,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
    ):
        at, body = f"{api.url}/v1/queues/encode", {"payload": b64encode(PAYLOAD).decode()}

        async def post(path: str, content: dict[str, str]) -> None:
            async with session.post(f"{at}/{path}", json=content) as answer:
                answer.raise_for_status()
                await answer.read()

        asked = {"worker": "w"}
        await post("leases", asked)
        await costs.crowd("polls", count, lambda _: post("leases", asked), CALLERS)
        await costs.crowd("enqueues", count // 2, lambda _: post("messages", body), CALLERS)
    return costs.figures
