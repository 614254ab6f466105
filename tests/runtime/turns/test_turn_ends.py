"""The ends of turns that were cancelled, were too late, or never ran."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.runtime import (
    PREFER_LOCAL,
    CallError,
    CallTimeout,
    Grain,
    LocalCluster,
    RuntimeOptions,
    Silo,
    SiloUnavailable,
    always_interleave,
    grain,
    one_way,
    with_options,
)
from millstream.runtime.testing import SimCluster, Simulation, run

LOG: list[str] = []
GATE = asyncio.Event()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global GATE
    GATE = asyncio.Event()
    LOG.clear()


@grain(placement=PREFER_LOCAL)
class Desk(Grain):
    async def ok(self) -> str:
        return "ok"

    async def stay(self) -> None:
        await GATE.wait()

    async def cleans_up(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(300):
                await asyncio.sleep(0.001)
            LOG.append("clean")

    async def swallows(self) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            LOG.append("swallowed")
        return "late"

    async def child_swallows(self) -> None:
        """Let a task of the turn make a call within the turn's deadline, which the callee
        swallows.
        """

        async def child() -> None:
            try:
                await self.grain(Desk, "other").swallows()
            except CallTimeout:
                LOG.append("timeout")

        self.context.create_task(child())
        await asyncio.Event().wait()

    async def leaves_a_task(self, seconds: float) -> None:
        """Leave a task that makes a call long after this turn has ended."""

        async def later() -> None:
            await asyncio.sleep(2 * seconds)
            try:
                LOG.append(await self.grain(Desk, "other").ok())
            except CallTimeout as error:
                LOG.append(str(error))

        self.context.create_task(later())

    async def keeps_waiting_for(self, key: str, seconds: float) -> None:
        await self.grain(Desk, key).leaves_a_task(seconds)
        await asyncio.sleep(4 * seconds)

    async def child_calls(self, key: str) -> None:
        """Let a task of the turn make two calls, which both belong to the turn."""

        async def child() -> None:
            await self.grain(Desk, "other").ok()
            await self.grain(Desk, key).stay()

        await asyncio.create_task(child())

    async def deep(self, there: str, here: str, left: int) -> int:
        if not left:
            return 0
        return 1 + await self.grain(Desk, f"{there}{left}").deep(here, there, left - 1)

    async def asks(self, key: str) -> str:
        return await self.grain(Desk, key).ok()

    async def asks_in_a_task(self, key: str) -> str:
        return await asyncio.create_task(self.asks_once_it_is_busy(key))

    async def asks_once_it_is_busy(self, key: str) -> str:
        await GATE.wait()
        return await self.grain(Desk, key).ok()

    @one_way
    async def note(self) -> None:
        LOG.append("noted")

    @always_interleave
    async def peek(self) -> str:
        return "peek"


@pytest.fixture
async def silo() -> AsyncIterator[Silo]:
    async with Silo(grains=[Desk]) as started:
        yield started


@pytest.fixture
async def pair() -> AsyncIterator[LocalCluster]:
    options = RuntimeOptions(chain_turns_max=40)
    async with LocalCluster(silos=2, grains=[Desk], options=options) as started:
        yield started


# --- cancelled -----------------------------------------------------------------------------------


def simulate(program: Callable[[SimCluster, Any], Coroutine[Any, Any, None]], where: str) -> None:
    """Run a program with a cluster of two silos in virtual time, at one of them or at a client."""

    async def main(simulation: Simulation) -> None:
        host = simulation.host(where)
        async with SimCluster(simulation, silos=2, grains=[Desk]) as cluster:
            if silo := cluster.silo(where):
                return await simulation.call(host, program(cluster, silo))
            await simulation.call(host, outside(cluster))

    async def outside(cluster: SimCluster) -> None:
        async with cluster.client(cluster.simulation.host(where)) as client:
            await program(cluster, client)

    run(main, 1)


@pytest.mark.parametrize("where", ["silo-1", "client"])
def test_the_clean_up_of_a_turn_that_timed_out_is_not_cut_short(where: str) -> None:
    async def program(cluster: SimCluster, runtime: Any) -> None:
        home = cluster.simulation.host("silo-0")
        silo = cluster.silo("silo-0")
        assert silo is not None
        await cluster.simulation.call(home, silo.grain(Desk, "a").ok())
        with pytest.raises(CallTimeout):
            await with_options(runtime.grain(Desk, "a"), timeout=0.2).cleans_up()
        while "clean" not in LOG:
            await asyncio.sleep(0.01)
        assert await runtime.grain(Desk, "a").ok() == "ok"

    simulate(program, where)


async def test_a_cancellation_that_a_local_method_swallowed_is_raised_again(silo: Silo) -> None:
    call = asyncio.ensure_future(silo.grain(Desk, "a").swallows())
    await spin()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert LOG == ["swallowed"] and await silo.grain(Desk, "a").ok() == "ok"


async def test_a_deadline_that_a_method_swallowed_is_a_timeout_all_the_same(silo: Silo) -> None:
    with pytest.raises(CallTimeout):
        await with_options(silo.grain(Desk, "a"), timeout=0.05).swallows()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0 and LOG == ["swallowed"]


async def test_a_swallowed_deadline_that_was_inherited_is_a_timeout_in_a_task_of_the_turn(
    silo: Silo,
) -> None:
    await silo.grain(Desk, "other").ok()  # so that the task's call is direct
    with pytest.raises(CallTimeout):
        await with_options(silo.grain(Desk, "a"), timeout=0.05).child_swallows()
    async with asyncio.timeout(5):
        while LOG != ["swallowed", "timeout"]:
            await asyncio.sleep(0)
    assert await silo.grain(Desk, "other").ok() == "ok"


async def test_a_coroutine_that_is_closed_while_it_waits_leaves_the_grain_to_others(
    silo: Silo,
) -> None:
    desk = silo.grain(Desk, "a")
    staying = asyncio.create_task(desk.stay())
    await spin()
    waiting: Coroutine[Any, Any, str] = desk.ok()
    waiting.send(None)  # as a task does, and then the call waits for its turn
    waiting.close()
    GATE.set()
    await staying
    async with asyncio.timeout(5):
        assert await desk.ok() == "ok"
    silo.assembly.catalog.of("Desk")["a"].check()


async def test_a_coroutine_that_is_closed_just_as_it_is_granted_leaves_the_grain_to_others(
    silo: Silo,
) -> None:
    desk = silo.grain(Desk, "a")
    staying = asyncio.create_task(desk.stay())
    await spin()
    waiting: Coroutine[Any, Any, str] = desk.ok()
    waiting.send(None)
    GATE.set()
    await staying
    waiting.close()
    async with asyncio.timeout(5):
        assert await desk.ok() == "ok"


async def test_a_one_way_call_that_waited_too_long_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Silo(grains=[Desk], options=RuntimeOptions(call_timeout_s=0.1)) as silo:
        desk = silo.grain(Desk, "a")
        staying = asyncio.create_task(with_options(desk, timeout=30).stay())
        await spin()
        await desk.note()
        await until(lambda: "did not run" in caplog.text)
        assert "one-way call Desk/a.note did not run: Desk/a: Desk.note" in caplog.text
        assert "waited for Desk/a, which runs Desk.stay" in caplog.text
        GATE.set()
        await staying
    assert "noted" not in LOG


async def test_a_call_ends_with_its_silo_though_the_search_for_its_grain_never_began() -> None:
    async with LocalCluster(silos=2, grains=[Desk]) as cluster:
        one = cluster.silos[0]
        call = asyncio.ensure_future(one.grain(Desk, "somewhere").ok())
        await asyncio.sleep(0)
        one.assembly.engine.tasks.cancel()  # the search was started, but has not run
        await one.kill()
        async with asyncio.timeout(5):
            with pytest.raises(SiloUnavailable):
                await call


# --- the deadline of a task ----------------------------------------------------------------------


def test_a_task_that_outlives_its_turn_has_no_deadline_of_its_callers() -> None:
    async def program(cluster: SimCluster, silo: Any) -> None:
        with pytest.raises(CallTimeout):
            await with_options(silo.grain(Desk, "a"), timeout=0.08).keeps_waiting_for("b", 0.03)
        while not LOG:
            await asyncio.sleep(0.01)
        assert LOG == ["ok"]

    simulate(program, "silo-0")


async def test_a_task_of_a_turn_ends_with_its_deadline_also_at_its_second_call(
    pair: LocalCluster,
) -> None:
    home, other = pair.silos
    await other.grain(Desk, "far").ok()
    for key in ("near", "far"):
        started = home.assembly.loop.time()
        with pytest.raises(CallTimeout):
            await with_options(home.grain(Desk, "a"), timeout=0.1).child_calls(key)
        assert home.assembly.loop.time() - started < 5
        await until(lambda key=key: all(silo_is_idle(silo) for silo in pair.silos))  # type: ignore[misc]


def silo_is_idle(silo: Silo) -> bool:
    return all(activation.is_idle for activation in silo.assembly.catalog.all())


async def test_a_chain_of_calls_is_as_long_as_it_may_be_whatever_silos_it_passes(
    pair: LocalCluster,
) -> None:
    one, two = pair.silos
    for at in range(60):
        await one.grain(Desk, f"one-{at}").ok()
        await two.grain(Desk, f"two-{at}").ok()
    start = one.grain(Desk, "start")
    assert await start.deep("two-", "one-", 30) == 30
    with pytest.raises(CallError, match="chain_turns_max 40"):
        await start.deep("two-", "one-", 59)


# --- the grains in a time-out's error ------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("where", ["silo", "client"])
async def test_a_remote_time_out_names_the_grain_and_what_it_waited_for(
    pair: LocalCluster, where: str
) -> None:
    home, other = pair.silos
    staying = asyncio.create_task(home.grain(Desk, "a").stay())
    await spin()
    runtime: Any = other if where == "silo" else pair.client
    # The callee has a minimum of 0.75 s. The error names the caller's limit less the time of
    # sending.
    match = r"Desk/a: .*Desk\.ok .*\(at most 0\.(8|7[6-9]) s\).*waited for Desk/a, .*Desk\.stay"
    with pytest.raises(CallTimeout, match=match):
        await with_options(runtime.grain(Desk, "a"), timeout=0.8).ok()
    GATE.set()
    await staying


async def test_a_remote_time_out_of_one_that_runs_names_the_grain(pair: LocalCluster) -> None:
    home, other = pair.silos
    await home.grain(Desk, "a").ok()
    with pytest.raises(CallTimeout, match=r"Desk/a: .*Desk\.stay"):
        await with_options(other.grain(Desk, "a"), timeout=0.2).stay()


@pytest.mark.parametrize("impatient", ["a", "b"])
async def test_of_two_that_wait_for_each_other_in_tasks_who_gives_up_names_the_other(
    silo: Silo, impatient: str
) -> None:
    # The timeout ends one turn, and so the other call gets its answer.
    other = "ab".replace(impatient, "")
    calls = {
        key: asyncio.ensure_future(
            with_options(silo.grain(Desk, key), timeout=seconds).asks_in_a_task(asked)
        )
        for key, asked, seconds in ((impatient, other, 0.3), (other, impatient, 30.0))
    }
    await spin()
    GATE.set()
    match = rf"Desk/{impatient}: Desk\.asks_in_a_task.*waited for Desk/{other}"
    with pytest.raises(CallTimeout, match=match):
        await calls[impatient]
    assert await calls[other] == "ok"
