"""Local calls that wait for a busy grain, and the deadline and arguments that they keep when the
grain moves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.runtime import PREFER_LOCAL, CallTimeout, Grain, RuntimeOptions, grain, timeout
from millstream.runtime.testing import SimCluster, Simulation, run

LIMIT_S = 2.0


@grain(placement=PREFER_LOCAL)
class Desk(Grain):
    async def work(self, seconds: float) -> None:
        """Keep the grain busy, then let this activation end."""
        await asyncio.sleep(seconds)
        self.context.deactivate_when_idle()

    @timeout(LIMIT_S)
    async def answer(self, seconds: float, basket: list[int]) -> list[int]:
        await asyncio.sleep(seconds)
        basket.append(len(basket))
        return basket


async def waits_and_moves(
    simulation: Simulation, busy_s: float, needs_s: float, basket: list[int]
) -> tuple[Any, float]:
    """Call a busy grain whose activation ends after `busy_s`. Return the result and its time."""
    cluster = SimCluster(simulation, silos=1, grains=[Desk], options=RuntimeOptions(sweep_s=0.02))
    await cluster.start()
    silo = cluster.silos()[0]

    async def program() -> tuple[Any, float]:
        desk = silo.grain(Desk, "a")
        await desk.answer(0.0, [])  # the grain is active and idle
        working = asyncio.create_task(desk.work(busy_s))
        await asyncio.sleep(0)
        started = simulation.loop.time()
        outcome: Any
        try:
            outcome = await desk.answer(needs_s, basket)
        except CallTimeout as error:
            outcome = error
        took_s = simulation.loop.time() - started
        await working
        return outcome, took_s

    found = await simulation.call(simulation.host("silo-0"), program())
    await cluster.close()
    return found


def outcome_of(busy_s: float, needs_s: float, basket: list[int]) -> tuple[Any, float]:
    async def driver(simulation: Simulation) -> tuple[Any, float]:
        return await waits_and_moves(simulation, busy_s, needs_s, basket)

    found: tuple[Any, float] = run(driver, 1, max_virtual_s=60.0).result
    return found


def test_a_call_that_waited_where_the_activation_ended_runs_in_the_next_one() -> None:
    basket = [7]
    outcome, took_s = outcome_of(1.0, 0.5, basket)
    assert outcome == [7, 1]
    assert basket == [7], "the argument is a copy, as in any call"
    assert took_s == pytest.approx(1.5, abs=0.1)


def test_it_keeps_its_deadline() -> None:
    outcome, took_s = outcome_of(1.5, 1.0, [])
    assert isinstance(outcome, CallTimeout)
    assert took_s == pytest.approx(LIMIT_S, abs=0.1)


def test_a_deadline_that_passes_while_it_waits_ends_it_there() -> None:
    outcome, took_s = outcome_of(3.0, 0.0, [])
    assert isinstance(outcome, CallTimeout)
    assert "Desk.work" in str(outcome), "it says what it waited for"
    assert took_s == pytest.approx(LIMIT_S, abs=0.1)
