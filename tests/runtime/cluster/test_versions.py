"""Two versions of a grain type in one cluster, in virtual time.

The cases are those of UpgradeTests and HeterogeneousTests of Orleans that apply.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import pytest

from millstream.runtime import (
    HASHED,
    CallCycle,
    Client,
    Conflict,
    Contract,
    DeactivationReason,
    Grain,
    PlacementCandidate,
    PlacementRequest,
    RuntimeOptions,
    Silo,
    StateTooNew,
    VersionNotHosted,
    always_interleave,
    grain,
    one_way,
    state,
    stateless_worker,
    timer,
    upgrade,
)
from millstream.runtime.testing import SimCluster, Simulation, check_one_activation, run

LOG: list[str] = []
T = TypeVar("T")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    LOG.clear()
    yield


class PortBase(Grain):
    """The methods of both versions."""

    number = 0

    def __init__(self) -> None:
        self.landed: list[str] = []
        self.ticks = 0

    async def on_activate(self) -> None:
        LOG.append(f"{self.key}: version {self.number} starts")

    async def on_deactivate(self, reason: DeactivationReason) -> None:
        LOG.append(f"{self.key}: version {self.number} ends: {reason.value}")

    def on_dehydrate(self) -> list[str]:
        return self.landed

    def on_rehydrate(self, value: list[str]) -> None:
        self.landed = value

    async def land(self, flight: str, seconds: float = 0.0) -> tuple[int, str]:
        await asyncio.sleep(seconds)
        self.landed.append(flight)
        return self.number, self.context.silo

    async def flights(self) -> list[str]:
        return self.landed

    @one_way
    async def note(self, flight: str) -> None:
        self.landed.append(f"{self.number}:{flight}")

    @always_interleave
    async def peek(self) -> tuple[int, str]:
        return self.number, self.context.silo

    async def rows(self) -> AsyncGenerator[int, None]:
        for row in range(3):
            yield row

    async def relay(self, other: str) -> int:
        number, _ = await self.grain(CallsOf2, other).call_back(self.key)
        return number

    async def end(self) -> None:
        self.context.deactivate_when_idle()

    async def leave(self) -> None:
        self.context.migrate_when_idle()

    @timer(every=1.0)
    async def tick(self) -> None:
        self.ticks += 1


@grain(name="Port")
class Port1(PortBase):
    number = 1


@grain(name="Port", version=2)
class Port2(PortBase):
    number = 2

    async def call_back(self, key: str) -> tuple[int, str]:
        return await self.grain(CallsOf2, key).land("back")

    async def close(self) -> int:
        return self.number


@grain(name="Port")
class CallsOf1(Contract):
    async def land(self, flight: str, seconds: float = 0.0) -> tuple[int, str]:
        raise NotImplementedError

    async def flights(self) -> list[str]:
        raise NotImplementedError

    @one_way
    async def note(self, flight: str) -> None:
        raise NotImplementedError

    @always_interleave
    async def peek(self) -> tuple[int, str]:
        raise NotImplementedError

    async def end(self) -> None:
        raise NotImplementedError

    async def leave(self) -> None:
        raise NotImplementedError

    async def relay(self, other: str) -> int:
        raise NotImplementedError


@grain(name="Port", version=2)
class CallsOf2(CallsOf1):
    async def close(self) -> int:
        raise NotImplementedError

    async def call_back(self, key: str) -> tuple[int, str]:
        raise NotImplementedError

    def rows(self) -> AsyncGenerator[int, None]:
        raise NotImplementedError


@grain(name="Port", version=3)
class CallsOf3(CallsOf2):
    pass


@grain(name="Worker", placement=stateless_worker(max_local=2))
class Worker1(Grain):
    async def number(self) -> int:
        return 1


@grain(name="Worker", version=2, placement=stateless_worker(max_local=2))
class Worker2(Grain):
    async def number(self) -> int:
        return 2


@grain(name="Worker")
class WorkerOf1(Contract):
    async def number(self) -> int:
        raise NotImplementedError


@grain(name="Worker", version=2)
class WorkerOf2(WorkerOf1):
    pass


def choose_last(request: PlacementRequest) -> PlacementCandidate:
    LOG.append(f"{len(request.candidates)} candidates")
    return request.candidates[-1]


@grain(name="Chosen", placement=choose_last)
class Chosen1(Grain):
    async def number(self) -> int:
        return 1


@grain(name="Chosen", version=2, placement=choose_last)
class Chosen2(Grain):
    async def number(self) -> int:
        return 2


@grain(name="Chosen", version=2)
class ChosenOf2(Contract):
    async def number(self) -> int:
        raise NotImplementedError


@grain(name="Fixed", placement=HASHED)
class Fixed1(Grain):
    async def number(self) -> int:
        return 1


@grain(name="Fixed", version=2, placement=HASHED)
class Fixed2(Grain):
    async def number(self) -> int:
        return 2


@grain(name="Fixed", version=2)
class FixedOf2(Contract):
    async def number(self) -> int:
        raise NotImplementedError


@dataclass
class Log1:
    lines: list[str] = field(default_factory=list)


@dataclass
class Log2:
    entries: dict[str, int] = field(default_factory=dict)


@grain(name="Book")
class Book1(Grain):
    log = state(Log1)

    def __init__(self) -> None:
        LOG.append("version 1 runs")
        self.log.value.lines.append("lost")

    async def add(self, line: str) -> int:
        self.log.value.lines.append(line)
        await self.log.write()
        return 1

    async def add_unwritten(self, line: str) -> int:
        self.log.value.lines.append(line)
        return 1

    async def lines(self) -> list[str]:
        return self.log.value.lines

    async def end(self) -> None:
        self.context.deactivate_when_idle()

    async def clash(self, before_s: float, after_s: float) -> None:
        await asyncio.sleep(before_s)
        self.log.value.lines.append("stale")
        with pytest.raises(Conflict):
            await self.log.write()
        await asyncio.sleep(after_s)

    async def ask(self, key: str) -> list[str]:
        return await self.grain(Book1, key).lines()


@grain(name="Book", version=2)
class Book2(Grain):
    log = state(Log2)
    colour = state(str)

    @staticmethod
    @upgrade(log, from_version=1)
    def _log_of_1(old: Log1) -> Log2:
        return Log2({line: len(line) for line in old.lines})

    async def add(self, line: str) -> int:
        self.log.value.entries[line] = len(line)
        await self.log.write()
        return 2

    async def add_unwritten(self, line: str) -> int:
        self.log.value.entries[line] = len(line)
        return 2

    async def lines(self) -> list[str]:
        return list(self.log.value.entries)

    async def end(self) -> None:
        self.context.deactivate_when_idle()

    async def clash(self, before_s: float, after_s: float) -> None:
        raise NotImplementedError

    async def ask(self, key: str) -> list[str]:
        return await self.grain(Book1, key).lines()

    async def paint(self, colour: str) -> None:
        self.colour.value = colour
        await self.colour.write()

    async def painted(self) -> str:
        return self.colour.value


@grain(name="Book")
class BookOf1(Contract):
    async def add(self, line: str) -> int:
        raise NotImplementedError

    async def add_unwritten(self, line: str) -> int:
        raise NotImplementedError

    async def lines(self) -> list[str]:
        raise NotImplementedError

    async def end(self) -> None:
        raise NotImplementedError

    async def clash(self, before_s: float, after_s: float) -> None:
        raise NotImplementedError

    async def ask(self, key: str) -> list[str]:
        raise NotImplementedError


@grain(name="Book", version=2)
class BookOf2(BookOf1):
    async def paint(self, colour: str) -> None:
        raise NotImplementedError

    async def painted(self) -> str:
        raise NotImplementedError


OF_1 = (Port1, Worker1, Chosen1, Fixed1, Book1)
OF_2 = (Port2, Worker2, Chosen2, Fixed2, Book2)


class World:
    """A cluster with silos of version 1, version 2, and of neither."""

    def __init__(self, sim: Simulation, cluster: SimCluster) -> None:
        self.sim, self.cluster = sim, cluster

    def silo(self, name: str) -> Silo:
        silo = self.cluster.silo(name)
        assert silo is not None
        return silo

    def address(self, name: str) -> str:
        return self.silo(name).address

    async def at(self, name: str, work: Callable[[Silo], Awaitable[T]]) -> T:
        """Run code on the host of a silo."""

        async def program() -> T:
            return await work(self.silo(name))

        return await self.sim.call(self.sim.host(name), program())

    async def peek(self, name: str, key: str, contract: type[CallsOf1] | None = None) -> int:
        """Return the version of the activation that runs a call from a silo."""
        found = await self.at(name, lambda silo: silo.grain(contract or CallsOf1, key).peek())
        return found[0]

    async def find_old(self) -> str:
        """Activate grains until one is on version 1, and return its key."""
        keys = [f"G{number}" for number in range(30)]
        key = next(iter([key for key in keys if await self.peek("silo-0", key) == 1]))
        await self.at("silo-0", lambda silo: silo.grain(CallsOf1, key).land("first"))
        LOG.clear()
        return key

    async def flights(self, name: str, key: str) -> list[str]:
        """Return the flights of a grain, by a call of version 1."""
        return await self.at(name, lambda silo: silo.grain(CallsOf1, key).flights())

    async def as_client(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run code of a client."""
        host = self.sim.host("client")

        async def program() -> T:
            async with self.cluster.client(host) as client:
                return await work(client)

        return await self.sim.call(host, program())


