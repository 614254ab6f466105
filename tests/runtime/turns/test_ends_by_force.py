"""Turns that still run when a stopping silo has waited for `drain_s`, and grains that end as they
begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conditions import until

from millstream.runtime import (
    PREFER_LOCAL,
    DeactivationReason,
    Grain,
    LocalCluster,
    MemoryStateStore,
    Runtime,
    RuntimeOptions,
    Silo,
    SiloUnavailable,
    always_interleave,
    grain,
    read_only,
    state,
)

LOG: list[str] = []
NEVER: list[asyncio.Event] = []
BRIEF = RuntimeOptions(drain_s=0.05)


@pytest.fixture(autouse=True)
async def fresh_board() -> AsyncIterator[None]:
    LOG.clear()
    NEVER[:] = [asyncio.Event()]
    yield


async def stay(name: str) -> None:
    LOG.append(f"+{name}")
    try:
        await NEVER[0].wait()
    except asyncio.CancelledError:
        LOG.append(f"-{name}")
        raise


@grain(placement=PREFER_LOCAL)
class Plain(Grain):
    async def where(self) -> str:
        return self.context.silo

    async def plain(self, name: str) -> None:
        await stay(name)

    @read_only
    async def read(self, name: str) -> None:
        await stay(name)

    @always_interleave
    async def interleave(self, name: str) -> None:
        await stay(name)

    async def through(self, name: str) -> None:
        """Run two turns in one task."""
        try:
            await self.grain(Open, "inner").plain(name)
        except SiloUnavailable:
            LOG.append("the inner turn was ended for its caller too")


@grain(placement=PREFER_LOCAL, reentrant=True)
class Open(Grain):
    async def where(self) -> str:
        return self.context.silo

    async def plain(self, name: str) -> None:
        await stay(name)

    @read_only
    async def read(self, name: str) -> None:
        await stay(name)


# --- ending by force ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["local", "silo", "client"])
async def test_every_running_turn_is_ended_once_the_drain_time_has_passed(where: str) -> None:
    async with LocalCluster(silos=2, grains=[Plain, Open], options=BRIEF) as cluster:
        home, other = cluster.silos
        for made in (home.grain(Plain, "a"), home.grain(Plain, "b"), home.grain(Open, "a")):
            assert await made.where() == home.address
        callers: dict[str, Runtime] = {"local": home, "silo": other, "client": cluster.client}
        runtime = callers[where]
        plain, open_ = runtime.grain(Plain, "a"), runtime.grain(Open, "a")
        calls = [plain.plain("x"), plain.interleave("i1"), plain.interleave("i2")]
        calls += [open_.plain("r1"), open_.plain("r2"), open_.read("rr")]
        calls += [runtime.grain(Plain, "b").read("read1"), runtime.grain(Plain, "b").read("read2")]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await until(lambda: len(LOG) == len(tasks))
        activations = home.assembly.catalog.all()
        async with asyncio.timeout(8):
            await home.stop()
        ended = [name for name in LOG if name.startswith("-")]
        assert sorted(ended) == ["-i1", "-i2", "-r1", "-r2", "-read1", "-read2", "-rr", "-x"]
        assert len(activations) == 3 and all(one.is_idle for one in activations)
        async with asyncio.timeout(8):
            found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in found] == [SiloUnavailable] * len(tasks)


async def test_an_interleaving_turn_that_is_ended_gives_its_task_back() -> None:
    async with Silo(grains=[Plain], options=BRIEF) as silo:

        async def program() -> tuple[str, int]:
            task = asyncio.current_task()
            assert task is not None
            try:
                await silo.grain(Plain, "a").interleave("i")
            except SiloUnavailable as error:
                await asyncio.sleep(0)  # the task is not cancelled any more
                return str(error), task.cancelling()
            return "", -1

        running = asyncio.create_task(program())
        await until(lambda: LOG == ["+i"])
        await silo.stop()
        text, cancelling = await running
        assert "Plain/a" in text and "no longer waits for calls" in text
        assert cancelling == 0


async def test_turns_in_one_task_are_ended_as_one() -> None:
    async with Silo(grains=[Plain, Open], options=BRIEF) as silo:
        outer = asyncio.create_task(silo.grain(Plain, "outer").through("in"))
        await until(lambda: LOG == ["+in"])
        await silo.stop()
        with pytest.raises(SiloUnavailable, match="Plain/outer"):
            await outer
    assert LOG == ["+in", "-in"]


# --- ends requested in on_activate ---------------------------------------------------------------


class Brief(Grain):
    """Requests its end in `on_activate`."""

    count = state(int)

    async def on_activate(self) -> None:
        LOG.append("activate")
        self.context.deactivate_when_idle()

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        LOG.append(f"deactivate {reason.name}")

    async def call(self, name: str) -> str:
        LOG.append(name)
        return name

    async def slow(self, name: str) -> str:
        LOG.append(name)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return name

    @read_only
    async def read(self, name: str) -> str:
        LOG.append(name)
        return name

    @always_interleave
    async def interleave(self, name: str) -> str:
        LOG.append(name)
        return name


@grain(placement=PREFER_LOCAL)
class BriefAtHome(Brief):
    """The same, activated in the calling silo."""


@grain(reentrant=True)
class BriefOpen(Brief):
    """The same, reentrant."""


class BriefFromBirth(Grain):
    """Requests its end in the constructor. Without a hook it is made without a task."""

    def __init__(self) -> None:
        LOG.append("activate")
        self.context.deactivate_when_idle()

    async def call(self, name: str) -> str:
        LOG.append(name)
        return name


BRIEF_KINDS: list[type[Any]] = [Brief, BriefAtHome, BriefOpen, BriefFromBirth]
LIFE = ["activate", "deactivate REQUESTED"]


@pytest.mark.parametrize("silos", [1, 2])
@pytest.mark.parametrize("where", ["local", "silo", "client"])
@pytest.mark.parametrize("kind", BRIEF_KINDS)
async def test_the_call_that_woke_a_grain_is_served_though_its_end_was_asked_for(
    kind: type[Any], where: str, silos: int
) -> None:
    async with LocalCluster(silos=silos, grains=BRIEF_KINDS) as cluster:
        callers: dict[str, Runtime] = {
            "local": cluster.silos[0],
            "silo": cluster.silos[-1],
            "client": cluster.client,
        }
        ref = callers[where].grain(kind, "a")
        assert await ref.call("one") == "one"
        await until(lambda: all(silo.assembly.catalog.count == 0 for silo in cluster.silos))
        assert LOG[:2] == ["activate", "one"]
        assert LOG.count("activate") == 1
        assert await ref.call("two") == "two"
        await until(lambda: all(silo.assembly.catalog.count == 0 for silo in cluster.silos))
        assert LOG.count("activate") == 2


@pytest.mark.parametrize("method", ["call", "slow", "read", "interleave"])
async def test_each_waiting_call_is_served_in_order(method: str) -> None:
    async with LocalCluster(silos=2, grains=[Brief]) as cluster:
        ref = cluster.silos[0].grain(Brief, "a")
        calls = [asyncio.create_task(getattr(ref, method)(f"c{i}")) for i in range(5)]
        async with asyncio.timeout(8):
            assert await asyncio.gather(*calls) == [f"c{i}" for i in range(5)]
        assert [name for name in LOG if name.startswith("c")] == [f"c{i}" for i in range(5)]
        starts = LOG.count("activate")
        assert starts == 5 if method in ("call", "slow") else 1 <= starts <= 5
        await until(lambda: LOG.count("deactivate REQUESTED") == starts)


async def test_a_grain_that_leaves_at_once_goes_though_its_caller_gave_up() -> None:
    async with Silo(grains=[Brief]) as silo:
        call = asyncio.create_task(silo.grain(Brief, "a").call("c"))
        while silo.assembly.catalog.count == 0:
            await asyncio.sleep(0)
        call.cancel()
        await until(lambda: LOG == LIFE)
        await until(lambda: silo.assembly.catalog.count == 0)
        assert call.cancelled()


class Conflicting(Grain):
    """Has a conflict between memory and store from the start."""

    count = state(int)

    async def on_activate(self) -> None:
        LOG.append("activate")
        if LOG.count("activate") == 1:
            self._millstream.on_conflict()
            self.context.deactivate_when_idle()

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        LOG.append(f"deactivate {reason.name}")

    async def call(self, name: str) -> None:
        LOG.append(name)


async def test_a_stale_activation_serves_nobody() -> None:
    async with Silo(grains=[Conflicting], stores={"default": MemoryStateStore()}) as silo:
        await silo.grain(Conflicting, "a").call("c")
    assert LOG[:4] == ["activate", "deactivate STATE_CONFLICT", "activate", "c"]


@pytest.mark.parametrize("asks", ["before", "after"])
async def test_a_grain_that_leaves_at_once_serves_nobody_once_its_silo_stops(asks: str) -> None:
    gate = asyncio.Event()

    class Late(Brief):
        async def on_activate(self) -> None:
            LOG.append("activate")
            if asks == "before":
                self.context.deactivate_when_idle()
            await gate.wait()
            if asks == "after":
                self.context.deactivate_when_idle()

    async with Silo(grains=[Late]) as silo:
        call = asyncio.create_task(silo.grain(Late, "a").call("c"))
        await until(lambda: LOG == ["activate"])
        stopping = asyncio.create_task(silo.stop())
        await until(lambda: not silo.assembly.catalog.is_accepting)
        gate.set()
        await stopping
        async with asyncio.timeout(8):
            await asyncio.wait([call])
    assert LOG == ["activate", "deactivate SILO_STOPS"]
    assert call.exception() is not None
