"""A subscription that starts at a token ahead of its queue starts with the next event, even while
another subscription pins older ones."""

from __future__ import annotations

import asyncio

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, grain
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace, Token

LINES = StreamNamespace("lines", int, subscriptions="explicit")
SEEN: list[int] = []


@grain(reentrant=True)
class Hearer(Grain):
    async def listen(self, token: Token | None) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line, start=token)

    async def _on_line(self, event: Event[int]) -> None:
        if self.key == "holder":
            await asyncio.sleep(50.0)
        else:
            SEEN.append(event.item)


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(), mapper=HashRingMapper(queues=1), balancer=DeploymentBalancer()
    )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("held", [0, 1, 3])
def test_a_token_ahead_of_the_queue_is_taken_for_next(held: int, seed: int) -> None:
    SEEN.clear()

    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=2, grains=[Hearer], streams={"default": provider})
        await cluster.start()
        host = simulation.host("client")

        async def program() -> None:
            async with cluster.client(host) as client:
                stream = client.stream(LINES, "s")
                await client.grain(Hearer, "holder").listen(None)
                await stream.publish_many(range(held))
                await asyncio.sleep(1.0 if held else 0.0)
                begun_s = asyncio.get_running_loop().time()
                await client.grain(Hearer, "a").listen(Token(9, 1))
                assert asyncio.get_running_loop().time() - begun_s < 10.0
                await stream.publish_many([100, 101])
                await asyncio.sleep(2.0)
                assert SEEN == [100, 101]

        await simulation.call(host, program())
        await cluster.close()

    run(main, seed, max_virtual_s=600.0)
