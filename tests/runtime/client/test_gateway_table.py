"""A client with the membership table uses the table to find the cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conditions import until

from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime import (
    Client,
    ConfigError,
    Grain,
    LocalCluster,
    MemberRow,
    MembershipTable,
    MemoryMembershipTable,
    MillstreamError,
    Silo,
    SiloUnavailable,
    Status,
    StorageUnavailable,
    TableView,
    connect,
)
from millstream.runtime.client.gateway_table import GatewayTable, addresses_in
from millstream.runtime.client.list_updates import GATEWAYS_EVERY_S, TABLE_EVERY_S
from millstream.runtime.cluster.limited_table import TABLE_LIMIT_S
from millstream.runtime.testing import Host, SimCluster, SimMembershipTable, Simulation, run

FOUND_S = GATEWAYS_EVERY_S + 5.0
"""The client asks every 10 s, and the first gateways that it asks may not answer."""


class Desk(Grain):
    async def where(self) -> str:
        return self.context.silo


class CountedTable:
    """A table that counts its requests. A test can redirect it to another table."""

    def __init__(self, table: MembershipTable) -> None:
        self.table = table
        self.reads = 0
        self.changes = 0
        self.closed = 0
        self.trouble: list[str] = []

    async def read(self) -> TableView:
        self.reads += 1
        match self.trouble.pop(0) if self.trouble else "":
            case "fails":
                raise StorageUnavailable("the disk is gone")
            case "is odd":
                raise ZeroDivisionError("of a table that somebody wrote")
            case "hangs":
                await asyncio.Event().wait()
        return await self.table.read()

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        self.changes += 1
        return await self.table.write(row, expect_version)

    async def heartbeat(self, silo: str, alive_s: float, /) -> None:
        self.changes += 1

    async def forget(self, silo: str, expect_version: int, /) -> bool:
        self.changes += 1
        return False

    async def identity(self) -> str:
        return await self.table.identity()

    async def aclose(self) -> None:
        self.closed += 1


# --- in virtual time ------------------------------------------------------------------------------

Step = Callable[[Simulation, SimCluster, Client, CountedTable], Awaitable[None]]


def table_of(simulation: Simulation, cluster: SimCluster, host: Host) -> CountedTable:
    """Return the cluster's table as a host sees it."""
    service, history = cluster._table_service, simulation.history
    return CountedTable(SimMembershipTable(service, host.name, cluster.table, history))


def with_table(step: Step, *, is_given: bool = True, silos: int = 4, **cluster: Any) -> None:
    """Run a step with a client that knows the silos, and has the table if `is_given`."""

    async def driver(simulation: Simulation) -> None:
        sim = SimCluster(simulation, silos=silos, grains=[Desk], **cluster)
        await sim.start()
        host = simulation.host("client")
        table = table_of(simulation, sim, host)

        async def program() -> None:
            client = Client(
                [silo.gateway for silo in sim.silos()],
                membership=table if is_given else None,
                cluster="sim",
                env=simulation.env(host),
                transport=simulation.transport(host),
            )
            async with client:
                assert len(client.gateways.known) == silos
                await step(simulation, sim, client, table)

        await simulation.call(host, program())
        await sim.close()

    run(driver, seed=11, max_virtual_s=900.0)


async def replace_all(simulation: Simulation, cluster: SimCluster, is_silent: bool) -> None:
    """Crash every silo, and start as many others elsewhere."""
    names, cluster.names = cluster.names, ()
    for name in names:
        simulation.crash(name, is_silent=is_silent)
    for _ in names:
        cluster.add_silo()
    await cluster.until_active()


async def until_known(client: Client, cluster: SimCluster) -> None:
    """Wait until the client's list has exactly the running silos."""
    while client.gateways.known != sorted(silo.address for silo in cluster.silos()):
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_client_whose_gateways_are_all_gone_finds_the_others_by_the_table(
    is_silent: bool,
) -> None:
    async def step(
        simulation: Simulation, cluster: SimCluster, client: Client, table: CountedTable
    ) -> None:
        await replace_all(simulation, cluster, is_silent)
        async with asyncio.timeout(60.0 if is_silent else FOUND_S):
            await until_known(client, cluster)
        assert await client.grain(Desk, "a").where()
        assert table.changes == 0

    with_table(step)


def test_a_client_that_calls_all_the_time_goes_on_as_soon_as_a_silo_is_active() -> None:
    async def step(
        simulation: Simulation, cluster: SimCluster, client: Client, table: CountedTable
    ) -> None:
        names, cluster.names = cluster.names, ()
        for name in names:
            simulation.crash(name)
        await asyncio.sleep(2 * GATEWAYS_EVERY_S)
        for _ in names:
            cluster.add_silo()
        found: list[str] = []

        async def calls() -> None:
            while not found:
                with suppress(MillstreamError):
                    found.append(await client.grain(Desk, "a").where())

        calling = asyncio.ensure_future(calls())
        await cluster.until_active()
        async with asyncio.timeout(3 * TABLE_EVERY_S):
            await calling

    with_table(step)


