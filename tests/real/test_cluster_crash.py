"""Clusters of real processes over SQLite files, after all silos are killed."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import pytest

from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime import Grain, Status, connect, grain
from millstream.runtime.run import SiloProcess, SiloProcesses

pytestmark = pytest.mark.real

FACTORY = "crashing_silo:make"
MODULE = """
from millstream.runtime import Grain, MembershipOptions, Silo, grain, state

@grain(name="CrashCounter")
class Counter(Grain):
    count = state(int)
    async def add(self) -> int:
        self.count.value += 1
        await self.count.write()
        return self.count.value

def make(directory, address="127.0.0.1:0", **membership):
    text = f"sqlite:{directory}"
    return Silo(
        grains=[Counter], address=address, membership=text, stores={"default": text},
        membership_options=MembershipOptions(**membership),
    )
"""
DETECTED_S = 6.0  # docs/concepts/clusters.md
STARTED_S = 7.0  # time in which an interpreter starts on a busy machine


@grain(name="CrashCounter")
class Counter(Grain):
    async def add(self) -> int:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crashing_silo.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))


def silo(tmp_path: Path, name: str, **arguments: Any) -> SiloProcess:
    arguments["directory"] = str(tmp_path / "data")
    return SiloProcess(FACTORY, arguments, tmp_path / f"{name}.log")


async def count_and_kill(silos: list[SiloProcess]) -> None:
    async with SiloProcesses(silos) as processes:
        async with connect(*(process.gateway for process in processes)) as client:
            assert await client.grain(Counter, "a").add() == 1
        await processes.kill()


async def statuses(tmp_path: Path) -> dict[str, Status]:
    table = SqliteMembershipTable(tmp_path / "data")
    view = await table.read()
    await table.aclose()
    return {row.silo: row.status for row in view.rows}


async def test_one_silo_at_another_port_goes_on_after_every_silo_was_killed(tmp_path: Path) -> None:
    old = [silo(tmp_path, f"old-{number}") for number in range(3)]
    await count_and_kill(old)
    assert list((await statuses(tmp_path)).values()) == [Status.ACTIVE] * 3
    new = silo(tmp_path, "new")
    async with asyncio.timeout(DETECTED_S + STARTED_S):
        await new.start()
    try:
        assert new.gateway not in [process.gateway for process in old]
        found = await statuses(tmp_path)
        assert found.pop(new.address) is Status.ACTIVE
        assert list(found.values()) == [Status.DEAD] * 3
        async with connect(new.gateway) as client:
            assert await client.grain(Counter, "a").add() == 2
    finally:
        await new.stop()
    said = (tmp_path / "new.log").read_text()
    assert "waits to join" in said and said.count("waits to join") <= 4


async def test_one_of_two_killed_silos_comes_back_at_its_address_alone(tmp_path: Path) -> None:
    quick = {"heartbeat_s": 0.5, "probe_every_s": 0.2}
    old = [silo(tmp_path, f"old-{number}", **quick) for number in range(2)]
    await count_and_kill(old)
    new = silo(tmp_path, "new", address=old[0].gateway, **quick)
    async with asyncio.timeout(DETECTED_S + STARTED_S):
        await new.start()
    try:
        found = await statuses(tmp_path)
        assert new.gateway == old[0].gateway and found.pop(new.address) is Status.ACTIVE
        assert list(found.values()) == [Status.DEAD] * 2
        async with connect(new.gateway) as client:
            assert await client.grain(Counter, "a").add() == 2
    finally:
        await new.stop()
