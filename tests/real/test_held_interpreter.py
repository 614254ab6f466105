"""C code that holds the interpreter lock also blocks the thread that answers a silo's probes."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path

import pytest

from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime import Grain, Status, TableView, connect, grain
from millstream.runtime.run import SiloProcess, SiloProcesses

pytestmark = pytest.mark.real

MODULE = """
import ctypes
from millstream.runtime import Grain, Silo, grain

KEEPING = ctypes.PyDLL(None)  # calls of it keep the interpreter

@grain(name="HeldKeeper")
class Keeper(Grain):
    async def keep(self, seconds: float) -> str:
        KEEPING.usleep(int(seconds * 1_000_000))
        return self.context.silo

def make(directory):
    return Silo(grains=[Keeper], membership=f"sqlite:{directory}")
"""
EVICTED_S = 12.0


@grain(name="HeldKeeper")
class Keeper(Grain):
    async def keep(self, seconds: float) -> str:
        raise NotImplementedError


@pytest.mark.parametrize(("seconds", "is_evicted"), [(3.0, False), (12.0, True)])
async def test_a_silo_is_evicted_that_keeps_the_interpreter_for_long_and_not_for_three_seconds(
    seconds: float, is_evicted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "held_app.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = {"directory": str(tmp_path / "data")}
    silos = [SiloProcess("held_app:make", arguments, tmp_path / f"{n}.log") for n in range(3)]
    table = SqliteMembershipTable(tmp_path / "data")
    async with SiloProcesses(silos) as (first, *_), connect(first.gateway) as client:
        keeper = client.grain(Keeper, "a")
        home = await keeper.keep(0.0)
        keeping = asyncio.create_task(keeper.keep(seconds))
        try:
            async with asyncio.timeout(EVICTED_S):
                while not (keeping.done() or home in dead_of(await table.read())):
                    await asyncio.sleep(0.1)
            await asyncio.sleep(2.0)  # time for a vote that is under way
            assert (home in dead_of(await table.read())) is is_evicted
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await table.aclose()


def dead_of(view: TableView) -> tuple[str, ...]:
    """Return the silos that the membership table marks dead."""
    return view.with_status(Status.DEAD)