def play(
    main: Callable[[World], Awaitable[None]],
    *silos: int,
    seed: int = 1,
    options: RuntimeOptions | None = None,
) -> list[str]:
    """Run a test in a cluster; `silos` has the version of each silo.

    0 is a silo without grains. A negative version is that of a silo that the test adds.

    Returns what the grains have noted.
    """
    lacking = {
        f"silo-{at}": [
            *(OF_1 if abs(version) != 1 else ()),
            *(OF_2 if abs(version) != 2 else ()),
        ]
        for at, version in enumerate(silos)
    }

    async def driver(sim: Simulation) -> None:
        started = sum(version >= 0 for version in silos)
        async with SimCluster(
            sim, silos=started, grains=[*OF_1, *OF_2], lacking=lacking, options=options
        ) as cluster:
            await main(World(sim, cluster))
            assert not check_one_activation(sim.history)

    run(driver, seed=seed)
    return LOG


# -- calls of a later version


@pytest.mark.parametrize("caller", ["silo-0", "silo-1", "silo-2"])
def test_a_call_of_version_2_moves_an_activation_of_version_1_up(caller: str) -> None:
    """UpgradeProxyCallNoPendingRequest."""

    async def main(world: World) -> None:
        key = await world.find_old()
        number, at = await world.at(caller, lambda silo: silo.grain(CallsOf2, key).land("two"))
        assert (number, at) == (2, world.address("silo-1"))
        assert LOG == [f"{key}: version 1 ends: outgrown", f"{key}: version 2 starts"]
        assert await world.flights("silo-2", key) == ["first", "two"]

    play(main, 1, 2, 0)


