"""A client whose gateways were all killed. One gateway restarts, or others start."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.runtime import Grain, MillstreamError, connect, grain
from millstream.runtime.run import SiloProcess, SiloProcesses

pytestmark = pytest.mark.real

MODULE = """
from millstream.runtime import Grain, MembershipOptions, Silo, grain

@grain(name="LostEcho")
class Echo(Grain):
    async def where(self) -> str:
        return self.context.silo

def make(directory, address="127.0.0.1:0"):
    text = f"sqlite:{directory}"
    return Silo(
        grains=[Echo], address=address, membership=text,
        membership_options=MembershipOptions(
            probe_every_s=0.2, probe_timeout_s=1.0, heartbeat_s=1.0, refresh_s=1.0
        ),
    )
"""
FOUND_S = 30.0  # the silo joins after the eviction of the others, and the client asks every 10 s


@grain(name="LostEcho")
class Echo(Grain):
    async def where(self) -> str:
        raise NotImplementedError


MakeSilo = Callable[..., SiloProcess]


@pytest.fixture
def silo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeSilo:
    """A function that makes a silo of one cluster without starting it."""
    (tmp_path / "lost_app.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, **arguments: Any) -> SiloProcess:
        arguments["directory"] = str(tmp_path / "data")
        return SiloProcess("lost_app:make", arguments, tmp_path / f"{name}.log")

    return make


async def where_at_last(echo: Echo) -> str:
    """Return the silo of the grain, once a call succeeds. Raises TimeoutError."""
    async with asyncio.timeout(FOUND_S):
        while True:  # calls fail while the silos join
            try:
                async with asyncio.timeout(1.0):
                    return await echo.where()
            except (MillstreamError, TimeoutError):
                await asyncio.sleep(0.1)


async def test_a_client_that_has_the_table_goes_on_with_four_silos_that_it_never_knew(
    tmp_path: Path, silo: MakeSilo
) -> None:
    async with SiloProcesses([silo(f"old-{number}") for number in range(4)]) as old:
        gateways = [process.gateway for process in old]
        async with connect(*gateways, membership=f"sqlite:{tmp_path / 'data'}") as client:
            echo = client.grain(Echo, "a")
            assert await echo.where() in {process.address for process in old}
            assert len(client.gateways.known) == 4
            await old.kill()
            async with SiloProcesses([silo(f"new-{number}") for number in range(4)]) as new:
                addresses = {process.address for process in new}
                assert await where_at_last(echo) in addresses
                async with asyncio.timeout(FOUND_S):
                    while not set(client.gateways.known) <= addresses:
                        await asyncio.sleep(0.1)


async def test_a_client_goes_on_with_the_one_gateway_that_is_started_again(silo: MakeSilo) -> None:
    async with SiloProcesses([silo(f"old-{number}") for number in range(3)]) as old:
        first, second, _ = old
        async with connect(first.gateway) as client:
            echo = client.grain(Echo, "a")
            await echo.where()
            await old.kill()
            new = silo("new", address=second.gateway)
            starting = asyncio.create_task(new.start())
            try:
                found = await where_at_last(echo)
                await starting
                assert found == new.address
            finally:
                await starting
                await new.stop()
