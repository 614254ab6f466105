"""No series of calls that never suspend blocks the loop, whichever way the calls came in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.conditions import spin, until

from millstream.runtime import (
    CallTimeout,
    DeactivationReason,
    Grain,
    GrainError,
    LocalCluster,
    Overloaded,
    RuntimeOptions,
    Silo,
    always_interleave,
    grain,
    one_way,
    read_only,
    with_options,
)
from millstream.runtime.calls.callee import PARKED_MAX
from millstream.runtime.turns.budget import Budget
from millstream.runtime.turns.collector import collect_kind

CALLS = 5_000
LONG_S = 0.04
OPTIONS = RuntimeOptions(slice_s=0.0005)
GATE = asyncio.Event()
NOTED: list[int] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    global GATE
    GATE = asyncio.Event()
    NOTED.clear()


class Desk(Grain):
    async def plain(self) -> int:
        return 1

    async def fail(self) -> int:
        raise ValueError("no")

    @read_only
    async def read(self) -> int:
        return 1

    @always_interleave
    async def peek(self) -> int:
        return 1

    @one_way
    async def note(self, number: int) -> None:
        NOTED.append(number)

    async def stay(self) -> None:
        await GATE.wait()

    async def leave(self, code: int) -> None:
        raise SystemExit(code)


@grain(reentrant=True)
class Open(Grain):
    async def plain(self) -> int:
        return 1


@pytest.fixture
async def silo() -> AsyncIterator[Silo]:
    async with Silo(grains=[Desk, Open], options=OPTIONS) as started:
        yield started


async def turns_of_the_loop(call: Callable[[], Awaitable[object]]) -> tuple[int, float]:
    """Return the iterations of the loop while one task makes many calls, and their duration.

    The duration is CPU time of this process, because other processes may use the machine.
    """
    rounds, is_over = 0, False
    loop = asyncio.get_running_loop()
    started, started_cpu_s = loop.time(), time.process_time()

    def count() -> None:
        nonlocal rounds
        rounds += 1
        if not is_over:
            loop.call_soon(count)

    loop.call_soon(count)
    made = 0
    while made < CALLS or loop.time() - started < LONG_S:  # long enough on any machine
        await call()
        made += 1
    is_over = True
    return rounds, time.process_time() - started_cpu_s


async def failing(silo: Silo) -> None:
    try:
        await silo.grain(Desk, "a").fail()
    except ValueError:
        return
    raise AssertionError("it answered")


WAYS: dict[str, Callable[[Silo], Callable[[], Awaitable[object]]]] = {
    "direct": lambda silo: silo.grain(Desk, "a").plain,
    "read only": lambda silo: silo.grain(Desk, "a").read,
    "interleaving": lambda silo: silo.grain(Desk, "a").peek,
    "reentrant": lambda silo: silo.grain(Open, "a").plain,
    "one way": lambda silo: lambda: silo.grain(Desk, "a").note(1),
    "with options": lambda silo: with_options(silo.grain(Desk, "a"), timeout=5).plain,
    "failing": lambda silo: lambda: failing(silo),
}


@pytest.mark.one_in(9)
@pytest.mark.parametrize("way", WAYS)
async def test_calls_that_never_suspend_let_the_loop_go_now_and_then(silo: Silo, way: str) -> None:
    call = WAYS[way](silo)
    await call()
    rounds, took_s = await turns_of_the_loop(call)
    assert rounds >= max(2, took_s / 0.02)  # uvloop's clock has whole milliseconds


class CoarseLoop:
    """The running loop with a clock in whole milliseconds, as uvloop's is."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.call_soon = asyncio.get_running_loop().call_soon

    def time(self) -> float:
        return int(self.now_s * 1_000) / 1_000


async def test_a_coarse_clock_does_not_make_a_run_of_calls_longer() -> None:
    loop: Any = CoarseLoop()
    budget = Budget(loop, slice_s=0.0005)
    lengths = [0]

    def end_run() -> None:
        lengths.append(0)
        asyncio.get_running_loop().call_soon(end_run)

    asyncio.get_running_loop().call_soon(end_run)
    for _ in range(2_000):
        loop.now_s += 0.0006  # the time of one call, which the coarse clock often does not show
        lengths[-1] += 1
        await budget.spend()
    assert max(lengths[10:]) <= 4


async def test_a_flood_of_one_way_calls_arrives_whole_and_in_order(silo: Silo) -> None:
    desk = silo.grain(Desk, "a")
    for number in range(15_000):
        await desk.note(number)
    await until(lambda: len(NOTED) == 15_000)
    assert NOTED == list(range(15_000))