def test_a_call_of_version_2_waits_for_the_running_turns_and_the_others_follow() -> None:
    """UpgradeProxyCallWithPendingRequest."""

    async def main(world: World) -> None:
        key = await world.find_old()

        async def calls(silo: Silo) -> list[int]:
            one, two = silo.grain(CallsOf1, key), silo.grain(CallsOf2, key)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one.land("running", 2.0))]
                await asyncio.sleep(0.5)
                tasks.append(group.create_task(one.land("waiting")))
                await asyncio.sleep(0.1)
                tasks.append(group.create_task(two.land("newer")))
                await asyncio.sleep(0.1)
                tasks.append(group.create_task(one.peek()))
                tasks.append(group.create_task(one.land("later")))
            return [task.result()[0] for task in tasks]

        assert await world.at("silo-1", calls) == [1, 2, 2, 2, 2]
        found = await world.flights("silo-1", key)
        assert found == ["first", "running", "waiting", "newer", "later"]

    play(main, 1, 2)


def test_callers_of_both_versions_settle_on_version_2() -> None:
    async def main(world: World) -> None:
        async def calls(silo: Silo) -> Counter[int]:
            found: Counter[int] = Counter()
            for number in range(20):
                for contract in (CallsOf1, CallsOf2):
                    found[(await silo.grain(contract, f"P{number % 4}").peek())[0]] += 1
            return found

        await world.at("silo-0", calls)
        LOG.clear()
        for name in world.cluster.names:
            assert await world.at(name, calls) == {2: 40}
        assert not [line for line in LOG if "version" in line]

    play(main, 1, 2, 1, 2, 0)


