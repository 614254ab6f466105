"""Somebody else who owns queues now and then, as a silo does that was cut off and does not know it:
it takes a queue from the store, works at it, and hears that it has lost it, or not."""

from __future__ import annotations

import asyncio

from millstream.providers.priority import MemoryStore
from millstream.providers.priority.core.commands import Complete, Dequeue
from millstream.providers.priority.store.contract import OwnedQueue
from millstream.runtime import MillstreamError
from millstream.runtime.testing import Random, make_random

from .notes import Given, PriorityRun
from .programs import QUEUES

__all__ = ["Rival"]

NAME = "rival"


class Rival:
    """One rival; it works until the run is over."""

    def __init__(self, run: PriorityRun, store: MemoryStore) -> None:
        self._run = run
        self._store = store
        self._rng: Random = make_random(run.simulation.seed, NAME)

    async def work(self) -> None:
        """Take a queue, again and again."""
        while not self._run.is_over:
            await asyncio.sleep(self._rng.uniform(0.5, 5.0))
            try:
                owned = await self._store.acquire(self._rng.choice(QUEUES), None)
                self._run.figures["taken by a rival"] += 1
                for _ in range(self._rng.randint(1, 10)):
                    await self._one_round(owned)
            except MillstreamError as error:
                self._run.figures[f"rival: {type(error).__name__}"] += 1

    async def _one_round(self, owned: OwnedQueue) -> None:
        run, name = self._run, owned.name
        await asyncio.sleep(self._rng.uniform(0.0, 0.3))
        start_s = run.now_s
        for lease in (await owned.do(Dequeue(NAME, lease_ms=2_000))).leases:
            run.saw(name, lease.id, lease.token.version, start_s, "dequeued")
            run.given.append(Given(name, lease.id, lease.token, NAME, lease.attempt))
            start_s = run.now_s
            done = await owned.do(Complete(lease.id, lease.token))
            run.saw(name, lease.id, done.version, start_s)
