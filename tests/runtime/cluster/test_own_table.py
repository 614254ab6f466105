"""A silo follows its own membership table. It ignores copies, claims of peers, and older views."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millstream.runtime import (
    Address,
    ClusterError,
    ConfigError,
    Env,
    Grain,
    Link,
    LocalCluster,
    MemberRow,
    MembershipOptions,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
    Status,
    StorageUnavailable,
    TableView,
    TcpTransport,
)
from millstream.runtime.cluster.limited_table import LimitedTable, SharedReads, why_not_after
from millstream.runtime.cluster.member import Member, MemberTarget
from millstream.runtime.extending import Tasks
from millstream.runtime.testing import (
    FailingTable,
    SiloDeclaredDead,
    SimCluster,
    SimMembershipTable,
    SimService,
    Simulation,
    run,
)

OPTIONS = MembershipOptions()
EVICTED_S = 20.0
A, B = (MemberRow(f"{name}:1@1", Status.ACTIVE, alive_s=1.0) for name in "ab")


class Idle(Grain):
    async def where(self) -> str:
        return self.context.silo


# --- one view after the other --------------------------------------------------------------------


def test_a_view_may_be_newer_and_stamps_may_move_in_any_way() -> None:
    last = TableView(5, (A, B))
    for view in (
        last,
        TableView(5, (B, A)),
        TableView(5, (A, msgspec.structs.replace(B, alive_s=0.5))),
        TableView(6, ()),
    ):
        assert why_not_after(last, 5, view) == ""


def test_a_read_that_began_before_a_change_may_miss_it() -> None:
    assert why_not_after(TableView(7, (A,)), 5, TableView(5, (A, B))) == ""


def test_a_view_that_goes_back_or_contradicts_the_last_one_is_another_tables() -> None:
    last = TableView(5, (A, B))
    assert why_not_after(last, 5, TableView(4, (A, B))) == "has version 4, and had version 5 before"
    for rows in ((A,), (A, B, msgspec.structs.replace(A, silo="c:1@1"))):
        assert (
            why_not_after(last, 5, TableView(5, rows)) == "has other rows in version 5 than before"
        )
    dead = msgspec.structs.replace(B, status=Status.DEAD)
    assert why_not_after(last, 5, TableView(5, (A, dead)))


async def test_a_read_that_misses_a_change_of_this_silo_raises() -> None:
    table = MemoryMembershipTable(5)
    limited = LimitedTable(table)
    before = await limited.read()
    assert await limited.write(A, 5)
    table._view = before
    with pytest.raises(
        StorageUnavailable, match="has version 5, and had version 6 before: the table was restored"
    ):
        await limited.read()
    assert not await limited.write(A, 4)
    table._view = TableView(6, (A,))
    assert (await limited.read()).version == 6


async def test_a_table_that_goes_back_or_contradicts_itself_cannot_be_read_until_mended() -> None:
    table = FailingTable()
    limited = LimitedTable(table)
    views = [TableView(5, (A,)), TableView(7, (A, B))]
    for view in (*views, views[0], TableView(7, (A,)), TableView(7, (B, A))):
        table._view = view
        if view in (views[0], TableView(7, (A,))) and limited._last.version == 7:
            with pytest.raises(
                StorageUnavailable, match="FailingTable (has version 5|has other rows)"
            ):
                await limited.read()
        else:
            assert await limited.read() == view
    await limited.heartbeat(B.silo, 9.5)
    row = table.view().row(B.silo)
    assert row is not None and row.alive_s == 9.5
    assert await limited.forget(A.silo, 7)
    table._view = TableView(7, (B, A))
    with pytest.raises(StorageUnavailable, match="has version 7, and had version 8 before"):
        await limited.read()


async def test_reads_that_end_in_another_order_than_they_began_are_no_step_back() -> None:
    table = MemoryMembershipTable(5)
    limited, gate = LimitedTable(table), asyncio.Event()

    async def late() -> TableView:
        view = table.view()
        await gate.wait()
        return view

    now, table.read = table.read, late  # type: ignore[method-assign]
    reading = asyncio.create_task(limited.read())
    await asyncio.sleep(0)
    table.read = now  # type: ignore[method-assign]
    assert await limited.write(A, 5)
    assert (await limited.read()).version == 6
    gate.set()
    assert (await reading).version == 5
    assert (await limited.read()).version == 6


# --- reads that are shared -----------------------------------------------------------------------


class Reading:
    """Shared reads that end when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.gates: list[asyncio.Future[None]] = []
        loop = asyncio.get_running_loop()
        self.tasks = Tasks(loop, Env(1).new_context)
        self.shared = SharedReads(self._read, self.tasks)

    async def _read(self) -> None:
        self.begun += 1
        gate = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate

    def ask(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.shared.fresh())


