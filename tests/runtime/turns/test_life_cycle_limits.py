"""No activation stays in its start or end longer than the limits, whatever its hooks do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import pytest
from tests.conditions import until

from millstream.runtime import (
    ActivationTimeout,
    DeactivationReason,
    Grain,
    GrainError,
    LocalCluster,
    MemoryStateStore,
    RuntimeOptions,
    Silo,
    SiloUnavailable,
    state,
)
from millstream.runtime.turns import catalog

LATE = "ignored its cancellation and still runs; it is no longer awaited"
LOG: list[str] = []
HOOKS: dict[str, Callable[[], object]] = {}
ENDED: list[asyncio.Event] = []  # ends the hooks that ignore their cancellation


class Odd(BaseException):
    pass


def throw(error: BaseException) -> Callable[[], NoReturn]:
    def act() -> NoReturn:
        raise error

    return act


ERRORS: dict[str, Callable[[], BaseException]] = {
    "an error": lambda: ValueError("no"),
    "a cancellation": asyncio.CancelledError,
    "an odd one": lambda: Odd("odd"),
    "an exit": lambda: SystemExit(3),
    "a closed generator": GeneratorExit,
    "a group": lambda: BaseExceptionGroup("g", [Odd(), asyncio.CancelledError()]),
}


async def stays() -> None:
    """Ignore every cancellation until the test ends it."""
    while not ENDED[0].is_set():
        with suppress(asyncio.CancelledError):
            await ENDED[0].wait()


class Living(Grain):
    async def on_activate(self) -> None:
        LOG.append("starts")
        if self.key.startswith("stays in start"):
            await stays()
        HOOKS.get("start", int)()

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        LOG.append("ends")
        if self.key.startswith("stays in end"):
            await stays()
        HOOKS.get("end", int)()

    async def leave(self) -> str:
        self.context.deactivate_when_idle()
        return "left"

    async def ok(self) -> str:
        return "ok"


@pytest.fixture(autouse=True)
async def fresh(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    LOG.clear()
    HOOKS.clear()
    ENDED[:] = [asyncio.Event()]
    monkeypatch.setattr(catalog, "HOOK_END_S", 0.05)
    yield
    ENDED[0].set()


def quick() -> RuntimeOptions:
    return RuntimeOptions(activation_timeout_s=0.05, deactivation_timeout_s=0.05, drain_s=0.3)


def count(silo: Silo) -> int:
    return silo.assembly.catalog.count


@pytest.mark.parametrize("where", ["silo", "client"])
@pytest.mark.parametrize("what", ERRORS)
async def test_whatever_a_start_raises_its_callers_are_told_and_the_next_call_starts_anew(
    where: str, what: str
) -> None:
    async with LocalCluster(silos=1, grains=[Living], options=quick()) as cluster:
        ref = (cluster.silos[0] if where == "silo" else cluster.client).grain(Living, "a")
        HOOKS["start"] = throw(ERRORS[what]())
        async with asyncio.timeout(5):
            with pytest.raises((ValueError, GrainError)):
                await ref.ok()
            HOOKS.clear()
            assert await ref.ok() == "ok"
        assert LOG == ["starts", "starts"]


@pytest.mark.parametrize("what", ERRORS)
async def test_whatever_an_end_raises_the_activation_is_gone_and_its_silo_stops(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Silo(grains=[Living], options=quick()) as silo:
        ref = silo.grain(Living, "a")
        HOOKS["end"] = throw(ERRORS[what]())
        async with asyncio.timeout(5):
            assert await ref.leave() == "left"
            assert await ref.ok() == "ok"
            assert LOG == ["starts", "ends", "starts"]
            await silo.stop()
    assert caplog.text.count("Living/a: on_deactivate failed") == 2


async def test_a_start_that_ignores_its_cancellation_is_left_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Silo(grains=[Living], options=quick()) as silo:
        ref = silo.grain(Living, "stays in start")
        with pytest.raises(ActivationTimeout, match=r"on_activate.*0\.05 s"):
            await ref.ok()
        assert f"Living/stays in start: on_activate {LATE}" in caplog.text
        assert count(silo) == 0
        ENDED[0].set()  # the hook ends late, which changes nothing
        assert await ref.ok() == "ok" and count(silo) == 1


async def test_an_end_that_ignores_its_cancellation_is_left_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Silo(grains=[Living], options=quick()) as silo:
        ref = silo.grain(Living, "stays in end")
        await ref.leave()
        assert await ref.ok() == "ok"
        assert f"Living/stays in end: on_deactivate {LATE}" in caplog.text
        assert count(silo) == 1 and LOG == ["starts", "ends", "starts"]
        ENDED[0].set()
        assert await ref.leave() == "left" and await ref.ok() == "ok"
        assert LOG == ["starts", "ends", "starts", "ends", "starts"]


@pytest.mark.parametrize("key", ["stays in start", "stays in end"])
async def test_a_silo_stops_although_a_hook_ignores_every_cancellation(key: str) -> None:
    async with asyncio.timeout(5):
        async with Silo(grains=[Living], options=quick()) as silo:
            calling = asyncio.ensure_future(silo.grain(Living, key).ok())
            await until(lambda: LOG == ["starts"])
        with suppress(ActivationTimeout, SiloUnavailable):
            assert await calling == "ok"


async def test_an_end_that_a_kill_cuts_short_is_no_failure_of_its_hook(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Keeper(Grain):
        async def leave(self) -> None:
            self.context.create_task(stays())
            await asyncio.sleep(0)
            self.context.deactivate_when_idle()

    async with Silo(grains=[Keeper]) as silo:
        await silo.grain(Keeper, "a").leave()
        await silo.kill()
        ENDED[0].set()
    assert "on_deactivate failed" not in caplog.text


@dataclass
class Count:
    value: int = 0


class Silent(MemoryStateStore):
    """Never answers, and ignores that nobody waits any more."""

    async def read(self, *args: object) -> NoReturn:
        await stays()
        raise AssertionError("read")


class Stored(Grain):
    count = state(Count)

    async def ok(self) -> str:
        return "ok"


async def test_a_store_that_never_answers_holds_no_activation_beyond_its_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Silo(grains=[Stored], stores={"default": Silent()}, options=quick()) as silo:
        with pytest.raises(ActivationTimeout, match=r"reading its states.*0\.05 s"):
            await silo.grain(Stored, "a").ok()
        assert count(silo) == 0
    assert f"Stored/a: reading its states {LATE}" in caplog.text


async def test_a_silo_stops_although_a_turn_ignores_every_cancellation(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(Grain):
        async def stay(self) -> None:
            LOG.append("stays")
            await stays()

    async with asyncio.timeout(10):
        async with LocalCluster(silos=1, grains=[Stubborn], options=quick()) as cluster:
            calls = [
                asyncio.ensure_future(runtime.grain(Stubborn, key).stay())
                for key, runtime in (("a", cluster.client), ("b", cluster.silos[0]))
            ]
            await until(lambda: LOG == ["stays"] * 2)
            await cluster.silos[0].stop()
        with pytest.raises(SiloUnavailable):
            await calls[0]
    assert "no longer awaited" in caplog.text
    ENDED[0].set()
    with pytest.raises(SiloUnavailable):
        await calls[1]