def test_a_call_of_version_1_runs_on_both_versions_and_moves_nothing() -> None:
    """CreateActivationWithBothVersion, DoNotUpgradeProxyCall."""

    async def main(world: World) -> None:
        async def calls(silo: Silo) -> Counter[int]:
            found = [await silo.grain(CallsOf1, f"P{number}").peek() for number in range(40)]
            return Counter(number for number, _ in found)

        found = await world.at("silo-2", calls)
        assert min(found[1], found[2]) > 5
        assert await world.at("silo-1", calls) == found
        assert not [line for line in LOG if "ends" in line]

    play(main, 1, 2, 0)


def test_a_new_activation_for_version_2_is_only_made_by_version_2() -> None:
    async def main(world: World) -> None:
        async def calls(silo: Silo) -> set[int]:
            return {(await silo.grain(CallsOf2, f"P{number}").peek())[0] for number in range(20)}

        for name in world.cluster.names:
            assert await world.at(name, calls) == {2}
        assert {line for line in LOG if "version 1" in line} == set()

    play(main, 1, 1, 2, 0)


def test_a_silo_that_hosts_version_2_calls_for_version_2_by_its_class() -> None:
    async def main(world: World) -> None:
        async def own(silo: Silo) -> set[int]:
            return {(await silo.grain(Port2, f"P{number}").peek())[0] for number in range(20)}

        async def contract(silo: Silo) -> set[int]:
            return {(await silo.grain(CallsOf1, f"Q{number}").peek())[0] for number in range(40)}

        assert await world.at("silo-1", own) == {2}
        assert await world.at("silo-1", contract) == {1, 2}

    play(main, 1, 2)


def test_clients_reach_the_version_that_they_want() -> None:
    async def main(world: World) -> None:
        async def calls(client: Client) -> None:
            for number in range(12):
                key = f"P{number}"
                await client.grain(CallsOf1, key).land("one")
                assert (await client.grain(CallsOf2, key).land("two"))[0] == 2
                assert await client.grain(CallsOf2, key).close() == 2
                assert [row async for row in client.grain(CallsOf2, key).rows()] == [0, 1, 2]
                assert await client.grain(CallsOf1, key).flights() == ["one", "two"]

        await world.as_client(calls)

    play(main, 1, 2, 0)


def test_one_way_calls_reach_the_version_that_they_want() -> None:
    async def main(world: World) -> None:
        async def calls(runtime: Silo | Client) -> None:
            for number in range(12):
                await runtime.grain(CallsOf1, f"P{number}").peek()
                await runtime.grain(CallsOf2, f"P{number}").note("x")
            await asyncio.sleep(3.0)
            for number in range(12):
                found = await runtime.grain(CallsOf1, f"P{number}").flights()
                assert found[-1] == "2:x", found

        for name in world.cluster.names:
            await world.at(name, calls)
        await world.as_client(calls)

    play(main, 1, 2, 0)


def test_members_show_the_versions_of_their_rows() -> None:
    async def main(world: World) -> None:
        await world.peek("silo-0", "BOS")
        found = {one.name: dict(one.versions) for one in world.silo("silo-0").members()}
        assert (found["silo-0"], found["silo-1"]["Port"]) == ({}, 2)

    play(main, 1, 2)


# -- no silo with the version


@pytest.mark.parametrize("caller", ["silo-0", "silo-1", "silo-2", "client"])
def test_an_error_names_the_wanted_and_the_hosted_versions(caller: str) -> None:
    async def main(world: World) -> None:
        async def calls(runtime: Silo | Client) -> None:
            await runtime.grain(CallsOf1, "BOS").land("one")
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(VersionNotHosted, match=r"Port/BOS.*version 3 .*host 1, 2") as found:
                await runtime.grain(CallsOf3, "BOS").land("three")
            assert (found.value.wanted, found.value.hosted) == (3, (1, 2))
            assert asyncio.get_running_loop().time() < began_s + 1.0
            assert await runtime.grain(CallsOf1, "BOS").flights() == ["one"]

        if caller == "client":
            await world.as_client(calls)
        else:
            await world.at(caller, calls)
        assert not [line for line in LOG if "ends" in line]

    play(main, 1, 2, 0)


