"""Reminders in clusters, in virtual time: silos join, stop, crash and are cut off meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from millstream.runtime import (
    ClusterError,
    Grain,
    MemoryReminderTable,
    Occurrence,
    RuntimeOptions,
    grain,
    reminder,
)
from millstream.runtime.definition.reminders import ReminderSchedule
from millstream.runtime.reminders.record import ReminderRecord, make_row
from millstream.runtime.testing import FailingReminderTable, SimCluster, Simulation, run

GRAINS = [f"g{number}" for number in range(24)]
STARTS: list[tuple[float, str, int, datetime]] = []
ENDS: Counter[tuple[str, int]] = Counter()
HANDLER_S = [0.0]
PERIOD_S = 60.0


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    STARTS.clear()
    ENDS.clear()
    HANDLER_S[0] = 0.0
    yield


class Bell(Grain):
    @reminder(every=PERIOD_S)
    async def ring(self, occurrence: Occurrence) -> None:
        now = asyncio.get_running_loop().time()
        STARTS.append((now, self.key, occurrence.number, occurrence.due))
        await asyncio.sleep(HANDLER_S[0])
        ENDS[self.key, occurrence.number] += 1

    @reminder
    async def once(self, occurrence: Occurrence) -> None:
        STARTS.append((asyncio.get_running_loop().time(), self.key, 0, occurrence.due))

    async def wake(self) -> str:
        return self.context.silo

    async def at(self, wall_s: float) -> None:
        await self.context.reminders.set("once", at=datetime.fromtimestamp(wall_s, UTC))

    async def cancel(self, name: str) -> bool:
        return await self.context.reminders.cancel(name)


@grain(reentrant=True)
class OpenBell(Bell):
    """Turns of it overlap."""


def in_cluster(
    main: Callable[[Simulation, SimCluster], Awaitable[None]],
    *,
    cls: type[Bell] = Bell,
    silos: int = 3,
    table: MemoryReminderTable | None = None,
    options: RuntimeOptions | None = None,
    seed: int = 1,
) -> None:
    """Run a test beside a cluster, in virtual time."""

    async def driver(sim: Simulation) -> None:
        async with SimCluster(
            sim, silos=silos, grains=[cls], reminders=table, options=options, skew_s=0.05
        ) as cluster:
            await main(sim, cluster)

    run(driver, seed=seed)


async def wake_all(sim: Simulation, cluster: SimCluster, cls: type[Bell] = Bell) -> None:
    async def program() -> None:
        async with cluster.client(sim.host("client")) as client:
            await asyncio.gather(*(client.grain(cls, key).wake() for key in GRAINS))

    await sim.call(sim.host("client"), program())


async def call(sim: Simulation, cluster: SimCluster, key: str, method: Any, *args: Any) -> Any:
    async def program() -> Any:
        async with cluster.client(sim.host("client")) as client:
            return await getattr(client.grain(Bell, key), method.__name__)(*args)

    return await sim.call(sim.host("client"), program())


def counts() -> Counter[tuple[str, int]]:
    return Counter((key, number) for _, key, number, _ in STARTS)


def repeated() -> list[tuple[str, int]]:
    return [one for one, count in counts().items() if count > 1]


def wanted(periods: int) -> set[tuple[str, int]]:
    return {(key, number) for key in GRAINS for number in range(1, periods + 1)}


def owned(cluster: SimCluster) -> int:
    return sum(silo.reminder_counts().owned_buckets for silo in cluster.silos())


def test_the_silos_of_a_cluster_share_the_deliveries() -> None:
    async def main(sim: Simulation, cluster: SimCluster) -> None:
        await wake_all(sim, cluster)
        await asyncio.sleep(3 * PERIOD_S + 5)
        assert set(counts()) == wanted(3) and not repeated()
        delivered = [silo.reminder_counts().delivered for silo in cluster.silos()]
        assert sum(delivered) == 3 * len(GRAINS) and min(delivered) > 0
        assert owned(cluster) == 1024

    in_cluster(main)


@pytest.mark.parametrize("handler_s", [0.0, 4.0])
@pytest.mark.parametrize("moves", ["join", "stop", "both"])
def test_planned_moves_repeat_nothing_and_lose_nothing(moves: str, handler_s: float) -> None:
    """Orleans: 1J_MultiGrainMultiReminders, and the restart of an owner."""

    async def main(sim: Simulation, cluster: SimCluster) -> None:
        HANDLER_S[0] = handler_s
        await wake_all(sim, cluster)
        for turn in range(2):
            await asyncio.sleep(PERIOD_S - 3.0)
            if moves != "stop":
                cluster.add_silo()
            await asyncio.sleep(2.9)
            if moves != "join":
                await cluster.stop_silo(cluster.names[turn])
            await cluster.until_active()
        await asyncio.sleep(PERIOD_S + 20)
        assert set(counts()) >= wanted(2)
        assert repeated() == []
        assert owned(cluster) == 1024

    in_cluster(main)


def test_a_silo_that_stops_gives_its_deliveries_up_only_when_they_have_ended() -> None:
    async def main(sim: Simulation, cluster: SimCluster) -> None:
        HANDLER_S[0] = 6.0
        await wake_all(sim, cluster)
        await asyncio.sleep(PERIOD_S + 1)  # all handlers run
        assert len(STARTS) == len(GRAINS) and not ENDS
        stopping = sim.spawn(sim.host("client"), cluster.stop_silo(cluster.names[0]))
        await asyncio.sleep(2)
        assert not ENDS
        await stopping
        await asyncio.sleep(30)
        assert set(ENDS) == wanted(1) and not repeated()

    in_cluster(main)


def test_a_silo_that_stops_waits_until_the_rows_have_advanced() -> None:
    table = FailingReminderTable()

    async def main(sim: Simulation, cluster: SimCluster) -> None:
        HANDLER_S[0] = 3.0
        await wake_all(sim, cluster)
        await asyncio.sleep(PERIOD_S + 1)  # all handlers run
        table.fail("upsert", times=len(GRAINS))
        await cluster.stop_silo(cluster.names[0])
        await cluster.until_active()
        await asyncio.sleep(30)
        assert set(ENDS) == wanted(1) and not repeated()

    in_cluster(main, silos=1, table=table)


@pytest.mark.parametrize("cls", [Bell, OpenBell])
def test_a_new_owner_does_not_wait_for_a_delivery_beyond_its_limit(
    cls: type[Bell],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The handler of the former owner never ends, and the occurrences of other grains come."""

    async def main(sim: Simulation, cluster: SimCluster) -> None:
        await wake_all(sim, cluster, cls)
        await asyncio.sleep(PERIOD_S - 2)
        HANDLER_S[0] = 25.0
        await asyncio.sleep(3)
        HANDLER_S[0] = 0.0
        began = sim.loop.time()
        cluster.add_silo()
        await asyncio.sleep(8)
        assert owned(cluster) == 1024 and sim.loop.time() - began < 9
        assert "did not release their reminders within 5 s; it delivers now" in caplog.text
        await asyncio.sleep(PERIOD_S)
        assert not repeated()  # the activation knows that the handler runs, or has run

    in_cluster(main, cls=cls, options=RuntimeOptions(reminder_release_s=5.0))


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_of_a_silo_loses_no_occurrence(seed: int) -> None:
    async def main(sim: Simulation, cluster: SimCluster) -> None:
        HANDLER_S[0] = 2.0
        await wake_all(sim, cluster)
        await asyncio.sleep(PERIOD_S + 1)  # all handlers run
        sim.crash(cluster.names[seed % 3])
        await asyncio.sleep(20)
        cluster.boot(cluster.names[seed % 3])
        await asyncio.sleep(2 * PERIOD_S)
        assert set(ENDS) >= wanted(2)
        assert max(counts().values()) == 2  # those whose silo has crashed
        late = [now - due.timestamp() for now, _, _, due in STARTS]
        assert max(late) - min(late) < 20

    in_cluster(main, seed=seed)


