"""A stream that is paused as a whole: all its subscriptions wait, and no other stream does."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from tests.conditions import spin, until
from tests.streams.provider.handled import BAD, GATES, SEEN, forget, handle

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster, MemoryStateStore, NotHosted
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    dead_letters,
    pause_stream,
    resume_stream,
    subscribe,
    why,
)
from millstream.streams.agent.audience.stream_entry import AT_ONCE
from millstream.streams.api.rendezvous import rendezvous_key
from millstream.streams.api.subscription_rows import WHOLE_STREAM, row_key
from millstream.streams.provider import stream_reports
from millstream.streams.testing import wait_owned

LINES = StreamNamespace("lines", int)
MARKED = StreamNamespace("marked", int, subscriptions="implicit")
TOPICS = {"lines": LINES, "marked": MARKED}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    monkeypatch.setattr(stream_reports, "BETWEEN_S", 0.001)


class Marked(Grain):
    @subscribe(MARKED)
    async def on_marked(self, event: Event[int]) -> None:
        await handle(f"marked {self.key}", event.item)


class Hearer(Grain):
    async def listen(self, stream: str = "s", start: Literal["", "next", "earliest"] = "") -> None:
        topic = self.stream(LINES, stream)
        await topic.subscribe(self._on_line, start=start or None)

    async def _on_line(self, event: Event[int]) -> None:
        await handle(f"lines {self.key}", event.item)


def provider(reconcile_s: float = 60.0) -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.0),
        options=StreamOptions(
            delivery=DeliveryOptions(retries=0, max_batch=1),
            ownership=OwnershipOptions(max_handoff_s=0.0),
            reconcile_s=reconcile_s,
        ),
    )


def cluster_of(silos: int = 1, store: MemoryStateStore | None = None) -> LocalCluster:
    return LocalCluster(
        silos=silos,
        grains=[Marked, Hearer],
        streams={"default": provider},
        stores={"default": store or MemoryStateStore()},
    )


async def listen(cluster: LocalCluster, topic: str) -> str:
    """Subscribe; return the key under which the events are seen."""
    if topic == "lines":
        await cluster.grain(Hearer, "s").listen()
    return f"{topic} s"


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("topic", TOPICS)
async def test_a_paused_stream_waits_with_all_its_subscriptions_and_no_other_does(
    topic: str, warm: bool
) -> None:
    async with cluster_of() as cluster:
        who = await listen(cluster, topic)
        await cluster.grain(Hearer, "other").listen("other")
        stream = cluster.stream(TOPICS[topic], "s")
        if warm:
            await stream.publish(0)
            await until(lambda: SEEN[who] == [0])
        await pause_stream(cluster, TOPICS[topic], "s")
        await pause_stream(cluster, TOPICS[topic], "s")
        await stream.publish_many([1, 2, 3])
        await cluster.stream(LINES, "other").publish(7)
        await until(lambda: SEEN["lines other"] == [7])
        await spin(300)
        assert SEEN[who] == [0] * warm
        found = await why(cluster, stream)
        assert found.check == "stream_paused" and "`resume_stream`" in str(found)
        assert found.reports[1].is_paused
        await resume_stream(cluster, TOPICS[topic], "s")
        await resume_stream(cluster, TOPICS[topic], "s")
        await stream.publish(4)
        await until(lambda: SEEN[who] == [0] * warm + [1, 2, 3, 4])
        assert (await why(cluster, stream)).check == "nothing"


@pytest.mark.parametrize("topic", TOPICS)
async def test_the_handler_that_runs_ends_and_none_begins_after_the_pause(topic: str) -> None:
    GATES[0] = asyncio.Event()
    async with cluster_of() as cluster:
        who = await listen(cluster, topic)
        await cluster.stream(TOPICS[topic], "s").publish_many([0, 1])
        await until(lambda: SEEN[f"{who} begins"] == [0])
        await pause_stream(cluster.silos[0], TOPICS[topic], "s")
        GATES[0].set()
        await until(lambda: SEEN[who] == [0])
        await spin(300)
        assert SEEN[f"{who} begins"] == [0]
        await resume_stream(cluster.silos[0], TOPICS[topic], "s")
        await until(lambda: SEEN[who] == [0, 1])


@pytest.mark.parametrize("topic", TOPICS)
async def test_a_pause_holds_for_the_next_owner_and_no_listing_shows_it(topic: str) -> None:
    async with cluster_of(2) as cluster:
        who = await listen(cluster, topic)
        stream = cluster.stream(TOPICS[topic], "s")
        await stream.publish(0)
        await until(lambda: SEEN[who] == [0])
        await pause_stream(cluster, TOPICS[topic], "s")
        await stream.publish_many([1, 2])
        await cluster.silos[0].stop()
        await stream.publish(3)
        await spin(500)
        assert SEEN[who] == [0]
        assert [one.state for one in await stream.subscriptions()] == ["active"]
        await resume_stream(cluster, TOPICS[topic], "s")
        await until(lambda: SEEN[who] == [0, 1, 2, 3])


@pytest.mark.parametrize("start", ["", "next", "earliest"])
async def test_who_subscribes_to_a_paused_stream_waits_wherever_it_begins(
    start: Literal["", "next", "earliest"],
) -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(LINES, "s")
        await stream.publish(0)
        await pause_stream(cluster, LINES, "s")
        await cluster.grain(Hearer, "s").listen(start=start)
        await stream.publish(1)
        async with stream.consume(name="audit") as events:
            waiting = asyncio.create_task(anext(events))
            await stream.publish(2)
            await spin(300)
            assert SEEN["lines s begins"] == [] and not waiting.done()
            await resume_stream(cluster, LINES, "s")
            assert (await waiting).item == 2
        wanted = [0, 1, 2] if start == "earliest" else [1, 2]
        await until(lambda: SEEN["lines s"] == wanted)


async def test_resuming_the_stream_ends_no_pause_of_one_and_the_reverse() -> None:
    async with cluster_of() as cluster:
        stream = cluster.stream(LINES, "s")
        for key in ("a", "b"):
            await cluster.grain(Hearer, key).listen()
        one, other = await stream.subscriptions()
        names = {one.consumer: one, other.consumer: other}
        await names["Hearer/a"].pause()
        await pause_stream(cluster, LINES, "s")
        await stream.publish(1)
        found = (await why(cluster, stream)).reports[1].subscriptions
        assert found is not None
        assert {one.grain: one.state for one in found} == {
            "Hearer/a": "paused",
            "Hearer/b": "stream_paused",
        }
        await names["Hearer/b"].resume()
        await names["Hearer/b"].resume(start="earliest")
        await spin(300)
        assert SEEN["lines a"] == SEEN["lines b"] == []
        await resume_stream(cluster, LINES, "s")
        await until(lambda: SEEN["lines b"] == [1])
        await spin(300)
        assert SEEN["lines a"] == []
        await names["Hearer/a"].resume()
        await until(lambda: SEEN["lines a"] == [1])


async def test_an_event_that_fails_while_the_stream_is_paused_is_given_up_and_the_next_waits() -> (
    None
):
    BAD.add(0)
    GATES[0] = asyncio.Event()
    async with cluster_of() as cluster:
        await listen(cluster, "lines")
        await cluster.stream(LINES, "s").publish_many([0, 1])
        await until(lambda: SEEN["lines s begins"] == [0])
        await pause_stream(cluster, LINES, "s")
        GATES[0].set()
        letters = dead_letters(cluster)
        while not await letters.list():
            await spin(10)
        await spin(300)
        assert SEEN["lines s begins"] == [0]
        await resume_stream(cluster, LINES, "s")
        await until(lambda: SEEN["lines s"] == [1])


async def test_very_many_subscriptions_are_paused_and_go_on() -> None:
    count = AT_ONCE * 2 + 1
    async with cluster_of() as cluster:
        grains = [cluster.grain(Hearer, str(number)) for number in range(count)]
        await asyncio.gather(*(grain.listen() for grain in grains))
        stream = cluster.stream(LINES, "s")
        await stream.publish(0)
        await until(lambda: len(SEEN) == 2 * count)
        await pause_stream(cluster, LINES, "s")
        await stream.publish(1)
        await spin(500)
        assert all(seen == [0] for seen in SEEN.values())
        await resume_stream(cluster, LINES, "s")
        await until(lambda: all(seen == [0, 1] for seen in SEEN.values()))


async def test_a_pause_that_is_stored_and_was_not_told_is_found_and_so_is_the_reverse(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore()
    cluster = LocalCluster(
        grains=[Hearer],
        streams={"default": lambda: provider(reconcile_s=0.01)},
        stores={"default": store},
    )
    async with cluster:
        await listen(cluster, "lines")
        stream = cluster.stream(LINES, "s")
        await stream.publish(0)
        await until(lambda: SEEN["lines s"] == [0])
        await pause_stream(cluster, LINES, "s")
        key = row_key(rendezvous_key("default", stream.id), WHOLE_STREAM)
        row = await store.read(key)
        assert row is not None
        await store.clear(key, row.etag, row.fence)
        await stream.publish(1)
        await until(lambda: SEEN["lines s"] == [0, 1])
        assert "is not paused any more" in caplog.text
        await store.write(key, row.data, None, row.fence)
        await until(lambda: "is paused, but received events" in caplog.text)
        await stream.publish(2)
        await spin(300)
        assert SEEN["lines s"] == [0, 1]


def test_a_pause_outlives_crashes_of_every_silo() -> None:
    async def main(simulation: Simulation) -> None:
        cluster = SimCluster(
            simulation, silos=3, grains=[Marked, Hearer], streams={"default": provider}
        )
        await cluster.start()
        host = simulation.host("client")

        async def begin() -> None:
            async with cluster.client(host, is_operator=True) as client:
                await client.grain(Hearer, "s").listen()
                for topic in TOPICS.values():
                    await pause_stream(client, topic, "s")
                    await client.stream(topic, "s").publish_many([1, 2])

        await simulation.call(host, begin())
        for _ in range(3):
            owner = (await wait_owned(cluster))["queue-0"]
            simulation.crash(owner)
            await asyncio.sleep(40.0)
            cluster.boot(owner)
            await asyncio.sleep(10.0)
        assert not any(SEEN.values())

        async def go_on() -> None:
            async with cluster.client(host, is_operator=True) as client:
                for topic in TOPICS.values():
                    await client.stream(topic, "s").publish(3)
                await asyncio.sleep(5.0)
                assert not any(SEEN.values())
                for topic in TOPICS.values():
                    await resume_stream(client, topic, "s")

        await simulation.call(host, go_on())
        await asyncio.sleep(5.0)
        assert SEEN["lines s"][-1] == SEEN["marked s"][-1] == 3
        await cluster.close()

    run(main, 1, max_virtual_s=600.0)


async def test_a_provider_that_is_not_there_is_named() -> None:
    elsewhere = StreamNamespace("lines", int, provider="elsewhere")
    async with cluster_of() as cluster:
        for pause_or_resume in (pause_stream, resume_stream):
            with pytest.raises(NotHosted, match="elsewhere"):
                await pause_or_resume(cluster, elsewhere, "s")