def test_a_client_without_the_table_does_not_find_them() -> None:
    async def step(
        simulation: Simulation, cluster: SimCluster, client: Client, table: CountedTable
    ) -> None:
        await replace_all(simulation, cluster, is_silent=False)
        await asyncio.sleep(3 * GATEWAYS_EVERY_S)
        with pytest.raises(SiloUnavailable, match="no gateway answers"):
            await client.grain(Desk, "a").where()
        assert table.reads == 0

    with_table(step, is_given=False)


def test_the_table_is_read_at_the_start_and_not_while_a_gateway_answers() -> None:
    async def step(
        simulation: Simulation, cluster: SimCluster, client: Client, table: CountedTable
    ) -> None:
        assert table.reads == 1
        cluster.add_silo()
        await cluster.until_active()
        simulation.crash("silo-0")
        await asyncio.sleep(5 * GATEWAYS_EVERY_S)
        await client.grain(Desk, "a").where()
        assert table.reads == 1

    with_table(step)


def test_while_no_gateway_answers_the_table_is_read_now_and_then_only() -> None:
    async def step(
        simulation: Simulation, cluster: SimCluster, client: Client, table: CountedTable
    ) -> None:
        names, cluster.names = cluster.names, ()
        for name in names:
            simulation.crash(name)
        before = table.reads
        for number in range(60):  # calls that cannot succeed
            with suppress(MillstreamError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await client.grain(Desk, f"{number}").where()
            await asyncio.sleep(0.1)
        assert 10 <= table.reads - before <= 66 / TABLE_EVERY_S + 1

    with_table(step)


def test_a_table_that_cannot_be_read_for_a_while_is_read_again() -> None:
    async def step(
        simulation: Simulation, cluster: SimCluster, client: Client, table: CountedTable
    ) -> None:
        table.trouble = ["hangs", "fails", "is odd"]
        await replace_all(simulation, cluster, is_silent=False)
        async with asyncio.timeout(2 * (GATEWAYS_EVERY_S + TABLE_LIMIT_S)):
            await until_known(client, cluster)
        assert await client.grain(Desk, "a").where() and not table.trouble

    with_table(step)


# --- at the start ---------------------------------------------------------------------------------


async def test_a_client_needs_no_gateway_where_it_has_the_table() -> None:
    async with LocalCluster(silos=2, grains=[Desk]) as cluster:
        async with connect(membership=cluster._table) as client:
            assert await client.grain(Desk, "a").where()
            assert client.gateways.known == sorted(silo.address for silo in cluster.silos)


async def test_a_given_table_is_left_open_and_unchanged() -> None:
    async with Silo(grains=[Desk], membership=MemoryMembershipTable()) as silo:
        table = CountedTable(silo._table)
        for _ in range(2):
            async with connect(membership=table) as client:
                assert client.gateways.known == [silo.address]
        assert (table.reads, table.changes, table.closed) == (2, 0, 0)


async def test_a_table_in_a_directory_is_named_by_text_and_not_held_open(tmp_path: Path) -> None:
    place = f"sqlite:{tmp_path}"
    async with Silo(grains=[Desk], membership=place, stores={"default": place}) as silo:
        threads = set(threading.enumerate())
        async with connect(membership=place) as client:
            assert await client.grain(Desk, "a").where() == silo.address
            assert set(threading.enumerate()) <= threads


async def test_a_table_that_names_no_silo_is_shown_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        SiloUnavailable,
        match=rf"'dev' answers: membership table SqliteMembershipTable {tmp_path} has no active "
        "silo: start a silo that uses it",
    ):
        async with connect(membership=f"sqlite:{tmp_path}"):
            pass


async def test_a_table_whose_silos_are_gone_is_shown_with_them() -> None:
    table = MemoryMembershipTable()
    silo = Silo(grains=[Desk], membership=table)
    await silo.start()
    await silo.kill()
    with pytest.raises(
        SiloUnavailable, match=rf"no gateway of .* answers.*{silo.gateway}.*MemoryMembershipTable"
    ):
        async with connect(membership=table):
            pass


@pytest.mark.parametrize(
    ("trouble", "words"),
    [("fails", "the disk is gone"), ("is odd", "CountedTable.*cannot be read")],
)
async def test_a_table_that_cannot_be_read_is_an_error_at_the_start(
    trouble: str, words: str
) -> None:
    async with Silo(grains=[Desk]) as silo:
        table = CountedTable(silo._table)
        table.trouble = [trouble]
        client = connect(silo.gateway, membership=table)
        with pytest.raises(StorageUnavailable, match=words):
            await client.__aenter__()
        async with client:  # the client can be opened again
            assert client.gateways.known == [silo.address]


