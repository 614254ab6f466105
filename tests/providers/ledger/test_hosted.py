"""Silos of one machine whose ledgers are in one directory."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.providers.ledger.inspection import BookieRecord
from millstream.providers.ledger.metadata.rows import ROW_TRIES_MAX
from millstream.runtime.extending import unseal
from millstream.runtime.testing import FailingStore, SimCluster, Simulation, run
from millstream.streams import PersistentStreams, StreamNamespace

BOOKIES = "ledger/sim/bookies/"
DIRECTORY = "/ledger"
WORDS = StreamNamespace("words", str)


def cluster_on(simulation: Simulation, silos: int, store: FailingStore | None = None) -> SimCluster:
    simulation.share_disk(*(f"silo-{number}" for number in range(silos)))
    return SimCluster(
        simulation,
        silos=silos,
        grains=[],
        stores={"default": store or FailingStore()},
        streams={
            "default": lambda: PersistentStreams(
                LedgerQueues(DIRECTORY), balancer=DeploymentBalancer()
            )
        },
    )


def test_a_disk_that_fails_while_a_silo_starts_is_an_error_of_its_own() -> None:
    async def driver(simulation: Simulation) -> int:
        simulation.disk("silo-0").fail_sync(2)
        async with cluster_on(simulation, 2) as cluster:
            return len(cluster.silos())

    assert run(driver, 1).result == 2


def test_a_silo_that_cannot_start_lets_go_of_the_directory() -> None:
    async def driver(simulation: Simulation) -> int:
        store = FailingStore()
        store.fail("write", BOOKIES, times=ROW_TRIES_MAX)
        async with cluster_on(simulation, 1, store):
            assert store.failed_count == ROW_TRIES_MAX  # the first silo did not start
            await asyncio.sleep(10.0)
            return len(store.range(BOOKIES, "", 10))

    assert run(driver, 1).result == 1


@pytest.mark.spare
def test_a_process_that_hangs_and_keeps_the_lock_is_named_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = "another process has the lock of this directory, but no live silo runs its bookie"

    async def driver(simulation: Simulation) -> None:
        async with cluster_on(simulation, 3) as cluster:
            rows = cluster.stores["default"].range(BOOKIES, "", 10)
            (key, row), *_ = rows
            record = msgspec.msgpack.decode(unseal(key, row.data).content, type=BookieRecord)
            silo = record.silo
            simulation.pause(silo.partition(":")[0])
            await asyncio.sleep(20.0)
            assert text in caplog.text
            said = caplog.text.count(text)
            await asyncio.sleep(120.0)
            assert 0 < caplog.text.count(text) - said <= 6, "two silos say it once a minute"
            simulation.resume(silo.partition(":")[0])
            await cluster.until_active()
            caplog.clear()
            await asyncio.sleep(60.0)
            assert text not in caplog.text

    run(driver, 1)


def test_silos_that_never_run_for_a_minute_do_not_leave_a_segment_each_time() -> None:
    async def driver(simulation: Simulation) -> int:
        store = FailingStore()
        for _ in range(6):
            async with cluster_on(simulation, 1, store) as cluster:
                await cluster.silos()[0].stream(WORDS, "k").publish("a")
                await asyncio.sleep(5.0)
        names = simulation.disk("silo-0").list(DIRECTORY)
        return sum(name.endswith(".seg") for name in names)

    assert run(driver, 1).result <= 2


def test_a_collection_that_cannot_read_its_rows_is_no_bookie_that_cannot_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def driver(simulation: Simulation) -> None:
        store = FailingStore()
        store.fail("scan", "ledger/sim/ledgers/", times=2)  # the scrubber reads the rows, too
        async with cluster_on(simulation, 1, store) as cluster:
            await cluster.silos()[0].stream(WORDS, "k").publish("a")
            await asyncio.sleep(20.0)
            assert store.failed_count == 2

    run(driver, 1)
    said = [text for text in caplog.messages if "/ledger: " in text and "rows of ledgers" in text]
    assert len(said) == 1 and "keeps deleted entries until the rows of ledgers can be" in said[0]
    assert "the bookie cannot run" not in caplog.text
