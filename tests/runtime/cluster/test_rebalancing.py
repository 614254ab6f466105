"""Rebalancing in clusters in virtual time. The names of Orleans' tests are in the conformance
page."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

import pytest
from tests.runtime.worker_world import World, in_cluster

from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    HASHED,
    ConfigError,
    Grain,
    LocalCluster,
    MemberRow,
    MillstreamError,
    PlacementCandidate,
    PlacementRequest,
    Rebalancing,
    RebalancingStatus,
    Silo,
    grain,
    state,
    stateless_worker,
)
from millstream.runtime.cluster.load import LoadReport
from millstream.runtime.extending import SystemTarget
from millstream.streams import PersistentStreams, StreamNamespace

OPTIONS = Rebalancing(first_after_s=1.0, every_s=2.0, start_above=0.02, stop_below=0.0)
ROUNDS_S = 30.0
"""Enough time for all rounds of a session."""
FIRST: list[str] = []
"""The silo that gets all new activations while the list is not empty."""


def choose_first(request: PlacementRequest) -> PlacementCandidate:
    known = [one for one in request.candidates if one.name in FIRST]
    return known[0] if known else request.candidates[0]


class Where(Grain):
    async def where(self) -> str:
        return self.context.silo


class Tally(Where):
    """Placed at random; a test moves all of them to one silo first."""

    count = state(int)

    def __init__(self) -> None:
        self.steps = 0

    async def add(self) -> int:
        self.steps += 1
        self.count.value += 1
        return self.steps

    async def figures(self) -> tuple[int, int]:
        return self.steps, self.count.value

    async def move(self, to: str) -> None:
        self.context.migrate_when_idle(to=to)

    async def work(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return self.context.silo

    async def stay(self, seconds: float) -> None:
        self.context.keep_alive(seconds)

    async def pages(self, count: int) -> AsyncGenerator[int, None]:
        for number in range(count):
            yield number

    def on_dehydrate(self) -> int:
        return self.steps

    def on_rehydrate(self, value: int) -> None:
        self.steps = value


@grain(immovable=True)
class Anchored(Tally): ...


@grain(requires={"zone": "b"})
class InB(Tally): ...


@grain(placement=HASHED)
class Hashed(Tally): ...


@grain(placement=choose_first)
class Chosen(Tally): ...


@grain(placement=stateless_worker(max_local=2))
class Worker(Where): ...


GRAINS = [Tally, Anchored, InB, Hashed, Chosen, Worker]


def in_silos(main: Any, silos: int = 3, **cluster: Any) -> None:
    in_cluster(main, silos=silos, **{"grains": GRAINS, "rebalancing": OPTIONS, **cluster})


@pytest.fixture(autouse=True)
def fresh() -> None:
    FIRST.clear()


async def fill(cls: type[Tally], keys: range, to: str, silo: Silo) -> None:
    """Start grains, and move all of them to one silo."""
    for key in keys:
        one = silo.grain(cls, f"{key}")
        await one.add()
        if await one.where() != to:
            await one.move(to)
    for key in keys:
        assert await silo.grain(cls, f"{key}").where() == to


def spread(world: World, cls: type[Grain] = Tally) -> list[int]:
    """Return the number of activations of a class by silo."""
    name = cls.__millstream_type__.name
    silos = [world.cluster.silo(name) for name in world.cluster.names]
    return [0 if silo is None else len(silo.assembly.catalog.of(name)) for silo in silos]


async def fill_first(world: World, count: int, cls: type[Tally] = Tally) -> None:
    """Put all activations into the first silo, while rebalancing is suspended."""
    await world.silo(0).rebalancer.suspend()
    await world.at(0, partial(fill, cls, range(count), world.silo(0).address))
    assert spread(world, cls)[0] == count
    await asyncio.sleep(2)  # the reports follow


async def resume(world: World) -> None:
    await world.silo(0).rebalancer.resume()


# --- the rebalancer ------------------------------------------------------------------------------


@pytest.mark.parametrize("silos", [2, 3, 4])
def test_activations_of_one_silo_are_evened_out(silos: int) -> None:
    """ActivationRebalancingTests.Static."""

    async def main(world: World) -> None:
        await fill_first(world, 60)
        await resume(world)
        await asyncio.sleep(ROUNDS_S)
        counts = spread(world)
        assert sum(counts) == 60 and max(counts) - min(counts) <= 1
        assert sum(world.silo(number).rebalancer.status().moved for number in range(silos)) == (
            60 - counts[0]
        )
        for number in range(silos):
            assert await world.at(number, figures_of_all) == Counter({(1, 1): 60})

    in_silos(main, silos)


async def figures_of_all(silo: Silo) -> Counter[tuple[int, int]]:
    return Counter([await silo.grain(Tally, f"{key}").figures() for key in range(60)])


def test_new_silos_and_new_grains_are_evened_out() -> None:
    """ActivationRebalancingTests.Dynamic."""

    async def main(world: World) -> None:
        await world.at(0, partial(start, range(60)))
        await asyncio.sleep(ROUNDS_S)
        world.cluster.add_silo()
        await world.cluster.until_active()
        await asyncio.sleep(ROUNDS_S)
        assert max(spread(world)) - min(spread(world)) <= 1
        await world.at(1, partial(start, range(60, 130)))
        await asyncio.sleep(ROUNDS_S)
        assert max(spread(world)) - min(spread(world)) <= 1
        await world.cluster.remove_silo("silo-1")
        await world.cluster.until_active()
        await world.at(0, partial(start, range(130)))
        await asyncio.sleep(ROUNDS_S)
        counts = spread(world)
        assert sum(counts) == 130 and max(counts) - min(counts) <= 1

    in_silos(main)


async def start(keys: range, silo: Silo) -> None:
    for key in keys:
        await silo.grain(Tally, f"{key}").add()


def test_any_silo_suspends_and_resumes_rebalancing() -> None:
    """ActivationRebalancingTests.Control."""

    async def main(world: World) -> None:
        await world.silo(2).rebalancer.suspend()
        assert all(world.silo(at).rebalancer.status().is_suspended for at in range(3))
        await world.at(0, partial(fill, Tally, range(40), world.silo(0).address))
        await asyncio.sleep(ROUNDS_S)
        assert spread(world) == [40, 0, 0]
        await world.silo(1).rebalancer.resume()
        assert not any(world.silo(at).rebalancer.status().is_suspended for at in range(3))
        await asyncio.sleep(ROUNDS_S)
        assert max(spread(world)) <= 14

    in_silos(main)


def test_a_suspension_ends_running_moves_and_reaches_silos_that_join() -> None:
    async def main(world: World) -> None:
        await fill_first(world, 300)
        await resume(world)
        while spread(world)[0] == 300:
            await asyncio.sleep(0.01)
        await world.silo(1).rebalancer.suspend()
        await asyncio.sleep(1)
        counts = spread(world)
        assert counts[0] >= 250
        world.cluster.add_silo()
        await world.cluster.until_active()
        await asyncio.sleep(ROUNDS_S)
        assert spread(world) == [*counts, 0]
        assert world.silo(3).rebalancer.status().is_suspended
        await world.cluster.remove_silo("silo-1")
        await world.cluster.until_active()
        counts = spread(world)
        await asyncio.sleep(ROUNDS_S)
        assert spread(world) == counts  # the others know the order of a silo that is gone

    in_silos(main)


@pytest.mark.parametrize("is_graceful", [True, False])
def test_another_coordinator_continues(is_graceful: bool) -> None:
    """ActivationRebalancingTests.StatePreservation."""

    async def main(world: World) -> None:
        names = {world.silo(at).address: f"silo-{at}" for at in range(3)}
        coordinator = names[world.silo(0).rebalancer.status().coordinator]
        heavy = next(name for name in names.values() if name != coordinator)
        index = int(heavy.removeprefix("silo-"))
        await world.silo(0).rebalancer.suspend()
        await world.at(index, partial(fill, Tally, range(90), world.silo(index).address))
        await resume(world)
        while spread(world)[index] == 90:
            await asyncio.sleep(0.01)
        if is_graceful:
            await world.cluster.remove_silo(coordinator)
        else:
            world.sim.crash(coordinator)
            world.cluster.names = tuple(one for one in world.cluster.names if one != coordinator)
        await asyncio.sleep(ROUNDS_S)
        left = world.cluster.silos()
        assert {silo.rebalancer.status().coordinator for silo in left} == {
            min(silo.address for silo in left)
        }
        counts = spread(world)
        assert len(counts) == 2 and max(counts) - min(counts) <= 1

    in_silos(main)


def test_calls_go_on_during_moves_and_none_fails() -> None:
    async def main(world: World) -> None:
        await fill_first(world, 60)
        await resume(world)
        totals = await asyncio.gather(
            *(world.at(number, partial(add_for, ROUNDS_S, number)) for number in range(3))
        )
        assert max(spread(world)) - min(spread(world)) <= 2
        found = await world.at(0, figures_of_all)
        assert sum(steps for steps, _ in found.elements()) == 60 + sum(totals)
        assert all(steps == count for steps, count in found)

    in_silos(main)


async def add_for(seconds: float, number: int, silo: Silo) -> int:
    """Call the grains in turn. Returns the number of calls."""
    loop, done = asyncio.get_running_loop(), 0
    until_s = loop.time() + seconds
    while loop.time() < until_s:
        before = loop.time()
        await silo.grain(Tally, f"{(done * 7 + number) % 60}").add()
        assert loop.time() - before < 1.0
        done += 1
        await asyncio.sleep(0.02)
    return done


# --- what moves ----------------------------------------------------------------------------------


def test_immovable_classes_and_workers_neither_move_nor_count() -> None:
    async def main(world: World) -> None:
        await fill_first(world, 30, Anchored)
        await world.at(0, use_worker)
        await resume(world)
        await asyncio.sleep(ROUNDS_S)
        assert spread(world, Anchored) == [30, 0, 0]
        assert spread(world, Worker)[1:] == [0, 0]
        assert set(world.silo(0).rebalancer.status().activations.values()) == {0}

    in_silos(main)


def test_the_grains_of_stream_providers_neither_move_nor_count() -> None:
    lines = StreamNamespace("lines", int)

    async def publish(silo: Silo) -> None:
        for number in range(20):
            await silo.stream(lines, f"{number}").publish(number)

    async def main(world: World) -> None:
        await world.at(0, publish)
        await asyncio.sleep(ROUNDS_S)
        assert sum(silo.services.activation_count for silo in world.cluster.silos()) > 0
        assert set(world.silo(0).rebalancer.status().activations.values()) == {0}

    in_silos(main, streams={"default": lambda: PersistentStreams(MemoryQueues())})


async def use_worker(silo: Silo) -> None:
    await asyncio.gather(*(silo.grain(Worker, f"{key}").where() for key in range(20)))


def test_activations_move_only_to_silos_with_the_required_labels() -> None:
    async def main(world: World) -> None:
        await fill_first(world, 30, InB)
        await resume(world)
        await asyncio.sleep(ROUNDS_S)
        assert spread(world, InB) == [15, 0, 15]

    in_silos(main, labels=[{"zone": "b"}, {"zone": "a"}, {"zone": "b"}])


def test_activations_move_only_to_silos_that_host_the_class() -> None:
    async def main(world: World) -> None:
        await fill_first(world, 30)
        await resume(world)
        await asyncio.sleep(ROUNDS_S)
        assert spread(world) == [15, 0, 15]

    in_silos(main, lacking={"silo-1": [Tally]})


def test_grains_with_a_choice_of_their_own_stay_where_it_is() -> None:
    """By hash, or by a function of the program. A function that fails moves nothing."""

    async def main(world: World) -> None:
        FIRST.append("silo-0")
        await world.at(0, partial(start_class, Hashed, range(40)))
        await world.at(0, partial(start_class, Chosen, range(40)))
        hashed, chosen = spread(world, Hashed), spread(world, Chosen)
        assert chosen == [40, 0, 0]
        await asyncio.sleep(ROUNDS_S)
        assert (spread(world, Hashed), spread(world, Chosen)) == (hashed, chosen)
        FIRST[:] = ["silo-2"]
        await asyncio.sleep(4 * ROUNDS_S)
        assert spread(world, Chosen)[2] > 0 and spread(world, Chosen)[1] == 0

    in_silos(main)


async def start_class(cls: type[Tally], keys: range, silo: Silo) -> None:
    for key in keys:
        await silo.grain(cls, f"{key}").add()


async def keep_busy(silo: Silo) -> set[str]:
    return set(await asyncio.gather(*(silo.grain(Tally, f"{key}").work(20) for key in range(20))))


async def keep_alive(silo: Silo) -> None:
    for key in range(20):
        await silo.grain(Tally, f"{key}").stay(40)
    await asyncio.sleep(20)


async def keep_open(stack: AsyncExitStack, silo: Silo) -> None:
    opened = [silo.grain(Tally, f"{key}").pages(300) for key in range(20)]
    for key in range(20):
        await stack.enter_async_context(aclosing(opened[key]))
        assert await anext(opened[key]) == 0
    await asyncio.sleep(15)
    for pages in opened:
        assert [number async for number in pages][-1] == 299


@pytest.mark.parametrize("use", [keep_busy, keep_alive])
def test_busy_activations_and_those_kept_alive_do_not_move(use: Callable[[Silo], Any]) -> None:
    async def main(world: World) -> None:
        await fill_first(world, 30)
        used = asyncio.ensure_future(world.at(0, use))
        await asyncio.sleep(0.5)
        await resume(world)
        await asyncio.sleep(15)
        assert spread(world)[0] == 20  # the ten others have moved
        await used
        assert all([await world.at(0, partial(is_here, key)) for key in range(20)])

    in_silos(main)


async def is_here(key: int, silo: Silo) -> bool:
    return await silo.grain(Tally, f"{key}").where() == silo.address


def test_a_streamed_result_is_not_aborted_by_rebalancing() -> None:
    async def main(world: World) -> None:
        await fill_first(world, 30)
        async with AsyncExitStack() as stack:
            reading = asyncio.ensure_future(world.at(1, partial(keep_open, stack)))
            await asyncio.sleep(1)
            await resume(world)
            await reading
            assert spread(world)[0] == 20  # the ten others have moved

    in_silos(main)


# --- orders --------------------------------------------------------------------------------------


class Orders(SystemTarget):
    """The form of `$rebalancing`, for a coordinator of the test."""

    target_name = "$rebalancing"

    async def give(self, to: str, count: int) -> int:
        raise NotImplementedError

    async def reserve(self, source: str) -> int:
        raise NotImplementedError


async def order(source: str, to: str, count: int, silo: Silo) -> int:
    return await silo.assembly.targets.call(source, "$rebalancing", Orders.give, to, count)


async def reserve(at: str, source: str, silo: Silo) -> int:
    return await silo.assembly.targets.call(at, "$rebalancing", Orders.reserve, source)


STILL = Rebalancing(first_after_s=86_400.0)
REFUSED = -1


def test_two_coordinators_do_no_harm() -> None:
    """A silo gives at most half of the difference, to one silo at a time."""

    async def main(world: World) -> None:
        await world.at(0, partial(fill, Tally, range(90), world.silo(0).address))
        a, b, c = (world.silo(number).address for number in range(3))
        orders = [(a, b, 1_000), (a, b, 1_000), (a, c, 1_000), (c, b, 1_000)]
        others = [1, 2, 1, 0]
        gave = await asyncio.gather(
            *(world.at(by, partial(order, *one)) for by, one in zip(others, orders, strict=True))
        )
        assert sorted(gave) == [*[REFUSED] * 3, 45]
        assert sorted(spread(world)) == [0, 45, 45]
        assert await world.at(0, partial(order, b, a, 1_000)) == REFUSED

    in_silos(main, rebalancing=STILL)


def test_a_silo_expects_activations_of_one_silo_at_a_time() -> None:
    async def main(world: World) -> None:
        a, b, c = (world.silo(number).address for number in range(3))
        assert await world.at(0, partial(reserve, c, a)) == 0
        assert await world.at(0, partial(reserve, c, a)) == 0
        assert await world.at(1, partial(reserve, c, b)) == REFUSED
        await asyncio.sleep(31)  # the silo that gives has crashed
        assert await world.at(1, partial(reserve, c, b)) == 0

    in_silos(main, rebalancing=STILL)


def test_a_silo_that_expects_activations_gives_none() -> None:
    async def main(world: World) -> None:
        await world.at(1, partial(fill, Tally, range(20), world.silo(1).address))
        a, b, c = (world.silo(number).address for number in range(3))
        assert await world.at(2, partial(reserve, b, c)) == 20
        assert await world.at(2, partial(order, b, a, 10)) == REFUSED
        await asyncio.sleep(31)
        assert await world.at(2, partial(order, b, a, 10)) == 10

    in_silos(main, rebalancing=STILL)


def test_only_the_coordinator_has_a_session() -> None:
    """A silo that decided for a while begins anew when it decides again."""

    async def main(world: World) -> None:
        await asyncio.sleep(5)
        assert [has_session(world, number) for number in range(3)] == [True, False, False]
        world.sim.crash("silo-0")
        await asyncio.sleep(15)
        assert has_session(world, 1)
        world.cluster.boot("silo-0")
        await world.cluster.until_active()
        await asyncio.sleep(5)
        assert [has_session(world, number) for number in range(3)] == [True, False, False]

    in_silos(main)


def has_session(world: World, number: int) -> bool:
    rebalancing = world.silo(number).assembly.rebalancing
    assert rebalancing is not None
    return rebalancing.session is not None


def test_a_silo_gives_no_more_than_its_own_limit() -> None:
    async def main(world: World) -> None:
        await world.at(0, partial(fill, Tally, range(60), world.silo(0).address))
        a, b = world.silo(0).address, world.silo(1).address
        assert await world.at(2, partial(order, a, b, 10**9)) == 7
        assert spread(world) == [53, 7, 0]
        await asyncio.sleep(0.1)
        assert await world.at(2, partial(order, a, b, 3)) == 3

    in_silos(main, rebalancing=Rebalancing(first_after_s=86_400.0, moves_max=7))


def test_a_suspended_silo_refuses_orders() -> None:
    async def main(world: World) -> None:
        await world.at(0, partial(fill, Tally, range(20), world.silo(0).address))
        await world.silo(2).rebalancer.suspend()
        a, b = world.silo(0).address, world.silo(1).address
        assert await world.at(2, partial(order, a, b, 10)) == REFUSED
        await world.silo(2).rebalancer.resume()
        assert await world.at(2, partial(order, a, b, 10)) == 10

    in_silos(main, rebalancing=STILL)


def test_an_order_to_give_to_a_silo_that_is_gone_fails_and_moves_nothing() -> None:
    async def main(world: World) -> None:
        await world.at(0, partial(fill, Tally, range(20), world.silo(0).address))
        a, b = world.silo(0).address, world.silo(1).address
        world.sim.crash("silo-1")
        with pytest.raises(MillstreamError):
            await world.at(2, partial(order, a, b, 10))
        assert spread(world)[0] == 20
        world.cluster.boot("silo-1")
        await world.cluster.until_active()
        await asyncio.sleep(31)
        assert await world.at(2, partial(order, a, world.silo(1).address, 5)) == 5

    in_silos(main, rebalancing=STILL)


# --- silos without rebalancing -------------------------------------------------------------------


def test_silos_that_do_not_rebalance_give_and_get_nothing() -> None:
    async def main(world: World) -> None:
        off = world.silo(1)
        off.assembly.loads.rebalancing = None
        await world.at(2, partial(fill, Tally, range(30), world.silo(2).address))
        await asyncio.sleep(ROUNDS_S)
        assert spread(world) == [15, 0, 15]
        status = world.silo(0).rebalancer.status()
        assert off.address not in status.activations

    in_silos(main)


async def test_a_cluster_without_rebalancing_moves_nothing_and_says_how_to_begin() -> None:
    async with LocalCluster(silos=2, grains=[Tally]) as cluster:
        with pytest.raises(ConfigError, match=r"pass Silo\(rebalancing=Rebalancing\(\)\)"):
            _ = cluster.silos[0].rebalancer
    options: Any = True
    with pytest.raises(ConfigError, match=r"Silo\(rebalancing=\.\.\.\) is True"):
        Silo(grains=[], rebalancing=options)


async def test_a_local_cluster_tells_its_status() -> None:
    async with LocalCluster(silos=2, grains=[Tally], rebalancing=STILL) as cluster:
        one = cluster.silos[0].rebalancer
        await one.suspend()
        await one.suspend()
        status = one.status()
        assert isinstance(status, RebalancingStatus)
        assert status.is_suspended and status.moved == 0 and status.unevenness == 0
        assert status.coordinator in {silo.address for silo in cluster.silos}


def test_absurd_control_numbers_are_ignored() -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(3)
        loads = world.silo(0).assembly.loads
        absurd = LoadReport(1, 5, movable=-7, control=2**60 + 1)

        async def hear(silo: Silo) -> RebalancingStatus:
            loads.hear(world.silo(1).address, absurd)
            return silo.rebalancer.status()

        status = await world.at(0, hear)
        assert not status.is_suspended
        assert status.activations[world.silo(1).address] == 0

    in_silos(main, rebalancing=STILL)


def test_rows_of_members_do_not_change_by_rebalancing() -> None:
    """Silos of older versions read the rows."""
    assert "rebalancing" not in MemberRow.__struct_fields__


def test_immovable_is_true_or_false() -> None:
    wrong: Any = "yes"
    with pytest.raises(ConfigError, match=r"@grain\(immovable=\.\.\.\) is 'yes'"):
        grain(immovable=wrong)
