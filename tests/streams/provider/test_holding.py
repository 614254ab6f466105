"""A queue that is paused by hand: no silo reads it until it is resumed, even a new owner."""

from __future__ import annotations

import asyncio

import pytest
from tests.conditions import spin, until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Conflict, Grain, LocalCluster, MemoryStateStore
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    pause_queue,
    resume_queue,
    subscribe,
    why,
)
from millstream.streams.ownership.queue_pauses import QueuePauseTarget
from millstream.streams.ownership.store import OwnershipStore
from millstream.streams.provider import stream_reports
from millstream.streams.testing import owners, wait_owned

WORDS = StreamNamespace("words", str, subscriptions="implicit")
QUEUE = "queue-0"
heard: list[str] = []
gate = asyncio.Event()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    global gate
    gate = asyncio.Event()
    gate.set()
    heard.clear()
    monkeypatch.setattr(stream_reports, "BETWEEN_S", 0.001)


class Listener(Grain):
    @subscribe(WORDS)
    async def on_word(self, event: Event[str]) -> None:
        heard.append(event.item)
        await gate.wait()


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.01),
        options=StreamOptions(ownership=OwnershipOptions(poll_s=0.02)),
    )


def read_by(cluster: LocalCluster) -> list[str]:
    parts = [silo.services.part("default") for silo in cluster.silos]
    return [agent.queue for part in parts for agent in part.manager.agents()]


async def test_what_is_out_ends_and_nothing_else_is_delivered_until_it_is_resumed() -> None:
    async with LocalCluster(grains=[Listener], streams={"default": provider}) as cluster:
        stream = cluster.stream(WORDS, "a")
        gate.clear()
        await stream.publish("one")
        await until(lambda: heard == ["one"])
        await stream.publish("two")
        await pause_queue(cluster, QUEUE)
        await pause_queue(cluster, QUEUE)
        gate.set()
        await until(lambda: not read_by(cluster))
        await stream.publish("three")
        await spin(200)
        assert heard == ["one"]
        found = await why(cluster, stream)
        assert found.check == "queue_paused" and "`resume_queue`" in str(found)
        await resume_queue(cluster, QUEUE)
        await until(lambda: heard == ["one", "two", "three"])
        assert (await why(cluster, stream)).check == "nothing"


async def test_silos_pause_queues_too_and_an_unknown_one_is_named() -> None:
    async with LocalCluster(grains=[Listener], streams={"default": provider}) as cluster:
        (silo,) = cluster.silos
        await pause_queue(silo, QUEUE)
        await until(lambda: not read_by(cluster))
        for program in (silo, cluster):
            with pytest.raises(ConfigError, match="no queue queue-7; its queues are queue-0 to"):
                await pause_queue(program, "queue-7")
        await resume_queue(silo, QUEUE)
        await until(lambda: read_by(cluster) == [QUEUE])


def test_a_pause_outlives_owners_and_is_not_told_of_as_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(simulation, silos=3, grains=[Listener], streams={"default": provider})
        await cluster.start()
        owner = (await wait_owned(cluster))[QUEUE]
        host = simulation.host("client")

        async def program() -> None:
            async with cluster.client(host, is_operator=True) as client:
                await client.stream(WORDS, "a").publish("one")
                await pause_queue(client, QUEUE)

        await simulation.call(host, program())
        simulation.crash(owner)  # perhaps during its hand-over
        await asyncio.sleep(40.0)
        assert owners(cluster) == {}
        cluster.boot(owner)
        await asyncio.sleep(10.0)
        assert owners(cluster) == {}
        assert "no silo has read" not in caplog.text

        async def go_on() -> None:
            async with cluster.client(host, is_operator=True) as client:
                await resume_queue(client, QUEUE)

        await simulation.call(host, go_on())
        await wait_owned(cluster)
        await cluster.close()

    run(main, 1, max_virtual_s=300.0)


class Busy(MemoryStateStore):
    """Raises a conflict twice, as if another silo were faster."""

    conflicts = 2

    async def write(self, key, data, expect, fence, /):  # type: ignore[no-untyped-def]
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict("another silo was faster")
        return await super().write(key, data, expect, fence)


async def test_a_record_that_changes_meanwhile_is_read_again() -> None:
    store, told = Busy(), list[str]()
    records = OwnershipStore(store, "p")
    target = QueuePauseTarget("p", records, lambda: [QUEUE], told.append)
    await target.hold(QUEUE, True)
    stored = await records.read(QUEUE)
    assert stored is not None and stored.record.is_held and stored.record.epoch == 0
    await target.hold(QUEUE, False)
    stored = await records.read(QUEUE)
    assert stored is not None and not stored.record.is_held
    assert told == [QUEUE, QUEUE] and store.conflicts == 0
