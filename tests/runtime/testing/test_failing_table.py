"""A table that fails when a test says so, or at random by a seed. A cluster survives that."""

from __future__ import annotations

import asyncio

import pytest

from millstream.runtime import (
    ConfigError,
    Grain,
    MemberRow,
    Status,
    StorageUnavailable,
    TableView,
)
from millstream.runtime.cluster.limited_table import TABLE_LIMIT_S, LimitedTable
from millstream.runtime.testing import (
    FailingTable,
    SiloDeclaredDead,
    SimCluster,
    Simulation,
    check_views,
    make_random,
    run,
)

A, B = (MemberRow(f"{name}:1@1", Status.JOINING) for name in "ab")


class Idle(Grain): ...


def test_what_was_said_fails_and_nothing_else() -> None:
    table = FailingTable()
    version = table.view().version
    table.fail("write", "a:", times=2)
    assert table.replace_row(B, version)
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="write of 'a:1@1' has not happened"):
            table.replace_row(A, version + 1)
    assert table.view().row(A.silo) is None
    table.fail("write", is_done=True)
    with pytest.raises(StorageUnavailable, match="has happened, but its answer is lost"):
        table.replace_row(A, version + 1)
    assert table.view().row(A.silo) == A
    for act in ("read", "heartbeat", "forget"):
        table.fail(act)
    with pytest.raises(StorageUnavailable):
        table.view()
    with pytest.raises(StorageUnavailable):
        table.stamp(A.silo, 5.0)
    with pytest.raises(StorageUnavailable):
        table.drop(A.silo, version + 2)
    assert table.view().row(A.silo) == A and table.failed_count == 6
    with pytest.raises(ConfigError, match="times=0"):
        table.fail("read", times=0)


def test_chance_is_the_seeds_and_ends_when_it_is_told() -> None:
    def failures(seed: int) -> list[int]:
        table = FailingTable(make_random(seed, "table"), rate=0.3)
        failed = []
        for number in range(200):
            try:
                table.view()
            except Exception:
                failed.append(number)
        table.rate = 0.0
        table.view()
        assert table.failed_count == len(failed) > 20
        return failed

    assert failures(1) == failures(1) != failures(2)
    with pytest.raises(ConfigError, match="pass 0 to 1"):
        FailingTable(rate=0.5)


@pytest.mark.parametrize("act", ["heartbeat", "read"])
def test_a_silo_goes_on_after_a_call_that_is_never_answered(act: str) -> None:
    """The silo must go on stamping its row and reading the table."""

    async def main(simulation: Simulation) -> None:
        table = FailingTable()
        async with SimCluster(simulation, silos=2, grains=[Idle], membership=table):
            table.fail(act, times=4, hangs=True)  # type: ignore[arg-type]
            await asyncio.sleep(60.0)
            assert table.failed_count == 4
            before = {row.silo: row.alive_s for row in table.view().rows}
            reads = count_reads(table)
            await asyncio.sleep(60.0)
            assert all(row.alive_s > before[row.silo] for row in table.view().rows)
            assert len(reads) >= 4

    run(main, 1)


def count_reads(table: FailingTable) -> list[None]:
    view, reads = table.view, list[None]()

    def counted() -> object:
        reads.append(None)
        return view()

    table.view = counted  # type: ignore[method-assign, assignment]
    return reads


async def test_a_table_that_hangs_is_unavailable_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hung(FailingTable):
        async def read(self) -> TableView:
            await asyncio.Event().wait()
            return self.view()

    monkeypatch.setattr("millstream.runtime.cluster.limited_table.TABLE_LIMIT_S", 0.01)
    with pytest.raises(StorageUnavailable, match="did not answer `read` within 0.01 s"):
        await LimitedTable(Hung()).read()
    assert TABLE_LIMIT_S == 5.0


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(s, marks=pytest.mark.slow) for s in (3, 4))])
def test_views_agree_and_silos_join_and_leave_beside_a_table_that_fails(seed: int) -> None:
    async def main(simulation: Simulation) -> int:
        table = FailingTable(simulation.rng, rate=0.1)
        async with SimCluster(simulation, silos=3, grains=[Idle], membership=table) as cluster:
            simulation.crash("silo-1")
            lost = [row.silo for row in table_rows(cluster) if row.silo.startswith("silo-1:")]
            await asyncio.sleep(20.0)
            cluster.boot("silo-1")
            cluster.add_silo()
            await asyncio.sleep(30.0)
            table.rate = 0.0
            await cluster.until_settled(calm_s=10.0)
            dead = {event.silo for _, event in simulation.history.of(SiloDeclaredDead)}
            assert set(lost) <= dead
        assert check_views(simulation.history) == []
        return table.failed_count

    assert run(main, seed).result > 5


def table_rows(cluster: SimCluster) -> tuple[MemberRow, ...]:
    silos = cluster.silos()
    return silos[0].assembly.membership.view.rows
