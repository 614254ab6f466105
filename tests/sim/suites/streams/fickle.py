"""A balancer that takes a wish back, and has it again in the middle of a drain.

Owns: `FickleBalancer`, around another one. Invariant: while it is not over, and then for good, it
wants in the end what the other one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from tests.sim.suites.run.record import current_run

from millstream.runtime.testing import Random
from millstream.streams import QueueBalancer, QueueId, SiloSet

__all__ = ["FickleBalancer"]

CALM_S = 6.0  # the longest time between two changes of mind
REGRET_S = 0.6  # the longest time for which a queue is not wanted


class FickleBalancer:
    """Wants what `inner` wants, but for moments."""

    def __init__(self, inner: QueueBalancer, rng: Random) -> None:
        self._inner = inner
        self._rng = rng
        self._wish: frozenset[QueueId] = frozenset()
        self._task: asyncio.Task[None] | None = None

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[Iterable[QueueId]], None],
    ) -> None:
        """Start the inner one, and doubt."""

        def wish(queues: Iterable[QueueId]) -> None:
            self._wish = frozenset(queues)
            wanted(self._wish)

        self._task = silos.tasks.start(self._doubt(wanted))
        await self._inner.start(queues, silos, wish)

    async def _doubt(self, wanted: Callable[[Iterable[QueueId]], None]) -> None:
        run = current_run()
        while not run.is_over:
            await asyncio.sleep(self._rng.uniform(0.0, CALM_S))
            if not self._wish or run.is_over:
                continue
            run.figures["changes of mind"] += 1
            wanted(self._wish - {self._rng.choice(sorted(self._wish))})
            await asyncio.sleep(self._rng.uniform(0.0, REGRET_S))
            wanted(self._wish)

    async def aclose(self) -> None:
        """End both."""
        if self._task is not None:
            self._task.cancel()
        await self._inner.aclose()
