"""A rolling upgrade of an application with real processes, while clients call without a failure."""

from __future__ import annotations

import asyncio
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from millstream.providers.sqlite import SqliteStateStore
from millstream.runtime import Client, Contract, Row, StateTooNew, connect, grain
from millstream.runtime.run import SiloProcess

pytestmark = pytest.mark.real

KEYS = [f"t{number}" for number in range(30)]
FIRST = """
from dataclasses import dataclass
from millstream.runtime import Grain, Silo, grain, state

@dataclass
class Count:
    added: int = 0

@grain(name="Till")
class Till(Grain):
    count = state(Count)

    async def add(self) -> tuple[int, int]:
        self.count.value.added += 1
        await self.count.write()
        return 1, self.count.value.added

    async def see(self) -> tuple[int, int]:
        return 1, self.count.value.added

def make(directory):
    text = f"sqlite:{directory}"
    return Silo(grains=[Till], membership=text, stores={"default": text})
"""
SECOND = """
from dataclasses import dataclass
from millstream.runtime import Grain, Silo, grain, state, upgrade

@dataclass
class OldCount:
    added: int = 0

@dataclass
class Counts:
    by_version: dict[int, int]

@grain(name="Till", version=2)
class Till(Grain):
    count = state(Counts, default=lambda: Counts({}))

    @staticmethod
    @upgrade(count, from_version=1)
    def count_of_1(old: OldCount) -> Counts:
        return Counts({1: old.added})

    async def add(self) -> tuple[int, int]:
        counts = self.count.value.by_version
        counts[2] = counts.get(2, 0) + 1
        await self.count.write()
        return 2, sum(counts.values())

    async def see(self) -> tuple[int, int]:
        return 2, sum(self.count.value.by_version.values())

    async def of_versions(self) -> dict[int, int]:
        return self.count.value.by_version

def make(directory):
    text = f"sqlite:{directory}"
    return Silo(grains=[Till], membership=text, stores={"default": text})
"""


@grain(name="Till")
class TillOf1(Contract):
    async def add(self) -> tuple[int, int]:
        raise NotImplementedError

    async def see(self) -> tuple[int, int]:
        raise NotImplementedError


@grain(name="Till", version=2)
class TillOf2(TillOf1):
    async def of_versions(self) -> dict[int, int]:
        raise NotImplementedError


class Load:
    """Callers that add until they are stopped. Any error ends the test."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.is_over = False
        self.added: Counter[str] = Counter()
        self.by: Counter[tuple[int, int]] = Counter()  # version of the call, version that ran it

    async def call(self, contract: type[TillOf1], wanted: int, keys: list[str]) -> None:
        while not self.is_over:
            for key in keys:
                ran, _ = await self._client.grain(contract, key).add()
                assert ran >= wanted
                self.added[key] += 1
                self.by[wanted, ran] += 1
            await asyncio.sleep(0.005)


async def test_no_call_fails_while_all_processes_are_replaced_and_version_2_reads_the_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("tills_first", FIRST), ("tills_second", SECOND)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    data = tmp_path / "data"

    def make(release: str, number: int) -> SiloProcess:
        log = tmp_path / f"{release}-{number}.log"
        return SiloProcess(f"tills_{release}:make", {"directory": str(data)}, log)

    olds, news = ([make(release, at) for at in range(2)] for release in ("first", "second"))
    try:
        for silo in olds:
            await silo.start()
        async with connect(membership=f"sqlite:{data}") as client:
            load = Load(client)
            async with asyncio.TaskGroup() as group:
                for part in range(3):
                    group.create_task(load.call(TillOf1, 1, KEYS[part::3]))
                await asyncio.sleep(0.5)
                for old, new in zip(olds, news, strict=True):
                    await new.start()
                    if new is news[0]:
                        group.create_task(load.call(TillOf2, 2, KEYS[:10]))
                    await asyncio.sleep(0.5)
                    await old.stop()
                    await asyncio.sleep(0.5)
                load.is_over = True
            assert load.by[1, 1] and load.by[1, 2] and load.by[2, 2], load.by
            for key in KEYS:
                counts = await client.grain(TillOf2, key).of_versions()
                assert sum(counts.values()) == load.added[key]
                assert counts.get(1), f"{key} has no calls of version 1"
        await roll_back(olds, news, make("first", 2), data, load)
    finally:
        for silo in [*olds, *news]:
            await silo.stop()


async def roll_back(
    olds: list[SiloProcess], news: list[SiloProcess], again: SiloProcess, data: Path, load: Load
) -> None:
    """Run only the first release again: its callers get an error, and the rows do not change."""
    for silo in news:
        await silo.stop()
    olds.append(again)
    await again.start()
    before = await rows_of(data)
    async with connect(membership=f"sqlite:{data}") as client:
        with pytest.raises(StateTooNew) as found:
            await client.grain(TillOf1, KEYS[0]).add()
        assert (found.value.stored, found.value.hosted) == (2, 1)
        assert await client.grain(TillOf1, "fresh").add() == (1, 1)
    after = await rows_of(data)
    assert {key: after[key] for key in before} == before
    assert len(before) == len(load.added) == len(KEYS)


async def rows_of(data: Path) -> dict[str, Row]:
    """Return the rows of the tills in the store of a directory."""
    store = SqliteStateStore(data)
    try:
        return dict(await store.scan("Till/", "", 1_000))
    finally:
        await store.aclose()
