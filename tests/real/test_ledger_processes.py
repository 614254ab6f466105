"""Silo processes over one ledger. No accepted event is lost, whichever process is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.real.ledger_kit import ENDS_S, Publisher, check, process

from millstream.providers.ledger import LedgerQueues
from millstream.providers.sqlite import SqliteStateStore
from millstream.runtime import ConfigError, Silo, connect
from millstream.runtime.run import SiloProcess, SiloProcesses
from millstream.streams import PersistentStreams

pytestmark = pytest.mark.real


def silo(tmp_path: Path, name: str) -> SiloProcess:
    return process(tmp_path, name, ledger="ledger")


async def runs_the_bookie(tmp_path: Path) -> str:
    """Return the address of the silo that runs the bookie, from the bookie's row."""
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


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_directory_beside_a_state_store_in_memory_is_a_warning(
    is_durable: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    provider = PersistentStreams(LedgerQueues(tmp_path / "ledger"))
    stores = {"default": f"sqlite:{tmp_path}/store"} if is_durable else None
    async with Silo(grains=[], streams={"default": provider}, stores=stores):
        pass
    assert ("the state store is in memory" in caplog.text) is not is_durable


async def test_the_advice_for_a_directory_of_a_lost_store_can_be_followed(tmp_path: Path) -> None:
    async def start(directory: str) -> None:
        provider = PersistentStreams(LedgerQueues(tmp_path / directory))
        async with Silo(grains=[], streams={"default": provider}):
            pass

    await start("ledger")
    with pytest.raises(ConfigError, match="its rows are gone; give the silo an empty"):
        await start("ledger")
    await start("another")