def test_reminders_survive_the_restart_of_every_silo() -> None:
    async def main(sim: Simulation, cluster: SimCluster) -> None:
        await wake_all(sim, cluster)
        await asyncio.sleep(PERIOD_S / 2)
        for name in cluster.names:
            sim.crash(name)
        await asyncio.sleep(10)
        for name in cluster.names:
            cluster.boot(name)
        await asyncio.sleep(2 * PERIOD_S)
        assert set(counts()) >= wanted(2) and not repeated()
        dues = sorted({due.timestamp() for _, key, _, due in STARTS if key == "g0"})
        assert dues[1] - dues[0] == PERIOD_S

    in_cluster(main)


def test_a_silo_that_is_cut_off_repeats_nothing_that_others_have_delivered() -> None:
    async def main(sim: Simulation, cluster: SimCluster) -> None:
        await wake_all(sim, cluster)
        await asyncio.sleep(PERIOD_S - 10)
        name = cluster.names[1]
        sim.pause(name)
        await asyncio.sleep(30)  # it is evicted, and its reminders are delivered
        sim.resume(name)
        await asyncio.sleep(PERIOD_S)
        assert set(counts()) >= wanted(1) and not repeated()

    in_cluster(main)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_starts_after_cancel_whoever_delivers(seed: int) -> None:
    async def main(sim: Simulation, cluster: SimCluster) -> None:
        await wake_all(sim, cluster)
        await asyncio.sleep(PERIOD_S - 1 + seed / 2)
        cancelled: dict[str, float] = {}

        async def program() -> None:
            async with cluster.client(sim.host("client")) as client:
                for key in GRAINS:
                    assert await client.grain(Bell, key).cancel("ring")
                    cancelled[key] = sim.loop.time()
                    await asyncio.sleep(0.05)

        cancelling = sim.spawn(sim.host("client"), program())
        await asyncio.sleep(0.3)
        cluster.add_silo()
        await cancelling
        await asyncio.sleep(3 * PERIOD_S)
        late = [key for now, key, _, _ in STARTS if now > cancelled[key]]
        assert late == []

    in_cluster(main, seed=seed)