async def until_members(count: int, silo: Silo) -> None:
    """Wait until the silo knows this many silos that are starting or active."""
    while len(silo.members()) < count:
        await asyncio.sleep(0.001)


def test_a_call_waits_for_a_silo_with_its_version_that_is_starting() -> None:
    async def main(world: World) -> None:
        await world.at("silo-0", lambda silo: silo.grain(CallsOf1, "BOS").land("one"))
        world.cluster.add_silo()

        await world.at("silo-0", partial(until_members, 2))
        found = await world.at("silo-0", lambda silo: silo.grain(CallsOf2, "BOS").land("two"))
        assert found == (2, world.address("silo-1"))

    play(main, 1, -2)


# -- stored states


async def end_all(silo: Silo) -> None:
    """Deactivate the books of the keys `B0` to `B9`."""
    for number in range(10):
        await silo.grain(BookOf1, f"B{number}").end()
    await asyncio.sleep(1.0)


def test_a_state_of_version_1_is_read_by_version_2_and_then_only_by_version_2() -> None:
    async def main(world: World) -> None:
        async def begin(silo: Silo) -> None:
            for number in range(10):
                await silo.grain(BookOf1, f"B{number}").add("one")
            await end_all(silo)
            for number in range(10):
                assert await silo.grain(BookOf2, f"B{number}").lines() == ["one"]
            await end_all(silo)
            for number in range(10):  # version 2 has written nothing, so version 1 reads it
                assert await silo.grain(BookOf1, f"B{number}").lines() == ["one"]
            await end_all(silo)
            for number in range(10):
                assert await silo.grain(BookOf2, f"B{number}").add("two") == 2
            await end_all(silo)
            LOG.clear()
            for number in range(10):
                assert await silo.grain(BookOf1, f"B{number}").lines() == ["one", "two"]
                assert await silo.grain(BookOf1, f"B{number}").add("three") == 2

        for name in ("silo-0", "silo-2", "silo-1"):
            await world.at(name, begin) if name == "silo-0" else None
            found = await world.at(name, lambda silo: silo.grain(BookOf1, "B3").lines())
            assert found == ["one", "two", "three"]
        assert LOG == [], "version 1 runs no code for a state of version 2"

    play(main, 1, 2, 0)


def test_clients_and_one_way_callers_reach_a_state_of_version_2() -> None:
    async def main(world: World) -> None:
        async def calls(client: Client) -> None:
            for number in range(10):
                await client.grain(BookOf2, f"B{number}").add("two")
                await client.grain(BookOf1, f"B{number}").end()
            await asyncio.sleep(1.0)
            for number in range(10):
                assert await client.grain(BookOf1, f"B{number}").lines() == ["two"]

        await world.as_client(calls)

    play(main, 1, 2, 1)


def test_after_a_whole_roll_back_callers_get_an_error_and_nothing_is_lost() -> None:
    async def main(world: World) -> None:
        cluster = world.cluster
        assert await world.at("silo-0", lambda silo: silo.grain(BookOf2, "B").add("two")) == 2
        row = cluster.stores["default"].get("Book/B/log")
        await cluster.remove_silo("silo-1")
        LOG.clear()

        async def calls(runtime: Silo | Client) -> None:
            for _ in range(2):
                with pytest.raises(StateTooNew, match="version 2 .* version 1: start") as found:
                    await runtime.grain(BookOf1, "B").add("lost")
                assert (found.value.stored, found.value.hosted) == (2, 1)
            assert await runtime.grain(BookOf1, "other").add("one") == 1

        await world.at("silo-0", calls)
        await world.as_client(calls)
        assert row is not None and cluster.stores["default"].get("Book/B/log") == row
        cluster.add_silo()
        await cluster.until_active()
        assert await world.at("silo-0", lambda silo: silo.grain(BookOf1, "B").lines()) == ["two"]

    play(main, 1, 2, -2)


