"""Bookies that other silos call: only in the start that their row names, while their silo lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

import msgspec
import pytest
from tests.providers.ledger.bookie.kit import entry, new_disk, opened
from tests.providers.ledger.clocks import LoopClock
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.inspection import BookieRecord
from millstream.providers.ledger.metadata.bookies import bookie_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.errors import BookieAway, LedgerFenced
from millstream.providers.ledger.serving.cluster_bookies import CALL_S, LOOK_S, ClusterBookies
from millstream.providers.ledger.serving.home import Home
from millstream.providers.ledger.serving.target import BookieTarget
from millstream.runtime import MemoryStateStore, SiloUnavailable
from millstream.runtime.extending import SystemTarget, Tasks
from millstream.runtime.testing import SimDisk

PLACE = "data/{silo}"


class Net:
    """The live silos and their targets."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        self.targets: dict[tuple[str, str], SystemTarget] = {}
        self.hanging: set[str] = set()
        self.calls = 0


class View:
    """One silo, as its bookies see it."""

    def __init__(self, net: Net, silo: str) -> None:
        self.net, self.silo = net, silo
        self.clock = LoopClock()
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        self.members: Any = self
        self.targets: Any = self
        net.live.add(silo)

    def is_live(self, silo: str, /) -> bool:
        return silo in self.net.live

    def add(self, target: SystemTarget, instance: str = "") -> None:
        self.net.targets[self.silo, f"{target.target_name}/{instance}"] = target

    async def call(
        self, silo: str, target: str, method: Callable[..., Awaitable[Any]], /, *args: Any
    ) -> Any:
        self.net.calls += 1
        await asyncio.sleep(0.001)
        if silo in self.net.hanging:
            await asyncio.sleep(1000.0)
        if silo not in self.net.live:
            raise SiloUnavailable(f"{silo} is gone", may_have_run=True)
        return await method(self.net.targets[silo, target], *args)


class World:
    """A bookie in silo `b`, and silo `a` that calls it."""

    def __init__(self) -> None:
        self.net, self.store = Net(), MemoryStateStore()
        self.a, self.b = View(self.net, "a"), View(self.net, "b")
        metadata = Metadata(self.store, "c", self.a.clock, "a")
        self.rows = bookie_rows(metadata)
        self.bookies = ClusterBookies(self.a, self.rows, PLACE)

    async def run(self, bookie: Bookie) -> None:
        """Run a bookie in silo `b`."""
        ClusterBookies(self.b, self.rows, PLACE).serve(bookie)
        await self.say(bookie)

    async def say(self, bookie: Bookie, **named: Any) -> None:
        record = BookieRecord(
            bookie.name, "b", bookie.boot, True, 10, place=PLACE, owner="b", operation="x"
        )
        await self.rows.update(bookie.name, lambda _: msgspec.structs.replace(record, **named))


async def began() -> tuple[World, SimDisk, Bookie]:
    disk = new_disk()
    world, bookie = World(), await opened(disk)
    await world.run(bookie)
    await world.bookies.start()
    return world, disk, bookie


@virtually
async def test_a_bookie_elsewhere_takes_what_it_is_sent_and_refuses_what_is_fenced() -> None:
    world, _, bookie = await began()
    await world.bookies.add(bookie.name, 1, [entry(1, 0)])
    found = await world.bookies.read(bookie.name, 1, 0, 9, 1 << 20, 0)
    assert found.entries == (entry(1, 0),)
    assert await world.bookies.fence(bookie.name, 1, 5) == -1
    with pytest.raises(LedgerFenced) as caught:
        await world.bookies.add(bookie.name, 1, [entry(1, 1)])
    assert caught.value.term == 5
    await bookie.aclose()


@virtually
async def test_an_answer_is_never_that_of_another_start() -> None:
    world, disk, bookie = await began()
    target = BookieTarget(bookie)
    for boot in (0, bookie.boot - 1, bookie.boot + 1):
        refusal = await target.add(boot, 1, [entry(1, 0)])
        assert refusal is not None and "boot number 1, not" in refusal.text
        assert (await target.fence(boot, 1, 2)).refusal is not None
        assert (await target.read(boot, 1, 0, 1, 1, 0)).refusal is not None
        assert (await target.watch(boot, 1, -1, 0.0)).refusal is not None
        assert await target.tell(boot, 1, 1, 0) is not None
    assert bookie.store.ledgers() == []
    await bookie.aclose()


@virtually
async def test_a_bookie_that_started_again_is_found_at_once() -> None:
    world, disk, bookie = await began()
    await asyncio.sleep(LOOK_S / 2)
    await bookie.aclose()
    again = await opened(disk)
    assert again.boot == bookie.boot + 1
    await world.run(again)
    with pytest.raises(BookieAway, match="has boot number 2, not 1"):
        await world.bookies.add(again.name, 1, [entry(1, 0)])
    await world.bookies.add(again.name, 1, [entry(1, 0)])  # by this call it has read the row again
    await again.aclose()


@virtually
async def test_bookies_of_silos_that_are_gone_are_away_and_nobody_writes_there() -> None:
    world, _, bookie = await began()
    assert set(world.bookies.writable()) == {bookie.name}
    assert world.bookies.runner(Home("", PLACE, "b")) == "b"
    world.net.live.discard("b")
    assert not world.bookies.writable()
    assert world.bookies.away("b") == [bookie.name] and not world.bookies.away("a")
    calls = world.net.calls
    with pytest.raises(BookieAway, match="no live silo runs"):
        await world.bookies.add(bookie.name, 1, [entry(1, 0)])
    assert world.net.calls == calls
    await bookie.aclose()


@virtually
async def test_ledgers_are_not_spread_over_bookies_of_other_places_or_that_drain() -> None:
    world, _, bookie = await began()
    for named in ({"place": "elsewhere"}, {"is_draining": True}, {"is_writable": False}):
        await world.say(bookie, **named)
        await asyncio.sleep(2 * LOOK_S)
        assert not world.bookies.writable(), named
    await world.bookies.add(bookie.name, 1, [entry(1, 0)])  # its existing ledgers stay reachable
    await bookie.aclose()


@virtually
async def test_a_call_to_a_silo_that_stands_still_ends_and_it_is_asked_last() -> None:
    world, _, bookie = await began()
    world.net.hanging.add("b")
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(BookieAway, match="no answer"):
        await world.bookies.read(bookie.name, 1, 0, 1, 1, 0)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(CALL_S, abs=0.2)
    assert world.bookies.likeliest([bookie.name, "other"]) == ["other", bookie.name]
    world.net.hanging.clear()
    await world.bookies.add(bookie.name, 1, [entry(1, 0)])
    assert world.bookies.likeliest([bookie.name, "other"]) == [bookie.name, "other"]
    await bookie.aclose()


@virtually
async def test_one_silo_does_what_one_has_to_do() -> None:
    world, _, bookie = await began()
    other = ClusterBookies(world.b, world.rows, PLACE)
    other.serve(bookie)
    await other.start()
    assert other.is_first() and not world.bookies.is_first()
    world.net.live.discard("b")
    assert not world.bookies.is_first(), "no bookie runs here"
    await bookie.aclose()
