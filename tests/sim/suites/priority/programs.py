"""The programs of the suite: they enqueue, work, cancel polls and act as operators until the run is
over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.sim.suites.run.programs import again_and_again

from millstream.providers.priority import Lease, PriorityQueue, State, priority_queue
from millstream.providers.priority.core.commands import Enqueue, EnqueueMany
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.surface.routed import QueueCalls
from millstream.runtime import MillstreamError
from millstream.runtime.extending import Opener
from millstream.runtime.testing import Host, Random, make_random

from .notes import Batch, Given, PriorityRun

__all__ = ["CALL_S", "PATIENCE_S", "QUEUES", "VALUES", "Worker"]

QUEUES = ("simple", "exclusive", "spread")
VALUES = tuple("abcd")
PATIENCE_S = 10.0
CALL_S = 5.0
LIMIT_S = PATIENCE_S + CALL_S + 1.0
POLL_LIMIT_S = LIMIT_S + 10.0
"""The last call of a poll may take this much longer than its wait."""


@dataclass(frozen=True, slots=True)
class CallsOf:
    """Opens calls to a queue with the program's own request ids, as the HTTP server does."""

    def open(self, opener: Opener, queue: str, /) -> QueueCalls:
        return QueueCalls(opener, "priority", queue, PATIENCE_S)


