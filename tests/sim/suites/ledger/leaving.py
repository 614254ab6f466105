"""The permanent loss of silos with their directories, one after the other.

Owns: `Leaving`. Not: other faults (`troubles`), checks of the queues (`book`). Invariant: a silo is
lost only while no ledger needs a bookie that was lost before. So a replica of each entry with two
acknowledgements remains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import msgspec
from tests.sim.suites.run.programs import Programs
from tests.sim.suites.run.record import Run

from millstream.providers.ledger import LedgerOptions, RecoveryOptions
from millstream.providers.ledger.inspection import (
    BookieRecord,
    LedgerRecord,
    LedgerState,
    bookies_of,
)
from millstream.runtime import MemoryStateStore
from millstream.runtime.extending import unseal
from millstream.runtime.testing import Random, SimCluster, Simulation

__all__ = ["COPIED_S", "Leaving"]

LOSSES_MAX = 2
FIRST_S = (1.0, 12.0)
REPLACED_S = (0.0, 6.0)
LOOK_S = 0.25
COPIED_S = 90.0
"""The time after the last fault within which all replicas exist again."""
RANGE_MAX = 100_000


class Leaving:
    """Loses silos of one run; `rng` chooses the times and the silos."""

    def __init__(self, run: Run, rng: Random, store: MemoryStateStore) -> None:
        self._run = run
        self._rng = rng
        self._store = store
        self._lost: set[str] = set()  # names of bookies

    def options(self, options: LedgerOptions) -> LedgerOptions:
        """Return options with which missing replicas are written soon, in small steps."""
        recovery = RecoveryOptions(
            lost_bookie_after_s=self._rng.choice((2.0, 5.0)),
            open_fragment_after_s=self._rng.choice((0.5, 3.0)),
            look_every_s=0.5,
            audit_every_s=5.0,
            retry_after_s=5.0,
            ledgers_max=self._rng.choice((1, 4)),
            page_entries=self._rng.choice((1, 3, 256)),
        )
        return replace(options, recovery=recovery)

    async def play(self, cluster: SimCluster, programs: Programs) -> None:
        """Until the run is over: lose a silo, start another one, wait for its replicas."""
        await asyncio.sleep(self._rng.uniform(*FIRST_S))
        for number in range(1, LOSSES_MAX + 1):
            if self._run.is_over:
                return
            self._lose(cluster)
            self._run.figures[f"silos lost for good, {'first' if number == 1 else 'second'}"] += 1
            await asyncio.sleep(self._rng.uniform(*REPLACED_S))
            programs.join()
            while self.lacking():
                if self._run.is_over:
                    return
                await asyncio.sleep(LOOK_S)
            self._run.figures["losses made good in time"] += 1

    def _lose(self, cluster: SimCluster) -> None:
        """Lose a machine at once."""
        simulation: Simulation = self._run.simulation
        name = self._rng.choice(cluster.names)
        cluster.names = tuple(other for other in cluster.names if other != name)
        if simulation.is_up(name):
            simulation.crash(name, is_silent=self._rng.random() < 0.5)
        simulation.disk(name).restore("/", {})
        self._lost |= {one.bookie for one in self._bookies() if one.owner == name}

    def lacking(self) -> list[str]:
        """Return ledgers that name a lost bookie, or may lack replicas on others."""
        return [
            f"ledger {one.ledger} of {one.topic}: {one}"
            for one in self._ledgers()
            if self._lost & bookies_of(one)
            or (one.state is LedgerState.CLOSED and one.complete < one.last)
        ]

    async def copies_made(self) -> None:
        """After the last fault, wait for the replicas; note a violation if they are not written."""
        loop = self._run.simulation.loop
        until_s = loop.time() + COPIED_S
        while lacking := self.lacking():
            if loop.time() >= until_s:
                break
            await asyncio.sleep(LOOK_S)
        for text in lacking:
            self._run.on_violated(f"{text} has not got its copies within {COPIED_S:g} s")

    def _ledgers(self) -> Sequence[LedgerRecord]:
        return [msgspec.msgpack.decode(data, type=LedgerRecord) for data in self._rows("ledgers/")]

    def _bookies(self) -> Sequence[BookieRecord]:
        return [msgspec.msgpack.decode(data, type=BookieRecord) for data in self._rows("bookies/")]

    def _rows(self, folder: str) -> list[bytes]:
        """Read stored rows, even while the store fails."""
        rows = MemoryStateStore.range(self._store, f"ledger/sim/{folder}", "", RANGE_MAX)
        return [unseal(key, row.data).content for key, row in rows]
