"""Grains of real processes: values move when a silo stops, and streamed results end then."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from millstream.runtime import Contract, ResultsAborted, SiloUnavailable, connect, grain
from millstream.runtime.run import SiloProcess

pytestmark = pytest.mark.real

GRAINS = 200
MODULE = """
import asyncio
import os
from collections.abc import AsyncGenerator
from millstream.runtime import Grain, Silo, grain

@grain(name="Walker")
class Walker(Grain):
    def __init__(self) -> None:
        self._steps: list[str] = []

    async def walk(self, step: str) -> int:
        self._steps.append(step)
        return os.getpid()

    async def steps(self) -> tuple[int, list[str]]:
        return os.getpid(), self._steps

    async def numbers(self, count: int, every_s: float) -> AsyncGenerator[int, None]:
        for number in range(count):
            if every_s:
                await asyncio.sleep(every_s)
            yield number

    def on_dehydrate(self) -> list[str]:
        return self._steps

    def on_rehydrate(self, value: list[str]) -> None:
        self._steps = value

def make(directory):
    return Silo(grains=[Walker], membership=f"sqlite:{directory}")
"""


@grain(name="Walker")
class Walker(Contract):
    async def walk(self, step: str) -> int:
        raise NotImplementedError

    async def steps(self) -> tuple[int, list[str]]:
        raise NotImplementedError

    def numbers(self, count: int, every_s: float) -> AsyncGenerator[int, None]:
        raise NotImplementedError


async def test_a_process_that_stops_hands_its_grains_over_and_ends_its_streamed_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "walkers.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    silos = [
        SiloProcess("walkers:make", {"directory": str(tmp_path / "data")}, tmp_path / name)
        for name in ("first.log", "second.log")
    ]
    for silo in silos:
        await silo.start()
    leaving, staying = silos
    try:
        async with connect(staying.gateway) as client:
            keys = [f"w{number}" for number in range(GRAINS)]
            homes = {key: await client.grain(Walker, key).walk(key) for key in keys}
            assert set(homes.values()) == {leaving.pid, staying.pid}
            read = [number async for number in client.grain(Walker, keys[0]).numbers(50_000, 0.0)]
            assert read == list(range(50_000))
            moved = next(key for key in keys if homes[key] == leaving.pid)
            rows = client.grain(Walker, moved).numbers(1_000, 0.05)
            got = [await anext(rows) for _ in range(3)]
            stopping = asyncio.create_task(leaving.stop())
            with pytest.raises((ResultsAborted, SiloUnavailable)):
                async for number in rows:
                    got.append(number)
            assert got == list(range(len(got)))
            await stopping
            for key in keys:
                assert await client.grain(Walker, key).steps() == (staying.pid, [key])
    finally:
        for silo in silos:
            await silo.stop()
