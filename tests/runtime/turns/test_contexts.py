"""A turn sees no context variables of the silo's starter or of earlier calls."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from millstream.runtime import Grain, LocalCluster, grain, one_way

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


class Desk(Grain):
    async def tenant(self) -> str:
        return TENANT.get()

    async def serve(self, tenant: str) -> str:
        TENANT.set(tenant)
        await asyncio.sleep(0)
        return TENANT.get()

    async def start(self) -> None:
        self.seen = ""

        async def look() -> None:
            self.seen = TENANT.get()

        await self.context.create_task(look())

    async def background(self) -> str:
        return self.seen

    @one_way
    async def note(self) -> None:
        self.seen = TENANT.get()


@grain(direct=False)
class Apart(Grain):
    async def tenant(self) -> str:
        return TENANT.get()


async def test_a_variable_of_the_starter_is_not_seen_by_calls_of_clients() -> None:
    TENANT.set("starter")
    async with LocalCluster(silos=1, grains=[Desk]) as cluster:
        desk = cluster.grain(Desk, "a")
        assert await desk.tenant() == "nobody"
        await desk.start()
        assert await desk.background() == "nobody"


async def test_a_variable_of_one_served_call_is_not_seen_by_the_next() -> None:
    async with LocalCluster(silos=1, grains=[Desk]) as cluster:
        for at in range(20):
            assert await cluster.grain(Desk, f"{at % 3}").serve(f"tenant {at}") == f"tenant {at}"
            assert await cluster.grain(Desk, f"{at % 3}").tenant() == "nobody"


async def test_a_grain_apart_sees_no_variable_of_a_caller_in_its_silo() -> None:
    TENANT.set("caller")
    async with LocalCluster(silos=1, grains=[Apart]) as cluster:
        assert await cluster.silos[0].grain(Apart, "a").tenant() == "nobody"


async def test_a_one_way_call_sees_no_variable_of_its_caller() -> None:
    TENANT.set("caller")
    async with LocalCluster(silos=1, grains=[Desk]) as cluster:
        desk = cluster.silos[0].grain(Desk, "a")
        await desk.note()
        assert await desk.background() == "nobody"