def test_a_stale_read_of_the_table_brings_no_cancelled_reminder_back() -> None:
    """Each read for deliveries shows the table as it was before."""

    class Stale(MemoryReminderTable):
        is_stale = False
        before: Any = ()

        def list_due(self, *args: Any) -> Any:
            if not self.is_stale:
                self.before = super().list_due(*args)
            return self.before

    async def main(sim: Simulation, cluster: SimCluster) -> None:
        table = cluster.reminders
        assert isinstance(table, Stale)
        await wake_all(sim, cluster)
        await asyncio.sleep(35)
        table.is_stale = True
        for key in GRAINS[:6]:
            assert await call(sim, cluster, key, Bell.cancel, "ring")
        await asyncio.sleep(3 * PERIOD_S)
        assert not {key for _, key, _, _ in STARTS} & set(GRAINS[:6])
        assert not repeated()

    in_cluster(main, silos=1, table=Stale())


def test_a_reminder_that_is_due_soon_reaches_the_silo_that_delivers_it() -> None:
    async def main(sim: Simulation, cluster: SimCluster) -> None:
        async def program() -> None:
            async with cluster.client(sim.host("client")) as client:
                for key in GRAINS:
                    silo = cluster.silos()[0]
                    await client.grain(Bell, key).at(silo.services.clock.wall_s() + 2)

        await sim.call(sim.host("client"), program())
        await asyncio.sleep(4)
        assert sorted(key for _, key, number, _ in STARTS if not number) == sorted(GRAINS)

    in_cluster(main)


