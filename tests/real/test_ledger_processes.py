"""Silo processes over one ledger: whichever is killed, nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path

import pytest
from tests.real.ledger_kit import ENDS_S, Publisher, check

from millstream.providers.sqlite import SqliteStateStore
from millstream.runtime import connect
from millstream.runtime.run.launcher import SiloProcess, SiloProcesses

pytestmark = pytest.mark.real

MODULE = """
from pathlib import Path
from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.runtime import FAST_DETECTION, Grain, Silo, grain, state
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace, subscribe

NUMBERS = StreamNamespace("numbers", int)

@grain(name="LedgerListener")
class Listener(Grain):
    heard = state(list[int])

    @subscribe(NUMBERS, commit_with=heard)
    async def on_number(self, event: Event[int]) -> None:
        self.heard.value.append(event.item)

    async def numbers(self) -> list[int]:
        return self.heard.value

def make(directory):
    text = f"sqlite:{directory}/rows"
    return Silo(
        grains=[Listener], membership=text, stores={"default": text},
        membership_options=FAST_DETECTION,
        streams={"default": PersistentStreams(
            LedgerQueues(Path(directory) / "ledger"),
            mapper=HashRingMapper(queues=4),
            balancer=DeploymentBalancer(rebalance_delay_s=0.5),
        )},
    )
"""


@pytest.fixture(autouse=True)
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ledger_silo.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))


def silo(tmp_path: Path, name: str) -> SiloProcess:
    arguments = {"directory": str(tmp_path / "data")}
    return SiloProcess("ledger_silo:make", arguments, tmp_path / f"{name}.log")


async def runs_the_bookie(tmp_path: Path) -> str:
    """The address of the silo that runs the bookie, as its row says."""
    store = SqliteStateStore(tmp_path / "data" / "rows")
    try:
        rows = await store.scan("ledger/", "", 1000)
        (row,) = [row for key, row in rows if "/bookies/" in key]
    finally:
        await store.aclose()
    found = [word for word in row.data.split(b"127.0.0.1:")[1:]]
    return "127.0.0.1:" + found[0].split(b"@")[0].decode()


async def test_the_silo_with_the_directory_is_killed_while_others_publish(tmp_path: Path) -> None:
    async with SiloProcesses([silo(tmp_path, f"silo-{n}") for n in range(3)]) as processes:
        address = await runs_the_bookie(tmp_path)
        (victim,) = [one for one in processes if one.address.startswith(address)]
        others = [one.gateway for one in processes if one is not victim]
        async with connect(*others) as client:
            publisher = Publisher(client)
            publishing = asyncio.create_task(publisher.run())
            await publisher.has(200)
            await victim.kill()
            before = publisher.count()
            await publisher.has(before + 200)
            publisher.is_over = True
            await publishing
            assert await runs_the_bookie(tmp_path) != address
            await check(client, [publisher])


async def test_what_was_accepted_is_there_after_every_silo_was_killed(tmp_path: Path) -> None:
    async with SiloProcesses([silo(tmp_path, f"old-{n}") for n in range(2)]) as processes:
        async with connect(*[one.gateway for one in processes]) as client:
            publisher = Publisher(client)
            publishing = asyncio.create_task(publisher.run())
            await publisher.has(300)
            await processes.kill()
            publisher.is_over = True
            await publishing
    new = silo(tmp_path, "new")
    async with asyncio.timeout(ENDS_S):
        await new.start()
    try:
        async with connect(new.gateway) as client:
            await check(client, [publisher])
    finally:
        await new.stop()
