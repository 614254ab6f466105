"""A simulated cluster, and programs on its hosts, for tests of placement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from millstream.runtime import MemberRow, Silo
from millstream.runtime.testing import SimCluster, Simulation, run


class World:
    """A cluster, and programs on its hosts."""

    def __init__(self, sim: Simulation, cluster: SimCluster) -> None:
        self.sim = sim
        self.cluster = cluster

    def silo(self, number: int) -> Silo:
        silo = self.cluster.silo(f"silo-{number}")
        assert silo is not None
        return silo

    async def at(self, number: int, program: Callable[[Silo], Awaitable[Any]]) -> Any:
        """Run a program beside a silo."""

        async def act() -> Any:
            return await program(self.silo(number))

        return await self.sim.call(self.sim.host(f"silo-{number}"), act())

    async def at_client(self, program: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a program with a client."""

        async def act() -> Any:
            async with self.cluster.client(self.sim.host("client")) as client:
                return await program(client)

        return await self.sim.call(self.sim.host("client"), act())

    def hosts(self, kind: str) -> dict[int, int]:
        """Return the number of workers by silo."""
        found = {
            number: len(list(silo.assembly.catalog.of(kind).all()))
            for number, silo in enumerate(map(self.silo, range(len(self.cluster.names))))
        }
        return {number: count for number, count in found.items() if count}

    def rows(self) -> tuple[MemberRow, ...]:
        return self.cluster.table.view().rows

    def strip(self, name: str) -> None:
        """Write the row of a silo as a version without labels would."""
        (row,) = [row for row in self.rows() if row.name == name]
        table = self.cluster.table
        assert table.replace_row(replace(row, labels=(), requirements=()), table.view().version)


def in_cluster(
    main: Callable[[World], Awaitable[None]], silos: int = 3, seed: int = 1, **cluster: Any
) -> None:
    async def driver(sim: Simulation) -> None:
        async with SimCluster(sim, silos=silos, **cluster) as made:
            await made.until_active()
            await main(World(sim, made))

    run(driver, seed=seed)