@pytest.mark.parametrize("seed", range(3))
def test_a_table_that_fails_now_and_then_delays_and_loses_nothing(seed: int) -> None:
    table = FailingReminderTable()

    async def main(sim: Simulation, cluster: SimCluster) -> None:
        await wake_all(sim, cluster)
        table._failures._rng = sim.rng
        table.rate = 0.3
        await asyncio.sleep(3 * PERIOD_S)
        table.rate = 0.0
        await asyncio.sleep(45)
        assert set(counts()) >= wanted(3) and not repeated()

    in_cluster(main, table=table, seed=seed)


def test_a_table_outage_during_a_move_is_survived() -> None:
    table = FailingReminderTable()

    async def main(sim: Simulation, cluster: SimCluster) -> None:
        await wake_all(sim, cluster)
        await asyncio.sleep(PERIOD_S - 1)
        table.fail("read", times=60)
        table.fail("upsert", times=60)
        table.fail("due", times=12)
        cluster.add_silo()
        await asyncio.sleep(2 * PERIOD_S)
        assert set(counts()) >= wanted(2) and not repeated()

    in_cluster(main, table=table)


def test_many_overdue_reminders_start_without_a_stampede() -> None:
    """Memory and deliveries stay within their limits, and everything is delivered in the end."""
    many, most = 1_000, Counter[str]()
    options = RuntimeOptions(reminders_loaded_max=100, reminder_deliveries_max=10)

    async def main(sim: Simulation, cluster: SimCluster) -> None:
        silo = cluster.silos()[0]
        start_ms = int(silo.services.clock.wall_s() * 1000)
        schedule = ReminderSchedule(every_ms=3_600_000)
        for number in range(many):
            name, due_ms = f"Bell/{number}", start_ms - (number % 7) * 1000
            record = ReminderRecord(schedule, due_ms - 3_600_000, due_ms)
            cluster.reminders.put(make_row(name, "ring", record), None)
        await asyncio.sleep(25)
        for _ in range(600):
            await asyncio.sleep(0.02)
            for one in cluster.silos():
                found = one.reminder_counts()
                most["loaded"] = max(most["loaded"], found.loaded)
                most["running"] = max(most["running"], found.running)
        assert len(STARTS) == many and not repeated()
        assert most["running"] == 10 and 50 < most["loaded"] <= 100

    in_cluster(main, silos=2, options=options)


def test_a_type_that_only_some_silos_host_is_delivered() -> None:
    class Plain(Grain):
        async def wake(self) -> None: ...

    async def driver(sim: Simulation) -> None:
        lacking = {"silo-0": [Bell]}
        async with SimCluster(
            sim, silos=3, grains=[Bell, Plain], lacking=lacking, skew_s=0.0
        ) as cluster:
            await wake_all(sim, cluster)
            await asyncio.sleep(PERIOD_S + 2)
            assert set(counts()) == wanted(1)
            first = cluster.silo("silo-0")
            assert first is not None and first.reminder_counts().owned_buckets == 0
            assert owned(cluster) == 1024

    run(driver, seed=1)


def test_a_silo_releases_buckets_only_at_the_version_of_the_asking_silo() -> None:
    """Until then it may still believe that it owns them."""

    async def main(sim: Simulation, cluster: SimCluster) -> None:
        silo = cluster.silos()[0]
        target: Any = silo.services.targets.find("$reminders")
        version = silo.services.members.view.version

        async def program() -> None:
            await target.release(version, [(0, 1023)])
            with pytest.raises(ClusterError, match="did not reach version"):
                await target.release(version + 1, [(0, 1023)])

        await sim.call(sim.host("silo-0"), program())

    in_cluster(main, silos=1)


def test_deliveries_begin_only_when_the_silo_is_active_and_end_before_it_leaves() -> None:
    async def main(sim: Simulation, cluster: SimCluster) -> None:
        silo = cluster.silo(cluster.names[0])
        assert silo is not None
        await wake_all(sim, cluster)
        await sim.call(sim.host(cluster.names[0]), silo.stop())
        assert silo.reminder_counts().owned_buckets == 0
        assert silo.reminder_counts().running == 0
        await cluster.until_active()

    in_cluster(main, silos=1)
