"""Observers over sockets: several silos and a client in one process, on loopback."""

from __future__ import annotations

import asyncio

import pytest

from millstream.runtime import (
    ClientUnavailable,
    Grain,
    LocalCluster,
    Observer,
    ObserverGone,
    ObserverSet,
    Overloaded,
    RuntimeOptions,
    connect,
)

pytestmark = pytest.mark.real


class Viewer(Observer):
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.gate = asyncio.Event()

    async def goal(self, scorer: str) -> int:
        self.seen.append(scorer)
        return len(self.seen)

    async def stay(self) -> None:
        await self.gate.wait()


class Match(Grain):
    def __init__(self) -> None:
        self.viewers = ObserverSet(self, Viewer, expires_s=60)

    async def watch(self, viewer: Viewer) -> None:
        self.viewers.add(viewer)

    async def score(self, scorer: str) -> None:
        self.viewers.notify(Viewer.goal, scorer)

    async def ask(self, viewer: Viewer, scorer: str) -> int:
        return await viewer.goal(scorer)

    async def flood(self, viewer: Viewer, text: str, calls: int) -> int:
        """Return how many of the calls were refused."""
        found = await asyncio.gather(
            *(viewer.goal(text) for _ in range(calls)), return_exceptions=True
        )
        return sum(isinstance(one, Overloaded) for one in found)


async def test_grains_of_several_silos_call_an_object_of_a_client() -> None:
    async with LocalCluster(silos=3, grains=[Match]) as cluster:
        async with cluster.observe(Viewer()) as viewer:
            counts = [await cluster.grain(Match, f"{n}").ask(viewer, "Ada") for n in range(12)]
            assert counts == list(range(1, 13))
        with pytest.raises(ObserverGone):
            await cluster.grain(Match, "0").ask(viewer, "Ada")


async def test_the_client_moves_when_its_gateway_stops_or_is_killed() -> None:
    observer = Viewer()
    async with LocalCluster(silos=3, grains=[Match]) as cluster:
        gateways = [silo.gateway for silo in cluster.silos]
        async with connect(*gateways) as client, client.observe(observer) as viewer:
            for end in ("stop", "kill"):
                (gateway,) = [
                    silo
                    for silo in cluster.silos
                    if silo.assembly.clients.connection(client.address) is not None
                ]
                other = next(silo for silo in cluster.silos if silo is not gateway)
                await getattr(gateway, end)()
                cluster.silos.remove(gateway)
                match = other.grain(Match, end)
                async with asyncio.timeout(20):
                    await match.ask(viewer, end)
        assert observer.seen == ["stop", "kill"]


async def test_a_client_that_closes_is_gone_at_once() -> None:
    async with LocalCluster(silos=2, grains=[Match]) as cluster:
        async with connect(cluster.silos[0].gateway) as client:
            async with client.observe(Viewer()) as viewer:
                key = viewer.key
                await cluster.grain(Match, "final").ask(viewer, "Ada")
                await client.aclose()
        for silo in cluster.silos:
            gone = silo.assembly.references.grain_of("~Viewer", Viewer, key)
            async with asyncio.timeout(2):
                with pytest.raises(ClientUnavailable):
                    await gone.goal("Ada")


async def test_large_calls_to_one_client_meet_a_limit_in_bytes() -> None:
    options = RuntimeOptions(observer_bytes_max=1_000_000)
    async with LocalCluster(silos=1, grains=[Match], options=options) as cluster:
        async with cluster.observe(Viewer()) as viewer:
            match = cluster.grain(Match, "final")
            assert await match.flood(viewer, "x" * 100_000, 200) > 50
            assert await match.ask(viewer, "Ada") > 0
