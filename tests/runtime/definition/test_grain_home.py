"""A grain and its home: what a grain can use while its activation lives, and after that."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
from tests.conditions import until

from millstream.runtime import Grain, GrainError, LocalCluster, NotInCluster, Silo, state
from millstream.runtime.extending import show_text
from millstream.runtime.text import SHOWN_CHARS_MAX

KEPT: dict[str, Any] = {}


@dataclass
class Tally:
    count: int = 0


class Lamp(Grain):
    tally = state(Tally)

    async def keep(self) -> None:
        KEPT["grain"] = self

    async def leave(self) -> None:
        self.context.deactivate_when_idle()

    async def whoami(self) -> Grain:
        return self


class Broken(Grain):
    def __init__(self) -> None:
        raise asyncio.CancelledError("somebody else's")

    async def ping(self) -> int:
        return 1


class BrokenLater(Broken):
    async def on_activate(self) -> None:
        pass


class Leaving(Grain):
    async def leave(self) -> None:
        self.context.deactivate_when_idle()


async def test_a_grain_that_outlives_its_activation_is_told_so() -> None:
    async with Silo(grains=[Lamp]) as silo:
        ref = silo.grain(Lamp, "a/1")
        await ref.keep()
        await ref.leave()
        await until(lambda: not silo.assembly.catalog.count)
        kept: Lamp = KEPT.pop("grain")
        assert kept.key == "a/1"
        for use in (
            lambda: kept.grain(Lamp, "b"),
            lambda: kept.context.headers,
            lambda: kept.context.silo,
            lambda: kept.context.keep_alive(1),
            lambda: kept.context.deactivate_when_idle(),
        ):
            with pytest.raises(NotInCluster, match=r"Lamp/a/1: this activation has ended.*await"):
                use()
        coro = asyncio.sleep(0)
        with pytest.raises(NotInCluster, match="create_task"):
            kept.context.create_task(coro)
        coro.close()
        with pytest.raises(NotInCluster, match="Lamp/a/1: the activation has ended"):
            await kept.tally.write()
        assert not hasattr(kept._millstream, "__wrapped__")


async def test_an_ended_grain_is_freed_without_the_collector() -> None:
    async with Silo(grains=[Leaving]) as silo:
        ref = silo.grain(Leaving, "a")
        await ref.leave()
        await until(lambda: not silo.assembly.catalog.count)
        gc.collect()
        gc.disable()
        try:
            await silo.grain(Leaving, "b").leave()
            grain = weakref.ref(silo.assembly.catalog.of("Leaving")["b"].grain)
            await until(lambda: not silo.assembly.catalog.count)
            await until(lambda: grain() is None)
        finally:
            gc.enable()


@pytest.mark.parametrize("cls", [Broken, BrokenLater])
async def test_init_that_raises_a_cancellation_fails_the_call_at_once(cls: type[Broken]) -> None:
    async with LocalCluster(silos=1, grains=[Broken, BrokenLater]) as cluster:
        for runtime in (cluster.silos[0], cluster.client):
            async with asyncio.timeout(5):
                with pytest.raises(GrainError, match="cancelled"):
                    await runtime.grain(cls, "a").ping()


async def test_a_key_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = "a\nERROR all is lost\r" + "x" * 10_000
    async with Silo(grains=[Broken]) as silo:
        with pytest.raises(GrainError):
            await silo.grain(Broken, key).ping()
    about = [record.getMessage() for record in caplog.records if "all is lost" in record.message]
    assert about
    for text in about:
        assert "\n" not in text and "\r" not in text and len(text) < 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é", "plain é"),
        ("a\nb\x1b[0m", "a\\nb\\x1b[0m"),
        ("a\u2028b", "a\\u2028b"),
        ("\ud800", "\\ud800"),
        ("x" * SHOWN_CHARS_MAX, "x" * SHOWN_CHARS_MAX),
        ("x" * (SHOWN_CHARS_MAX + 1), "x" * SHOWN_CHARS_MAX + "... (201 characters)"),
    ],
)
def test_text_of_others_is_shown_in_one_line_of_bounded_length(text: str, expected: str) -> None:
    assert show_text(text) == expected