async def turns(count: int = 6) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_asks_while_a_read_is_under_way_waits_for_the_next_one() -> None:
    reading = Reading()
    first = [reading.ask() for _ in range(50)]
    await turns()
    assert reading.begun == 1
    later = [reading.ask() for _ in range(50)]
    await turns()
    assert reading.begun == 1
    reading.gates[0].set_result(None)
    await turns()
    assert reading.begun == 2 and all(one.done() for one in first)
    assert not any(one.done() for one in later)
    reading.gates[1].set_result(None)
    await asyncio.gather(*first, *later)
    assert reading.begun == 2
    again = reading.ask()
    await turns()
    assert reading.begun == 3
    reading.gates[2].set_result(None)
    await again


async def test_a_read_that_fails_is_told_to_all_who_wait_for_it_and_to_nobody_else() -> None:
    reading = Reading()
    first = [reading.ask() for _ in range(2)]
    await turns()
    later = reading.ask()
    await turns()
    reading.gates[0].set_exception(StorageUnavailable("no table"))
    for one in first:
        with pytest.raises(StorageUnavailable, match="no table"):
            await one
    await turns()
    reading.gates[1].set_result(None)
    await later


# --- claims of others ----------------------------------------------------------------------------


def member_of(table: MemoryMembershipTable) -> Member:
    loop, env = asyncio.get_running_loop(), Env(1)
    targets: Any = SimpleNamespace(add=lambda target: None)
    return Member(
        A,
        table,
        options=OPTIONS,
        targets=targets,
        transport=TcpTransport(),
        env=env,
        tasks=Tasks(loop, env.new_context),
        lag_s=lambda: 0.0,
        refusals={},
        table_id="00112233aabbccdd",
        evicted=lambda reason: None,
    )


async def test_a_version_that_another_silo_names_is_looked_for_in_the_own_table_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = MemoryMembershipTable(5)
    member = member_of(table)
    target = MemberTarget(member)
    await member.refresh()
    table.replace_row(A, 5)
    await target.gossip(6)
    assert member.view == table.view() and not caplog.records
    await target.gossip(1 << 60)
    assert member.view == table.view()
    (said,) = caplog.messages
    assert (
        said
        == f"a:1@1: another silo has version {1 << 60} of the membership table, but the table has 6"
    )
    table.replace_row(B, 6)
    await member.refresh()  # a version that was not believed does no harm later
    assert member.view.version == 7


async def test_a_version_that_is_known_already_costs_no_read() -> None:
    table = MemoryMembershipTable(5)
    member = member_of(table)
    await member.refresh()
    table.replace_row(A, 5)
    await MemberTarget(member).gossip(5)
    assert member.view.version == 5


async def test_a_joining_silo_is_greeted_only_if_its_row_is_in_the_own_table() -> None:
    table = MemoryMembershipTable(5)
    target = MemberTarget(member_of(table))
    for version in (3, 5, 6, 1 << 60):
        with pytest.raises(ClusterError, match="a:1@1 has no live row of b:1@1"):
            await target.greet(B.silo, version)
    table.replace_row(msgspec.structs.replace(B, status=Status.JOINING), 5)
    assert await target.greet(B.silo, 6) == A.silo
    table.replace_row(msgspec.structs.replace(B, status=Status.DEAD), 6)
    with pytest.raises(ClusterError, match="has no live row"):
        await target.greet(B.silo, 7)


# --- copies --------------------------------------------------------------------------------------


def copied(table: MemoryMembershipTable, ahead: int = 0) -> MemoryMembershipTable:
    """Return a table with the same rows and secret, and with a version that is ahead."""
    copy = MemoryMembershipTable(1)
    copy._view = TableView(table.view().version + ahead, table.view().rows)
    copy.secret(table.secret(b""))
    return copy


def simulate(main: Callable[[Simulation], Awaitable[Any]]) -> Any:
    async def driver(simulation: Simulation) -> Any:
        return await main(simulation)

    return run(driver, 1, max_virtual_s=600.0).result


def stray_silo(
    simulation: Simulation, table: MemoryMembershipTable, options: MembershipOptions = OPTIONS
) -> Silo:
    """Make a silo on host `stray` that follows this table, to be started there."""
    host = simulation.host("stray")
    service = SimService(simulation.network, "copied table")
    return Silo(
        grains=[Idle],
        address="stray:7000",
        insecure=True,
        cluster="sim",
        membership=SimMembershipTable(service, "stray", table, simulation.history),
        stores={"default": MemoryStateStore(private=True)},
        membership_options=options,
        env=simulation.env(host),
        transport=simulation.transport(host),
    )


def dead_of(simulation: Simulation) -> list[str]:
    return [event.silo for _, event in simulation.history.of(SiloDeclaredDead)]


