"""Graceful stops of silos, beside the faults of a script.

Owns: `Stops`.
"""

from __future__ import annotations

import asyncio

from millstream.runtime.testing import HostCrashed, SimCluster

from .record import Run

__all__ = ["Stops"]


class Stops:
    """Stops silos gracefully at random times, beside the script; `every_s`: shortest and longest
    wait."""

    def __init__(
        self, run: Run, cluster: SimCluster, every_s: tuple[float, float] = (5.0, 30.0)
    ) -> None:
        self._run = run
        self._cluster = cluster
        self._every_s = every_s
        self._rng = run.simulation.rng
        self.is_over = False

    async def play(self) -> None:
        """Stop a random silo now and then; its host starts another one."""
        while True:
            await asyncio.sleep(self._rng.uniform(*self._every_s))
            name = self._rng.choice(self._cluster.names)
            if self.is_over:
                return
            if self._cluster.silo(name) is None:
                continue
            self._run.figures["graceful stops"] += 1
            try:
                await self._cluster.stop_silo(name)
            except HostCrashed:
                self._run.figures["crashes while stopping"] += 1