@pytest.mark.parametrize("caller", ["silo-0", "silo-2", "client"])
def test_a_state_that_is_too_new_waits_for_a_silo_of_its_version_that_is_starting(
    caller: str,
) -> None:
    async def main(world: World) -> None:
        cluster = world.cluster
        assert await world.at("silo-0", lambda silo: silo.grain(BookOf2, "B").add("two")) == 2
        await cluster.remove_silo("silo-1")
        LOG.clear()
        cluster.add_silo()
        await world.at("silo-0", partial(until_members, 3))

        async def call(runtime: Silo | Client) -> list[str]:
            return await runtime.grain(BookOf1, "B").lines()

        if caller == "client":
            await world.as_client(call)
        else:
            assert await world.at(caller, call) == ["two"]
        assert LOG == [], "version 1 runs no code for a state of version 2"

    play(main, 1, 2, 0, -2)


def test_a_state_that_is_too_new_waits_for_no_silo_if_another_one_is_active() -> None:
    async def main(world: World) -> None:
        async def store(silo: Silo) -> None:
            for number in range(10):
                await silo.grain(BookOf2, f"B{number}").add("two")

        async def call_all(silo: Silo) -> list[list[str]]:
            grains = [silo.grain(BookOf1, f"B{number}") for number in range(10)]
            return await asyncio.gather(*(book.lines() for book in grains))

        await world.at("silo-1", store)
        await world.at("silo-1", end_all)
        world.cluster.add_silo()
        await world.at("silo-0", partial(until_members, 3))
        began_s = asyncio.get_running_loop().time()
        assert await world.at("silo-0", call_all) == [["two"]] * 10
        assert asyncio.get_running_loop().time() - began_s < 0.04

    play(main, 1, 2, -2)


def test_a_state_that_is_too_new_does_not_wait_for_a_silo_that_cannot_read_it() -> None:
    async def main(world: World) -> None:
        assert await world.at("silo-0", lambda silo: silo.grain(BookOf2, "B").add("two")) == 2
        await world.cluster.remove_silo("silo-1")
        world.cluster.add_silo()
        await world.at("silo-0", partial(until_members, 2))
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(StateTooNew):
            await world.at("silo-0", lambda silo: silo.grain(BookOf1, "B").lines())
        assert asyncio.get_running_loop().time() - began_s < 0.01

    play(main, 1, 2, -1)


def test_an_error_of_another_grain_about_its_state_moves_no_caller() -> None:
    async def main(world: World) -> None:
        assert await world.at("silo-0", lambda silo: silo.grain(BookOf2, "B").add("two")) == 2
        await world.cluster.remove_silo("silo-1")
        with pytest.raises(StateTooNew):
            await world.at("silo-0", lambda silo: silo.grain(BookOf1, "asker").ask("B"))
        assert await world.at("silo-0", lambda silo: silo.grain(BookOf1, "asker").add("x")) == 1

    play(main, 1, 2)


def test_a_state_moves_up_with_its_unwritten_changes_and_new_states_are_read() -> None:
    async def main(world: World) -> None:
        async def paint(silo: Silo) -> None:
            for number in range(10):
                await silo.grain(BookOf2, f"B{number}").paint("red")
            await end_all(silo)

        async def calls(silo: Silo) -> int:
            olds = 0
            for number in range(10):
                old, new = silo.grain(BookOf1, f"B{number}"), silo.grain(BookOf2, f"B{number}")
                olds += await old.add("one") == 1
                await old.add_unwritten("in memory")
                assert await new.lines() == ["one", "in memory"]
                assert await new.painted() == "red"
                assert await new.add("two") == 2
                assert await old.lines() == ["one", "in memory", "two"]
            return olds

        await world.at("silo-0", paint)
        assert await world.at("silo-1", calls) > 2  # of ten placements at random

    play(main, 1, 2)


# -- other kinds of activations


def test_stateless_workers_run_only_calls_of_their_version() -> None:
    async def main(world: World) -> None:
        async def calls(contract: type[WorkerOf1], runtime: Silo | Client) -> set[int]:
            return {await runtime.grain(contract, "w").number() for _ in range(20)}

        for name, own in (("silo-0", {1}), ("silo-1", {2}), ("silo-2", {1, 2})):
            assert await world.at(name, lambda silo: calls(WorkerOf1, silo)) == own
            assert await world.at(name, lambda silo: calls(WorkerOf2, silo)) == {2}
        assert await world.as_client(lambda client: calls(WorkerOf2, client)) == {2}

    play(main, 1, 2, 0)