@pytest.mark.parametrize("ahead", [0, 1_000_000])
def test_a_silo_on_a_copy_is_refused_and_a_silo_that_crashes_afterwards_is_evicted(
    ahead: int,
) -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=3, grains=[Idle], membership_options=OPTIONS)
        await cluster.start()
        stray = stray_silo(simulation, copied(cluster.table, ahead))
        started_s = simulation.loop.time()
        wanted = r"stray:7000@\d+ cannot join: its membership table \(SimMembershipTable\) is a cop"
        with pytest.raises(
            ConfigError, match=wanted + r"y of the table of silo-\d:7000@\d+, which is running"
        ):
            await simulation.call(simulation.host("stray"), stray.start())
        assert simulation.loop.time() - started_s < 1.0
        views = {silo.assembly.membership.view.version for silo in cluster.silos()}
        assert views == {cluster.table.view().version}
        crashed = cluster.silos()[-1].address
        simulation.crash(cluster.names[-1])
        cluster.names = cluster.names[:-1]
        await cluster.until_active(EVICTED_S)
        assert dead_of(simulation) == [stray.address, crashed]
        await cluster.close()

    simulate(main)


async def tell(silo: Silo, other: str) -> None:
    """Let one silo tell another its version of the table."""
    member = silo.assembly.membership
    await member.gossip.tell(other, member.view.version)


def test_a_silo_on_a_copy_that_could_not_see_the_others_does_them_no_harm_when_it_can() -> None:
    """The stray takes the others for dead and continues with the copy, as after a restore. The
    others continue, too.
    """

    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=3, grains=[Idle], membership_options=OPTIONS)
        await cluster.start()
        for name in cluster.names:
            simulation.network.partition("stray", name)
        stray = stray_silo(simulation, copied(cluster.table, 1_000_000))
        host = simulation.host("stray")
        await simulation.call(host, stray.start())
        assert len(stray.members()) == 1
        simulation.repair()
        for silo in cluster.silos():  # either side may send first
            await simulation.call(host, tell(stray, silo.address))
            await tell(silo, stray.address)
        await asyncio.sleep(60.0)
        assert len(cluster.silos()) == 3 and cluster.is_whole()
        views = {silo.assembly.membership.view.version for silo in cluster.silos()}
        assert views == {cluster.table.view().version}
        assert len(stray.members()) == 1
        await simulation.call(host, stray.stop())
        await cluster.close()

    simulate(main)


def test_a_silo_on_a_copy_does_not_evict_one_that_lives_and_is_busy() -> None:
    """The loop of the busy silo does not answer for minutes, but its probe thread names its
    table.
    """

    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=1, grains=[Idle], membership_options=OPTIONS)
        await cluster.start()
        (live,) = cluster.silos()
        copy = copied(cluster.table)
        stray = stray_silo(simulation, copy)

        async def connect(address: Address) -> Link:
            await asyncio.Event().wait()
            raise AssertionError

        stray._transport.connect = connect  # type: ignore[method-assign]
        with pytest.raises(ConfigError, match="is a copy of the table of silo-0:7000@"):
            await simulation.call(simulation.host("stray"), stray.start())
        row = copy.view().row(live.address)
        assert row is not None and row.status is Status.ACTIVE
        await cluster.close()

    simulate(main)


def test_a_copy_goes_on_when_all_silos_of_the_original_are_gone() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=3, grains=[Idle], membership_options=OPTIONS)
        await cluster.start()
        backup = copied(cluster.table)
        for name in cluster.names:
            simulation.crash(name)
        stray = stray_silo(simulation, backup)
        host = simulation.host("stray")
        await simulation.call(host, stray.start())
        assert len(stray.members()) == 1
        await simulation.call(host, stray.stop())

    simulate(main)


def test_silos_whose_table_is_set_back_say_so_and_go_on_without_evicting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=3, grains=[Idle], membership_options=OPTIONS)
        await cluster.start()
        view = cluster.table.view()
        cluster.table._view = TableView(view.version - 2, view.rows[:1])
        for silo in cluster.silos():
            await silo.grain(Idle, "a").where()
        simulation.crash("silo-2")
        await asyncio.sleep(60.0)
        assert len(cluster.silos()) == 2 and not dead_of(simulation)
        cluster.table._view = view
        cluster.names = cluster.names[:2]
        await cluster.until_active(EVICTED_S)
        await cluster.close()

    simulate(main)
    wanted = "the table was restored or replaced while silos use it. Stop every silo that uses the"
    assert any(wanted in said for said in caplog.messages)


async def test_silos_of_two_tables_in_one_process_refuse_each_other() -> None:
    async with LocalCluster(silos=2, grains=[Idle]) as cluster:
        table = cluster.silos[0]._table
        assert isinstance(table, MemoryMembershipTable)
        stray = Silo(grains=[Idle], membership=copied(table))
        with pytest.raises(ConfigError, match="is a copy of the table of"):
            await stray.start()
        assert len(cluster.silos[0].members()) == 2
