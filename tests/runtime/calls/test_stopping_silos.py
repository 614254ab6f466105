"""Calls to grains of a stopping silo, in virtual time. They wait for the running turn and then go
to the grain's next silo."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millstream.runtime import PREFER_LOCAL, CallTimeout, Grain, RuntimeOptions, grain, with_options
from millstream.runtime.testing import SimCluster, Simulation, run

DRAIN_S = 10.0


@grain(placement=PREFER_LOCAL)
class Desk(Grain):
    async def hold(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return self.context.silo

    async def where(self) -> str:
        return self.context.silo


def simulate(main: Callable[[Simulation], Awaitable[Any]]) -> Any:
    async def driver(simulation: Simulation) -> Any:
        return await main(simulation)

    return run(driver, 1, max_virtual_s=600.0).result


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("turn_s", [0.5, 3.0, 8.0])
def test_calls_wait_for_a_stopping_silo_s_turn_and_go_where_the_grain_is_next(
    turn_s: float, count: int
) -> None:
    """The turn may last longer than all retries of a call. The grain must not be activated
    elsewhere before the turn has ended.
    """

    async def main(simulation: Simulation) -> None:
        options = RuntimeOptions(drain_s=DRAIN_S)
        cluster = SimCluster(simulation, silos=count, grains=[Desk], options=options)
        await cluster.start()
        leaving, *staying = cluster.silos()
        host = simulation.host(leaving.address.split(":")[0])

        async def on(silo: Any, call: Any) -> Any:
            return await simulation.call(simulation.host(silo.address.split(":")[0]), call)

        holding = asyncio.ensure_future(on(leaving, leaving.grain(Desk, "k").hold(turn_s)))
        await asyncio.sleep(0.05)
        cluster.names = tuple(silo.address.split(":")[0] for silo in staying)
        stopping = asyncio.ensure_future(simulation.call(host, leaving.stop()))
        await asyncio.sleep(0.3)  # the silo has sent its goodbye by now
        calls = [on(silo, silo.grain(Desk, "k").where()) for silo in staying]
        where = await asyncio.gather(*calls)
        assert holding.done() and await holding == leaving.address
        assert set(where) <= {silo.address for silo in staying} and len(set(where)) == 1
        await stopping
        await cluster.close()

    simulate(main)


def test_a_call_does_not_wait_longer_than_its_deadline_for_a_silo_that_stops() -> None:
    async def main(simulation: Simulation) -> None:
        options = RuntimeOptions(drain_s=DRAIN_S)
        cluster = SimCluster(simulation, silos=2, grains=[Desk], options=options)
        await cluster.start()
        leaving, staying = cluster.silos()
        hosts = [simulation.host(silo.address.split(":")[0]) for silo in (leaving, staying)]
        holding = asyncio.ensure_future(
            simulation.call(hosts[0], leaving.grain(Desk, "k").hold(8.0))
        )
        await asyncio.sleep(0.05)
        cluster.names = cluster.names[1:]
        stopping = asyncio.ensure_future(simulation.call(hosts[0], leaving.stop()))
        await asyncio.sleep(0.3)
        started_s = simulation.loop.time()
        with pytest.raises(CallTimeout):
            await simulation.call(
                hosts[1], with_options(staying.grain(Desk, "k"), timeout=4.0).where()
            )
        assert 3.9 < simulation.loop.time() - started_s < 4.5
        await holding
        await stopping
        await cluster.close()

    simulate(main)
