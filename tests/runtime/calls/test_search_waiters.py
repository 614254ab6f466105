"""Calls that wait for a grain's location and get one that is not usable any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conditions import until

from millstream.runtime import Grain, LocalCluster, NotHosted, RuntimeOptions, Silo, SiloUnavailable
from millstream.runtime.calls.search import Searches
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.wire.connection import Peer


class Desk(Grain):
    async def where(self) -> str:
        return self.context.silo


class Connection(Peer):
    """A connection that was never opened, but reports that it takes calls."""

    def __init__(self, silo: Silo, number: int) -> None:
        super().__init__(silo.assembly.engine.end, f"number {number}", lambda peer: None)
        self.number = number
        self.writer.is_ready = True


@pytest.fixture
async def silo() -> AsyncIterator[Silo]:
    async with Silo(grains=[Desk]) as started:
        yield started


class Waiters:
    """Searches that find a new connection each time, after more than a loop iteration."""

    def __init__(self, silo: Silo) -> None:
        self.found: list[Connection] = []
        self.got: list[tuple[str, int]] = []
        self._silo = silo
        self.searches = Searches(
            silo.assembly.turns, silo.assembly.engine.tasks, self._locate, lambda kind, key: None
        )
        self._kind = silo.assembly.references.kinds["Desk"]

    async def _locate(self, kind: GrainKind, key: str) -> Any:
        await asyncio.sleep(0)
        self.found.append(Connection(self._silo, len(self.found)))
        return self.found[-1]

    async def call(self, name: str, pause_s: float = 0.0, size_bytes: int = 0) -> Any:
        """Wait once, and record the caller and its destination."""
        peer: Any = await self.searches.wait(self._kind, "a", pause_s, size_bytes)
        self.got.append((name, peer.number))
        return peer


@pytest.mark.parametrize("fault", ["is_closed", "is_leaving"])
async def test_a_destination_that_is_of_no_use_is_not_given_to_those_who_come_later(
    silo: Silo, fault: str
) -> None:
    waiters = Waiters(silo)

    async def calls_until_it_works() -> int:
        for tries in range(1, 7):
            peer = await waiters.call("a")
            if peer.number > 0:
                return tries
            setattr(peer, fault, True)  # right after it was found
        return 0

    assert await asyncio.gather(*(calls_until_it_works() for _ in range(20))) == [2] * 20
    assert len(waiters.found) == 2
    await until(lambda: not waiters.searches.has_waiting("Desk", "a"))


async def test_a_destination_that_works_is_given_to_those_who_come_while_others_are_woken(
    silo: Silo,
) -> None:
    waiters = Waiters(silo)

    async def three_times(name: str) -> None:
        for _ in range(3):
            await waiters.call(name)

    await asyncio.gather(three_times("a"), three_times("b"))
    assert waiters.got == [("a", 0), ("b", 0)] * 3
    assert len(waiters.found) == 1


async def test_those_who_wait_keep_their_order_when_they_must_look_again(silo: Silo) -> None:
    waiters = Waiters(silo)

    async def caller(name: str) -> None:
        peer = await waiters.call(name)
        if peer.number == 0:
            peer.is_closed = True
            await waiters.call(name)

    first = [asyncio.create_task(caller(f"{number}")) for number in range(5)]
    await until(lambda: len(waiters.found) == 1)
    late = [asyncio.create_task(caller(f"late {number}")) for number in range(5)]
    await asyncio.gather(*first, *late)
    again = [name for name, number in waiters.got if number == 1]
    assert [name for name in again if "late" not in name] == [f"{n}" for n in range(5)]
    assert [name for name in again if "late" in name] == [f"late {n}" for n in range(5)]


async def test_who_comes_right_after_a_search_has_failed_has_the_grain_looked_for_again(
    silo: Silo,
) -> None:
    waiters = Waiters(silo)
    locate, fails = waiters.searches._locate, [True, True]

    async def located(kind: GrainKind, key: str) -> Any:
        await asyncio.sleep(0)
        if fails and fails.pop():
            raise NotHosted("no silo hosts it yet")
        return await locate(kind, key)

    waiters.searches._locate = located

    async def calls_until_it_works() -> int:
        for tries in range(1, 100):
            try:
                await waiters.call("a")
            except NotHosted:
                continue  # try again at once
            return tries
        return 0

    assert await asyncio.gather(*(calls_until_it_works() for _ in range(5))) == [3] * 5
    await until(lambda: not waiters.searches.has_waiting("Desk", "a"))


async def test_who_must_wait_before_another_try_waits_though_others_look_again(
    silo: Silo,
) -> None:
    waiters, loop = Waiters(silo), asyncio.get_running_loop()

    async def caller(pause_s: float) -> None:
        peer = await waiters.call("a")
        peer.is_closed = True
        await waiters.call("a", pause_s)

    begun = loop.time()
    await asyncio.gather(caller(0.0), caller(0.05), caller(0.0))
    assert loop.time() - begun >= 0.05 - 0.001
    assert len(waiters.found) == 2


async def test_a_silo_that_said_goodbye_gets_no_calls_before_the_table_is_read() -> None:
    async with LocalCluster(silos=2, grains=[Desk]) as cluster:
        staying, leaving = cluster.silos
        await leaving.grain(Desk, "a").where()
        for number in range(20):  # connects the silos
            await staying.grain(Desk, f"{number}").where()
        leaving.assembly.visitors.say_goodbye()
        peer = staying.assembly.peers.get(leaving.address, is_system=True)
        await until(lambda: peer.is_closed)
        assert leaving.address in staying.assembly.membership.active()
        with pytest.raises(SiloUnavailable, match="stopping"):
            staying.assembly.peers.get(leaving.address)
        staying.assembly.peers.get(leaving.address, is_system=True)


async def test_whoever_went_on_holds_no_bytes_of_a_search_that_goes_on(silo: Silo) -> None:
    """A call that waits again at once joins the search that it has just waited for."""
    waiters, most = Waiters(silo), RuntimeOptions().waiting_bytes_max
    await waiters.call("first", size_bytes=most - 1)
    assert waiters.searches.has_waiting("Desk", "a")
    await waiters.call("second", size_bytes=most - 1)
    gives_up = asyncio.ensure_future(waiters.call("third", size_bytes=most - 1))
    await asyncio.sleep(0)
    gives_up.cancel()
    await asyncio.sleep(0)
    await waiters.call("fourth", size_bytes=most - 1)
    assert silo.assembly.turns.waiting_bytes.used == 0
