"""Two releases of a grain type in the suite `calls`: silos are replaced while programs call.

Owns: `VersionNotes`, which judges the versions, and the programs that call. A host runs one of two
releases, and another one after its silo was stopped.

The judge has these rules:

- A call runs only on an activation of its own version or a later one.
- No activation runs with a state that a later version has stored, and version 2 runs only with
  upgraded states.
- An acknowledged operation is stored exactly once, any other at most once.
- After the repair each grain answers callers of both versions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.sim.suites.run.record import Run, current_run

from millstream.runtime import (
    Contract,
    Grain,
    MillstreamError,
    Runtime,
    grain,
    state,
    upgrade,
)
from millstream.runtime.testing import Host, HostCrashed, SimCluster, make_random

__all__ = ["VersionNotes"]

TOMES = tuple(f"tome-{number}" for number in range(5))
NEW_TOMES = tuple(f"new-{number}" for number in range(8))
"""Grains that are called first after the repair, through both versions."""
REPLACE_S = (1.0, 6.0)
PAUSE_S = 0.4
WITHIN_S = 20.0


@dataclass
class OldPage:
    """The state of version 1: operations, and the latest version that wrote them."""

    ops: list[str] = field(default_factory=list)
    by: int = 1


@dataclass
class Page:
    """The state of version 2."""

    ops: list[str] = field(default_factory=list)
    by: int = 2
    is_upgraded: bool = False  # or made by version 2


class Tome(Grain):
    """Stores operations, and notes violations."""

    number = 0
    page: Any

    async def on_activate(self) -> None:
        """Check the version of the stored state."""
        notes = version_notes()
        notes.figures[f"activations of version {self.number}"] += 1
        if self.page.value.by > self.number:
            notes.on_violated(f"{self.key}: version {self.number} reads a state of a later one")
        if self.page.value.ops and not getattr(self.page.value, "is_upgraded", True):
            notes.on_violated(f"{self.key}: version {self.number} reads a state of version 1")

    async def add(self, op: str, wanted: int) -> int:
        """Store an operation of a caller that wants a version."""
        if wanted > self.number:
            version_notes().on_violated(f"{op}: version {self.number} runs a call of {wanted}")
        self.page.value.ops.append(op)
        self.page.value.by = self.number
        if isinstance(self.page.value, Page):
            self.page.value.is_upgraded = True
        await self.page.write()
        return self.number

    async def leave(self) -> None:
        """Move to another silo, if one is suitable."""
        self.context.migrate_when_idle()

    async def end(self) -> None:
        """End the activation."""
        self.context.deactivate_when_idle()

    async def ops(self, wanted: int) -> list[str]:
        """Return all operations."""
        if wanted > self.number:
            version_notes().on_violated(f"{self.key}: version {self.number} runs a call")
        found: list[str] = self.page.value.ops
        return found


@grain(name="tome")
class Tome1(Tome):
    """The first release."""

    number = 1
    page = state(OldPage)


@grain(name="tome", version=2)
class Tome2(Tome):
    """The second release."""

    number = 2
    page = state(Page)

    @staticmethod
    @upgrade(page, from_version=1)
    def page_of_1(old: OldPage) -> Page:
        """Take the state of version 1."""
        return Page(old.ops, old.by, is_upgraded=True)


@grain(name="tome")
class TomeOf1(Contract):
    """The first release, as its callers see it."""

    async def add(self, op: str, wanted: int) -> int:
        """See `Tome`."""
        raise NotImplementedError

    async def leave(self) -> None:
        """See `Tome`."""
        raise NotImplementedError

    async def end(self) -> None:
        """See `Tome`."""
        raise NotImplementedError

    async def ops(self, wanted: int) -> list[str]:
        """See `Tome`."""
        raise NotImplementedError


@grain(name="tome", version=2)
class TomeOf2(TomeOf1):
    """The second release, as its callers see it."""


RELEASES: Mapping[int, type[Grain]] = {1: Tome1, 2: Tome2}
CONTRACTS: Mapping[int, type[TomeOf1]] = {1: TomeOf1, 2: TomeOf2}


class VersionNotes:
    """The versions of one run.

    Attributes:
        is_active: this seed has two releases.
        grains: the classes for the cluster.
        lacking: the class that each host lacks; it changes when a release is replaced.
    """

    def __init__(self, run: Run, silos: int, is_active: bool) -> None:
        self._run = run
        self._rng = make_random(run.simulation.seed, "versions")
        self.is_active = is_active
        self.figures: Counter[str] = run.figures
        self.grains = tuple(RELEASES.values()) if is_active else ()
        self.lacking: dict[str, tuple[type[Grain], ...]] = {}
        for number in range(2 * silos):  # later hosts have the second release
            self._set_release(f"silo-{number}", 1 if number < silos else 2)
        self._acknowledged: dict[str, str] = {}
        self._sent = 0
        self.is_over = False

    def _set_release(self, name: str, release: int) -> None:
        self.lacking[name] = (RELEASES[3 - release],)

    def on_violated(self, problem: str) -> None:
        """Note a violation."""
        self._run.on_violated(problem)

    async def roll(self, cluster: SimCluster) -> None:
        """Replace the release of each host, sometimes back and forth, or of all but one."""
        if not self.is_active:
            return
        count = len(cluster.names) - self._rng.choice((0, 1))
        steps = [(name, 2) for name in self._rng.sample(cluster.names, count)]
        if self._rng.random() < 0.4:
            steps[1:1] = [(steps[0][0], 1), steps[0]]
        for name, release in steps:
            await asyncio.sleep(self._rng.uniform(*REPLACE_S))
            if self.is_over and release == 1:
                continue
            self._set_release(name, release)
            self.figures["replaced silos"] += 1
            try:
                await cluster.stop_silo(name)
            except HostCrashed:
                pass  # it starts again with the new release
            except MillstreamError as error:
                self.figures[type(error).__name__] += 1

    async def call(self, cluster: SimCluster, host: Host) -> None:
        """Call until the run is over: a program of a client."""
        if not self.is_active:
            return
        async with cluster.client(host) as client:
            while not self.is_over:
                await asyncio.sleep(self._rng.uniform(0.0, PAUSE_S))
                await asyncio.gather(*(self._act(client) for _ in range(self._rng.choice((1, 3)))))

    async def _act(self, runtime: Runtime) -> None:
        wanted, key, roll = self._rng.choice((1, 1, 2)), self._rng.choice(TOMES), self._rng.random()
        tome = runtime.grain(CONTRACTS[wanted], key)
        try:
            if roll < 0.1:
                await tome.leave()
            elif roll < 0.3:
                await tome.end()
            else:
                self._sent += 1
                op = f"{key}/{self._sent}"
                await tome.add(op, wanted)
                self._acknowledged[op] = key
                self.figures[f"calls of version {wanted}"] += 1
        except MillstreamError as error:
            self.figures[type(error).__name__] += 1

    async def finish(self, cluster: SimCluster, host: Host) -> None:
        """Judge the grains once all faults have ended."""
        if not self.is_active:
            return
        found: Counter[str] = Counter()

        async def read() -> None:
            async with cluster.client(host) as client:
                for key in (*TOMES, *NEW_TOMES):
                    if key in NEW_TOMES:  # so that some begin in a silo with the first release
                        await client.grain(TomeOf1, key).add(f"{key}/begin", 1)
                    await client.grain(TomeOf2, key).add(f"{key}/end", 2)
                    for wanted, contract in CONTRACTS.items():
                        ops = await client.grain(contract, key).ops(wanted)
                        found.update(ops if wanted == 1 else ())

        try:
            async with asyncio.timeout(WITHIN_S):
                await self._run.simulation.call(host, read())
        except (MillstreamError, TimeoutError) as error:
            self.on_violated(f"a tome does not answer after the repair: {error!r}")
            return
        for op, count in found.items():
            if count > 1:
                self.on_violated(f"{op} is stored {count} times")
        for op in self._acknowledged:
            if not found[op]:
                self.on_violated(f"{op} was acknowledged, and is not stored")


def version_notes() -> VersionNotes:
    """Return the notes of the run that is being simulated."""
    notes: VersionNotes = current_run().versions  # type: ignore[attr-defined]
    return notes