async def test_a_one_way_call_that_finds_a_full_mailbox_says_so() -> None:
    options = RuntimeOptions(waiting_calls_max=5)
    async with Silo(grains=[Desk], options=options) as silo:
        desk = silo.grain(Desk, "a")
        staying = asyncio.create_task(desk.stay())
        await spin()
        for number in range(5):
            await desk.note(number)
        with pytest.raises(Overloaded, match="waiting_calls_max"):
            await desk.note(5)
        assert len(list(silo.assembly.turns.deadlines.iter_watched())) == 6
        GATE.set()
        await staying
        await until(lambda: len(NOTED) == 5)


async def test_an_interleaving_call_does_not_look_at_all_that_wait(silo: Silo) -> None:
    desk = silo.grain(Desk, "a")
    waiting = [asyncio.create_task(desk.stay()) for _ in range(3_000)]
    await spin()
    activation = silo.assembly.catalog.of("Desk")["a"]
    asked = 0
    may_start = activation.may_start

    def counted(request: object) -> bool:
        nonlocal asked
        asked += 1
        return may_start(request)  # type: ignore[arg-type]

    type(activation).may_start = lambda self, request: counted(request)  # type: ignore[method-assign]
    try:
        assert await desk.peek() == 1
    finally:
        del type(activation).may_start
    assert 0 < asked < 10
    GATE.set()
    await asyncio.gather(*waiting)


async def test_idle_collection_lets_the_loop_go(silo: Silo) -> None:
    for at in range(2_000):
        await silo.grain(Desk, f"{at}").plain()
    catalog, turns = silo.assembly.catalog, silo.assembly.turns
    await collect_kind(catalog, "Desk", turns)
    rounds, is_over = 0, False
    loop = asyncio.get_running_loop()

    def count() -> None:
        nonlocal rounds
        rounds += 1
        if not is_over:
            loop.call_soon(count)

    loop.call_soon(count)
    assert await collect_kind(catalog, "Desk", turns) == 2_000
    is_over = True
    assert rounds >= 5
    await until(lambda: catalog.count == 0)


async def test_a_burst_leaves_few_runner_tasks() -> None:
    async with LocalCluster(silos=1, grains=[Desk]) as cluster:
        silo = cluster.silos[0]
        calls = [asyncio.create_task(cluster.grain(Desk, f"{at}").stay()) for at in range(1_500)]
        await until(lambda: sum(not a.is_idle for a in silo.assembly.catalog.all()) == 1_500)
        GATE.set()
        await asyncio.gather(*calls)
        await spin()
        names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
        assert names.count("Callee._run") <= PARKED_MAX


async def test_many_that_wait_cost_the_sweep_nothing_until_they_are_due(silo: Silo) -> None:
    deadlines = silo.assembly.turns.deadlines
    desk = silo.grain(Desk, "a")
    waiting = [
        asyncio.create_task(with_options(desk, timeout=60 + at / 100).stay()) for at in range(3_000)
    ]
    await spin()
    looked = list(deadlines._due_in_slots(silo.assembly.loop.time()))
    assert looked == [] and len(list(deadlines.iter_watched())) == 3_000
    assert max(map(len, deadlines._slots.values())) < 10
    GATE.set()
    await asyncio.gather(*waiting)
    assert list(deadlines.iter_watched()) == []


@pytest.mark.parametrize("where", ["silo", "client"])
async def test_sys_exit_in_a_method_is_an_error_of_its_call_alone(where: str) -> None:
    async with LocalCluster(silos=1, grains=[Desk]) as cluster:
        runtime = cluster.silos[0] if where == "silo" else cluster.client
        with pytest.raises(GrainError, match="SystemExit"):
            await runtime.grain(Desk, "a").leave(3)
        assert await runtime.grain(Desk, "a").plain() == 1


async def test_an_activation_that_is_asked_twice_to_end_ends_once(silo: Silo) -> None:
    await silo.grain(Desk, "a").plain()
    activation = silo.assembly.catalog.of("Desk")["a"]
    for reason in (DeactivationReason.IDLE, DeactivationReason.REQUESTED):
        silo.assembly.catalog.deactivate(activation, reason)
    await until(lambda: silo.assembly.catalog.count == 0)


async def test_a_waiting_call_that_is_never_granted_ends_at_its_deadline(silo: Silo) -> None:
    desk = silo.grain(Desk, "a")
    staying = asyncio.create_task(desk.stay())
    await spin()
    with pytest.raises(CallTimeout, match=r"waited for Desk/a, which runs Desk\.stay"):
        await with_options(desk, timeout=0.05).plain()
    GATE.set()
    await staying


async def test_a_cancellation_while_a_caller_yields_does_not_lose_what_its_call_did(
    silo: Silo,
) -> None:
    desk, budget = silo.grain(Desk, "a"), silo.assembly.turns.budget
    got: list[int] = []

    async def program() -> None:
        budget.left, budget._is_waiting = 1, True
        budget._began_at = budget._looked_at = 0.0
        got.append(await desk.plain())
        await asyncio.sleep(0)
        got.append(-1)

    task = asyncio.create_task(program())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert got == [1]