async def test_a_directory_that_cannot_be_used_is_an_error_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=f"{file}"):
        async with connect(membership=f"sqlite:{file}"):
            pass


@pytest.mark.parametrize(
    ("membership", "words"),
    [
        (5, r"connect\(membership=\.\.\.\) is 5; it must be a MembershipTable, or name:argument"),
        (MemoryMembershipTable, "it must be a MembershipTable"),
        ("nowhere:x", "no plug-in of the group millstream.membership is named 'nowhere'"),
        ("sqlite", "'sqlite' needs an argument"),
        ("", "is named ''"),
    ],
)
def test_what_is_no_table_is_refused_when_the_client_is_made(membership: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        connect("127.0.0.1:7700", membership=membership)


def test_a_table_that_is_given_as_a_gateway_is_told_its_argument() -> None:
    with pytest.raises(ConfigError, match=r"connect\(membership='sqlite:data'\)"):
        connect("sqlite:data")
    with pytest.raises(ConfigError, match=r"at least one gateway.*or membership="):
        connect()


# --- other tables ---------------------------------------------------------------------------------


async def test_silos_that_follow_another_table_are_refused_though_they_were_given() -> None:
    async with Silo(grains=[Desk]) as other:
        empty = MemoryMembershipTable()
        with pytest.raises(
            ConfigError,
            match=rf"{other.gateway}: {other.address} follows membership table \w+, not \w+"
            ".* membership table of this client is MemoryMembershipTable",
        ):
            async with connect(other.gateway, membership=empty):
                pass


async def test_a_client_of_a_table_uses_no_silo_of_another_one() -> None:
    async with Silo(grains=[Desk]) as other, Silo(grains=[Desk]) as silo:
        async with connect(other.gateway, membership=silo._table) as client:
            assert client.gateways.known == [silo.address]
            for key in range(20):
                assert await client.grain(Desk, f"{key}").where() == silo.address
            with pytest.raises(SiloUnavailable):
                await client.engine.peers.get(other.gateway).writer.ready()


async def test_a_client_goes_on_when_another_table_was_put_in_its_place() -> None:
    first = Silo(grains=[Desk])
    await first.start()
    table = CountedTable(first._table)
    async with connect(membership=table) as client:
        await first.stop()
        async with Silo(grains=[Desk]) as restored:  # as from a backup, with another identity
            table.table = restored._table
            await until(lambda: client.gateways.known == [restored.address])
            assert await client.grain(Desk, "a").where() == restored.address


async def test_a_copy_of_the_directory_leads_a_client_to_no_silo_of_the_original(
    tmp_path: Path,
) -> None:
    place = f"sqlite:{tmp_path / 'data'}"
    async with Silo(grains=[Desk], membership=place, stores={"default": place}) as silo:
        (tmp_path / "copy").mkdir()
        for file in (tmp_path / "data").iterdir():
            (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
        with pytest.raises(ConfigError, match=f"{silo.address} follows membership table"):
            async with connect(membership=f"sqlite:{tmp_path / 'copy'}"):
                pass


# --- which addresses ------------------------------------------------------------------------------


def test_the_addresses_of_a_view_are_of_active_gateways_the_latest_heartbeat_first() -> None:
    rows = (
        MemberRow("a:1@1", Status.ACTIVE, alive_s=5.0),
        MemberRow("b:1@1", Status.ACTIVE, alive_s=9.0),
        MemberRow("c:1@1", Status.ACTIVE, alive_s=5.0, suspicions=(("b:1@1", 12.0),)),
        MemberRow("d:1@1", Status.JOINING, alive_s=9.0),
        MemberRow("e:1@1", Status.STOPPING, alive_s=9.0),
        MemberRow("f:1@1", Status.DEAD, alive_s=9.0),
        MemberRow("g:1@1", Status.ACTIVE, alive_s=9.0, is_gateway=False),
        MemberRow("a:1@2", Status.ACTIVE, started_s=7.0),
    )
    assert addresses_in(TableView(1, rows)) == ["b:1", "a:1", "c:1"]


async def test_a_table_is_closed_though_its_reading_failed(tmp_path: Path) -> None:
    table = SqliteMembershipTable(tmp_path)
    await table.read()
    await table.aclose()
    (tmp_path / "membership.db").unlink()
    threads = set(threading.enumerate())
    with pytest.raises(StorageUnavailable):
        await GatewayTable(f"sqlite:{tmp_path}").read()
    assert set(threading.enumerate()) <= threads