class Worker:
    """A program; `name` is unique in the run."""

    def __init__(self, run: PriorityRun, host: Host, name: str) -> None:
        self._run = run
        self._name = f"{name}#{host.incarnation}"
        self._rng: Random = make_random(run.simulation.seed, "worker", self._name)
        self._sent = 0

    async def work(self, handle: Callable[[], Any]) -> None:
        """Act in three tasks until the run is over; `handle` gives a silo or client, or None."""
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                act = again_and_again(self._run, self._rng, 0.3, handle, self._one_round)
                group.create_task(act)

    async def _one_round(self, runtime: Any) -> None:
        try:
            queue = priority_queue(runtime, self._rng.choice(QUEUES), patience_s=PATIENCE_S)
        except MillstreamError as error:  # its silo has stopped
            self._run.figures[type(error).__name__] += 1
            return
        roll = self._rng.random()
        if roll < 0.25:
            await self._enqueue(queue)
        elif roll < 0.35:
            await self._enter(runtime, queue)
        elif roll < 0.8:
            await self._dequeue(queue)
        elif roll < 0.88:
            await self._give_up(queue)
        else:
            await self._rule(queue)

    async def _enqueue(self, queue: PriorityQueue) -> None:
        run, rng = self._run, self._rng
        self._sent += 1
        id, start_s = f"{self._name}:{self._sent}", run.now_s
        invisible_s = rng.choice((None, None, None, 1.0, 4.0))
        call = queue.enqueue(
            self._name.encode(),
            id=id,
            priority=rng.randrange(5),
            metadata={"value": rng.choice(VALUES)},
            invisible_s=invisible_s,
            attempts=rng.choice((None, 1, 20)),
        )
        done = await run.call("enqueue", call, LIMIT_S)
        if done is not None:
            run.ids.append((queue.name, id))
            run.saw(queue.name, id, done.version, start_s, "enqueued" if done.is_changed else "")

    async def _enter(self, runtime: Any, queue: PriorityQueue) -> None:
        """Enqueue messages under a request id, or repeat a request of this or another program."""
        run, rng = self._run, self._rng
        if rng.random() < 0.7 or not run.batches:
            new = [self._new() for _ in range(rng.randint(1, 6))]
            request = Request(new[0].id, 1)
            run.batches.append(Batch(queue.name, request, tuple(new), run.now_s))
        batch = rng.choice(run.batches[-5:])
        calls = runtime.stream(CallsOf(), batch.queue)
        command = EnqueueMany(batch.messages)
        found = await run.call("batch", calls.do(command, batch.request), LIMIT_S)
        for message, one in zip(batch.messages, found.answers if found else (), strict=False):
            if one is not None:
                run.ids.append((batch.queue, message.id))
                run.saw(batch.queue, one.id, one.version, batch.start_s)
                if one.id != message.id:
                    run.on_violated(f"{message.id} of {batch.queue} was answered as {one.id}")

    def _new(self) -> Enqueue:
        """Make a message; half have an exclusivity value of their own."""
        self._sent += 1
        id = f"{self._name}:{self._sent}"
        value = id if self._rng.random() < 0.5 else self._rng.choice(VALUES)
        return Enqueue(id, b"x", self._rng.randrange(5), (("value", value),))

    async def _dequeue(self, queue: PriorityQueue) -> None:
        run, rng = self._run, self._rng
        wait_s, start_s = rng.choice((0.0, 0.0, 1.0, 6.0)), run.now_s
        count = rng.choice((1, 1, 3)) if queue.name == "simple" else 1
        lease_s = rng.choice((None, 2.0))
        call = queue.dequeue(worker=self._name, count=count, wait_s=wait_s, lease_s=lease_s)
        leases = await run.call("dequeue", call, wait_s + POLL_LIMIT_S) or []
        for lease in leases:
            self._note(queue, lease, start_s)
        for lease in leases:
            await self._work_at(queue, lease)

    def _note(self, queue: PriorityQueue, lease: Lease, start_s: float) -> None:
        run, name = self._run, queue.name
        run.saw(name, lease.id, lease.token.version, start_s, "dequeued")
        run.given.append(Given(name, lease.id, lease.token, self._name, lease.attempt))

    async def _work_at(self, queue: PriorityQueue, lease: Lease) -> None:
        """Work in a block, by hand, or not at all."""
        run, rng = self._run, self._rng
        roll, work_s = rng.random(), rng.uniform(0.0, 3.0)
        if roll < 0.4:
            worked_s: list[float] = []
            block = self._block(lease, work_s, worked_s)
            await run.call("block", block, LIMIT_S, lambda: sum(worked_s))
            return
        if roll > 0.9:
            run.figures["left lying"] += 1
            return
        await asyncio.sleep(work_s)
        start_s = run.now_s
        how = rng.choice((lease.complete, lease.complete, lease.fail, lease.release, lease.extend))
        done = await run.call(how.__name__, how(), LIMIT_S)
        if done is not None:
            run.saw(queue.name, lease.id, done.version, start_s)
            run.figures[how.__name__] += done.is_changed

    async def _block(self, lease: Lease, work_s: float, worked_s: list[float]) -> None:
        async with lease:
            start_s = self._run.now_s
            await asyncio.sleep(work_s)
            worked_s.append(self._run.now_s - start_s)
        self._run.figures["blocks completed"] += 1

    async def _give_up(self, queue: PriorityQueue) -> None:
        """Ask for work, and cancel the call."""
        polling = asyncio.create_task(queue.dequeue(worker=self._name, wait_s=5.0))
        await asyncio.sleep(self._rng.uniform(0.0, 0.2))
        polling.cancel()
        await asyncio.wait([polling])
        if not polling.cancelled() and polling.exception() is None:
            for lease in polling.result():
                self._note(queue, lease, self._run.now_s - 0.2)
        self._run.figures["given up"] += polling.cancelled()

    async def _rule(self, queue: PriorityQueue) -> None:
        """Look at a message, or change it as an operator."""
        run, rng = self._run, self._rng
        known = [id for name, id in run.ids[-50:] if name == queue.name]
        if not known:
            return
        id, start_s, roll = rng.choice(known), run.now_s, rng.random()
        if roll < 0.6:
            view = await run.call("get", queue.get(id), LIMIT_S)
            if view is not None:
                run.saw(queue.name, id, view.version, start_s)
            return
        canceled = [id for name, id in run.canceled[-20:] if name == queue.name]
        if roll > 0.9 and canceled:
            await self._bring_again(queue, rng.choice(canceled))
            return
        change = queue.cancel(id) if roll < 0.8 else queue.prioritise(id, rng.randrange(5))
        done = await run.call("rule", change, LIMIT_S)
        if done is not None:
            run.saw(queue.name, id, done.version, start_s)
            run.canceled += [(queue.name, id)] if done.state is State.CANCELED else []

    async def _bring_again(self, queue: PriorityQueue, id: str) -> None:
        """Requeue a message that was given up; a repeated call may add another message."""
        run, start_s = self._run, self._run.now_s
        done = await run.call("requeue", queue.requeue(id), LIMIT_S)
        if done is not None:
            run.ids.append((queue.name, done.id))
            run.saw(queue.name, done.id, done.version, start_s)
            run.figures["brought again"] += done.is_changed
