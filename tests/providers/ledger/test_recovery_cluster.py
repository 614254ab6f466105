"""Silos are lost for good one by one. Their entries are copied to other silos and read there."""

from __future__ import annotations

import asyncio

import pytest
from tests.providers.ledger.clocks import LoopClock

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues, LedgerTopicOptions
from millstream.providers.ledger.inspection import LedgerRecord, LedgerState, RecoveryReport
from millstream.providers.ledger.metadata.ledgers import ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.recovery.report import report_rows
from millstream.runtime import Grain
from millstream.runtime.testing import FailingStore, SimCluster, Simulation, run
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamNamespace

WORDS = StreamNamespace("words", str)
KEYS = ("a", "b", "c", "d")
COPIED_S = 240.0
"""Time in which a silo's crash is detected, waits of 60 s and 30 s pass, and all is copied."""
HEARD: dict[str, list[str]] = {}


class Late(Grain):
    """Receives all events from the earliest one, once it is asked to."""

    async def begin(self, key: str) -> None:
        await self.stream(WORDS, key).subscribe(self._on_word, start="earliest")

    async def _on_word(self, event: Event[str]) -> None:
        HEARD.setdefault(event.item[0], []).append(event.item)


def cluster_of(simulation: Simulation, silos: int, store: FailingStore) -> SimCluster:
    options = LedgerOptions(topic=LedgerTopicOptions(retention_s=None))
    return SimCluster(
        simulation,
        silos=silos,
        grains=[Late],
        stores={"default": store},
        streams={
            "default": lambda: PersistentStreams(
                LedgerQueues("/ledger/{silo}", options),
                balancer=DeploymentBalancer(),
                mapper=HashRingMapper(queues=4),
            )
        },
    )


async def publish(cluster: SimCluster, numbers: range) -> None:
    for number in numbers:
        for key in KEYS:
            await cluster.silos()[0].stream(WORDS, key).publish(f"{key}{number} ")


async def records(store: FailingStore) -> list[LedgerRecord]:
    metadata = Metadata(store, "sim", LoopClock())
    return [record async for record in ledger_rows(metadata).scan()]


async def report(store: FailingStore) -> RecoveryReport:
    metadata = Metadata(store, "sim", LoopClock())
    found = await report_rows(metadata).read("/ledger/{silo}")
    assert found is not None, store.range("ledger/", "", 200)
    return found


def on_disk(simulation: Simulation, silo: str) -> bytes:
    """Return all bytes in the segments of a silo."""
    disk, folder = simulation.disk(silo), f"/ledger/{silo}"
    found = b""
    for name in disk.list(folder):
        if name.endswith(".seg"):
            file = disk.open(f"{folder}/{name}")
            found += file.read_at(0, file.size_bytes)
    return found


def words_in(stored: bytes) -> list[str]:
    """Return the words of the first publication that the stored bytes contain."""
    words = [f"{key}{number} " for number in range(10) for key in KEYS]
    return [word for word in words if word.encode() in stored]


@pytest.mark.slow
def test_after_each_silo_that_is_lost_all_copies_are_made_again() -> None:
    async def driver(simulation: Simulation) -> list[RecoveryReport]:
        HEARD.clear()
        store, said = FailingStore(), []
        async with cluster_of(simulation, 5, store) as cluster:
            await publish(cluster, range(20))
            for round, lost in enumerate(("silo-1", "silo-3"), 1):
                simulation.kill(lost)
                cluster.names = tuple(name for name in cluster.names if name != lost)
                await publish(cluster, range(20 * round, 20 * round + 20))
                await asyncio.sleep(COPIED_S)
                said.append(await report(store))
                gone = {one.bookie for one in said[-1].bookies if one.standing == "lost"}
                assert len(gone) == round, said[-1]
                for record in await records(store):
                    is_last = record.state is not LedgerState.CLOSED
                    for fragment in record.fragments:
                        assert not gone & set(fragment.bookies), (record, gone)
                    assert is_last or record.complete == record.last, record
                    assert record.quorum == (3, 3, 2) and record.claim is None
                disks = [on_disk(simulation, name) for name in cluster.names]
                for number in range(20 * round + 20):
                    for key in KEYS:
                        word = f"{key}{number} ".encode()
                        assert sum(word in disk for disk in disks) >= 3, word
            for key in KEYS:
                await cluster.silos()[0].grain(Late, key).begin(key)
            async with asyncio.timeout(60.0):
                while sum(map(len, HEARD.values())) < 60 * len(KEYS):
                    await asyncio.sleep(0.1)
        return said

    first, second = run(driver, 1).result
    assert first.lacking == second.lacking == 0 and not second.stuck
    assert first.filled > 0 and second.filled > 0
    for key in KEYS:
        assert HEARD[key] == [f"{key}{number} " for number in range(60)]


@pytest.mark.spare
def test_a_silo_that_comes_back_too_late_drops_what_others_have() -> None:
    async def driver(simulation: Simulation) -> list[str]:
        store = FailingStore()
        async with cluster_of(simulation, 4, store) as cluster:
            await publish(cluster, range(10))
            before = words_in(on_disk(simulation, "silo-1"))
            assert len(before) >= 20
            simulation.kill("silo-1")
            await asyncio.sleep(COPIED_S)
            assert (await report(store)).lacking == 0
            cluster.boot("silo-1")
            await cluster.until_active()
            await asyncio.sleep(130.0)  # two rounds of collection
            named = {
                name
                for record in await records(store)
                for fragment in record.fragments
                for name in fragment.bookies
            }
            assert len(named) == 3, "it has nothing any more, and gets new ledgers"
            assert [one.standing for one in (await report(store)).bookies] == ["here"] * 4
            return words_in(on_disk(simulation, "silo-1"))

    left = run(driver, 2).result
    assert len(left) <= 1, "the last frame was written again at the start, and dropped then"
