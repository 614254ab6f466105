"""A gateway that hangs: SIGSTOP stops its process, and its connections stay open."""

from __future__ import annotations

import asyncio
import os
import signal
import textwrap
from pathlib import Path

import pytest

from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime import Grain, MillstreamError, SiloUnavailable, Status, connect, grain
from millstream.runtime.run import SiloProcess, SiloProcesses

pytestmark = pytest.mark.real

MODULE = """
from millstream.runtime import Grain, MembershipOptions, Silo, grain

@grain(name="HungEcho")
class Echo(Grain):
    async def where(self) -> str:
        return self.context.silo

def make(directory):
    text = f"sqlite:{directory}"
    return Silo(
        grains=[Echo], membership=text, stores={"default": text},
        membership_options=MembershipOptions(
            probe_every_s=0.2, probe_timeout_s=0.5, heartbeat_s=0.5, refresh_s=1.0
        ),
    )
"""
KEYS = [f"{number}" for number in range(24)]
LATE_S = 1.0
SCHEDULING_S = 1.0  # on a machine that also runs other programs


@grain(name="HungEcho")
class Echo(Grain):
    async def where(self) -> str:
        raise NotImplementedError


async def until_dead(directory: Path, silo: str) -> None:
    table = SqliteMembershipTable(directory)
    try:
        while silo not in (await table.read()).with_status(Status.DEAD):
            await asyncio.sleep(0.02)
    finally:
        await table.aclose()


async def test_calls_to_a_gateway_that_hangs_end_within_a_second_of_its_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hung_app.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    directory = tmp_path / "data"
    silos = [
        SiloProcess("hung_app:make", {"directory": str(directory)}, tmp_path / f"{number}.log")
        for number in range(3)
    ]
    loop = asyncio.get_running_loop()
    async with SiloProcesses(silos) as processes:
        hung = processes[1]
        async with connect(processes[0].gateway) as client:
            homes = {key: await client.grain(Echo, key).where() for key in KEYS}
            os.kill(hung.pid, signal.SIGSTOP)
            try:
                calls = [asyncio.ensure_future(client.grain(Echo, key).where()) for key in KEYS]
                async with asyncio.timeout(20):
                    await until_dead(directory, hung.address)
                    evicted_at = loop.time()
                    outcomes = await asyncio.gather(*calls, return_exceptions=True)
                late_s = loop.time() - evicted_at
                assert late_s < LATE_S + SCHEDULING_S
                failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
                assert failed and {type(error) for error in failed} == {SiloUnavailable}
                lost = [key for key in KEYS if homes[key] == hung.address]
                for key in lost[:3] or KEYS[:3]:
                    async with asyncio.timeout(5):
                        assert await works(client.grain(Echo, key)) != hung.address
            finally:
                os.kill(hung.pid, signal.SIGKILL)
                await hung.wait()


async def works(echo: Echo) -> str:
    """Return the silo of the grain, once another silo has activated it again."""
    while True:
        try:
            return await echo.where()
        except MillstreamError:
            await asyncio.sleep(0.05)