@pytest.mark.parametrize("caller", ["silo-0", "silo-1", "silo-2"])
def test_a_strategy_of_a_program_chooses_among_the_silos_of_the_version(caller: str) -> None:
    async def main(world: World) -> None:
        for number in range(4):
            found = await world.at(
                caller, partial(lambda key, silo: silo.grain(ChosenOf2, key).number(), f"C{number}")
            )
            assert found == 2
        assert set(LOG) == {"2 candidates"}

    play(main, 1, 2, 0, 2)


def test_hashed_placement_is_among_the_silos_of_the_version() -> None:
    async def main(world: World) -> None:
        async def calls(silo: Silo) -> set[int]:
            return {await silo.grain(FixedOf2, f"F{number}").number() for number in range(20)}

        for name in world.cluster.names:
            assert await world.at(name, calls) == {2}

    play(main, 1, 2, 0)


def test_a_stopping_silo_moves_grains_of_version_2_never_down() -> None:
    async def main(world: World) -> None:
        found = await world.at("silo-0", lambda silo: silo.grain(CallsOf2, "BOS").land("two"))
        assert found == (2, world.address("silo-1"))
        LOG.clear()
        await world.cluster.remove_silo("silo-1")
        assert LOG == ["BOS: version 2 ends: silo_stops"]
        flights = await world.at("silo-0", lambda silo: silo.grain(CallsOf1, "BOS").flights())
        assert flights == []  # a new activation: nothing came along

    play(main, 1, 2)


def test_a_stopping_silo_moves_grains_of_version_1_up() -> None:
    async def main(world: World) -> None:
        key = await world.find_old()
        await world.cluster.remove_silo("silo-0")
        assert await world.flights("silo-1", key) == ["first"]
        assert await world.peek("silo-1", key) == 2

    play(main, 1, 2)


def test_a_cycle_through_a_later_version_raises_an_error() -> None:
    async def main(world: World) -> None:
        key = await world.find_old()
        with pytest.raises(CallCycle):
            await world.at("silo-0", lambda silo: silo.grain(CallsOf1, key).relay("other"))

    play(main, 1, 2)


def test_timers_of_a_grain_that_moved_up_run_on() -> None:
    async def main(world: World) -> None:
        key = await world.find_old()
        await asyncio.sleep(3.0)
        assert await world.peek("silo-0", key, CallsOf2) == 2
        await asyncio.sleep(3.0)
        activation = world.silo("silo-1").assembly.catalog.find("Port", key)
        assert activation is not None and activation.grain.ticks >= 2

    play(main, 1, 2)


# -- faults on the way


@pytest.mark.parametrize("seed", range(1, 9))
def test_calls_survive_the_replacement_of_all_silos(seed: int) -> None:
    """A rolling upgrade under load: no call fails, no call of version 2 runs on version 1."""

    async def main(world: World) -> None:
        cluster, is_over = world.cluster, False
        counts: Counter[int] = Counter()

        async def load(contract: type[CallsOf1], lowest: int) -> None:
            host = world.sim.host(f"client of {lowest}")

            async def program() -> None:
                async with cluster.client(host) as client:
                    while not is_over:
                        for number in range(5):
                            found, _ = await client.grain(contract, f"P{number}").peek()
                            assert found >= lowest
                            counts[lowest] += 1
                        await asyncio.sleep(0.05)

            await world.sim.call(host, program())

        async with asyncio.TaskGroup() as group:
            group.create_task(load(CallsOf1, 1))
            await asyncio.sleep(1.0)
            for at, old in enumerate(list(cluster.names)):
                cluster.add_silo()
                await cluster.until_active()
                if at == 0:
                    group.create_task(load(CallsOf2, 2))
                await asyncio.sleep(1.0)
                await cluster.remove_silo(old)
            await asyncio.sleep(1.0)
            is_over = True
        assert counts[1] > 100 and counts[2] > 100
        for number in range(5):
            assert await world.peek(cluster.names[0], f"P{number}") == 2

    play(main, 1, 1, 1, -2, -2, -2, seed=seed)
