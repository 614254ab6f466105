"""All silos with copies of a queue are lost for good. Once that is accepted, the queue works again,
and its readers learn of the gap."""

from __future__ import annotations

import asyncio

from tests.providers.ledger.test_recovery_cluster import records

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import (
    LedgerOptions,
    LedgerQueues,
    LedgerTopicOptions,
    RecoveryOptions,
)
from millstream.providers.ledger.inspection import ENDLESS, LossAnswer, RepairTarget
from millstream.providers.ledger.queues.adapter import LedgerAdapter
from millstream.providers.ledger.topic.appending.takeover import LEFT_OUT
from millstream.runtime import Grain, MillstreamError
from millstream.runtime.testing import FailingStore, SimCluster, Simulation, run
from millstream.streams import (
    AdapterHost,
    Event,
    Gap,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    on_gap,
    subscribe,
)

WORDS = StreamNamespace("words", str)
HEARD: list[str] = []
GAPS: list[Gap] = []
LOST_AFTER_S = 20.0
TARGETS: dict[str, RepairTarget] = {}


class Hears(Grain):
    """Takes one event, and no other before the fault is repaired."""

    @subscribe(WORDS)
    async def on_word(self, event: Event[str]) -> None:
        HEARD.append(event.item)
        if event.item == "1":
            await asyncio.sleep(10_000)

    @on_gap(WORDS)
    async def lost(self, gap: Gap) -> None:
        GAPS.append(gap)


class Queues(LedgerQueues):
    """Keeps the `RepairTarget` of each silo, so that the test can call it as an operator."""

    async def open(self, provider: str, host: AdapterHost, /) -> LedgerAdapter:
        adapter = await super().open(provider, host)
        target = host.targets.find(f"{RepairTarget.target_name}/{provider}")
        assert isinstance(target, RepairTarget)
        TARGETS[host.silo_name] = target
        return adapter


def cluster_of(simulation: Simulation, store: FailingStore) -> SimCluster:
    options = LedgerOptions(
        topic=LedgerTopicOptions(retention_s=None),
        recovery=RecoveryOptions(lost_bookie_after_s=LOST_AFTER_S, retry_after_s=30.0),
    )
    return SimCluster(
        simulation,
        silos=3,
        grains=[Hears],
        stores={"default": store},
        streams={
            "default": lambda: PersistentStreams(
                Queues("/ledger/{silo}", options),
                balancer=DeploymentBalancer(),
                mapper=HashRingMapper(queues=1),
            )
        },
    )


async def ask(simulation: Simulation, is_done: bool, ledger: int) -> LossAnswer:
    target = TARGETS["silo-0"]
    act = target.give_up if is_done else target.left
    return await simulation.call(simulation.host("silo-0"), act(ledger, []))


async def publish(cluster: SimCluster, word: str) -> None:
    async with asyncio.timeout(60.0):
        while True:
            try:
                await cluster.silos()[0].stream(WORDS, "k").publish(word)
                return
            except MillstreamError:
                await asyncio.sleep(0.5)


async def lose_all(simulation: Simulation, cluster: SimCluster) -> None:
    """Empty the directories of all silos at once, and restart the silos."""
    for name in cluster.names:
        simulation.kill(name)
        simulation.disk(name).restore("/", {})
    await asyncio.sleep(5.0)
    for name in cluster.names:
        cluster.boot(name)
    await cluster.until_active()


def test_a_queue_whose_ledger_is_lost_with_all_its_bookies_goes_on_behind_it() -> None:
    async def driver(simulation: Simulation) -> None:
        HEARD.clear()
        GAPS.clear()
        store = FailingStore()
        async with cluster_of(simulation, store) as cluster:
            for number in range(1, 11):
                await publish(cluster, str(number))
            await asyncio.sleep(2.0)
            assert HEARD == ["1"]
            await lose_all(simulation, cluster)
            (record,) = await records(store)
            told = await ask(simulation, False, record.ledger)
            assert len(told.away) == 3 and not told.lost
            refused = await ask(simulation, True, record.ledger)
            assert "may return: wait until it is lost" in refused.refusal
            await asyncio.sleep(LOST_AFTER_S + 5)
            told = await ask(simulation, False, record.ledger)
            assert not told.away and len(told.lost) == 3, told
            assert [(one.number, one.is_endless) for one in told.parts] == [(1, True)]
            assert not (await ask(simulation, True, record.ledger)).refusal
            assert HEARD == ["1"]
            await publish(cluster, "11")
            assert (await records(store))[0].lost == ((0, ENDLESS),)
            async with asyncio.timeout(120.0):
                while "11" not in HEARD:
                    await asyncio.sleep(0.1)
        assert HEARD == ["1", "11"]
        (gap,) = GAPS
        assert gap.first is not None and gap.first.seq == 1 + LEFT_OUT

    run(driver, 1)
