"""`why(stream)` in clusters: silos and clients learn the cause of a delay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.console.main import main
from millstream.providers.memory import MemoryQueues
from millstream.providers.memory.adapter import MemoryReceiver
from millstream.runtime import ConfigError, Grain, LocalCluster, Silo
from millstream.streams import (
    Backoff,
    CacheLimits,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    QueueMessage,
    StreamNamespace,
    StreamOptions,
    Why,
    dead_letters,
    lagging,
    subscribe,
    why,
)
from millstream.streams.provider import stream_reports

LINES = StreamNamespace("lines", int, subscriptions="implicit")
ALONE = StreamNamespace("alone", int, subscriptions="implicit")
GATE = asyncio.Event()
BACKOFF = DeliveryOptions().backoff


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    global GATE
    GATE = asyncio.Event()
    monkeypatch.setattr(stream_reports, "BETWEEN_S", 0.001)


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        if self.key == "bad":
            raise ValueError("cannot be handled")
        if self.key == "thrice" and event.item in (1, 3) and event.attempt < 3:
            raise ValueError("not yet")
        if self.key.startswith("stuck"):
            await GATE.wait()

    async def ask(self, key: str) -> str:
        return (await why(self, self.stream(LINES, key))).check


def provider(backoff: Backoff = BACKOFF) -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.01),
        options=StreamOptions(
            cache=CacheLimits(events_max=20),
            delivery=DeliveryOptions(retries=1000, backoff=backoff),
        ),
    )


def cluster_of(silos: int = 1) -> LocalCluster:
    return LocalCluster(silos=silos, grains=[Reader], streams={"default": provider})


async def asked(cluster: LocalCluster, key: str) -> Why:
    return await why(cluster, cluster.stream(LINES, key))


async def until_it_says(cluster: LocalCluster, key: str, check: str) -> Why:
    async with asyncio.timeout(20):
        while (found := await asked(cluster, key)).check != check:
            await asyncio.sleep(0)
    return found


async def test_a_stream_that_gets_on_and_one_that_nobody_hears() -> None:
    async with cluster_of(2) as cluster:
        await cluster.stream(LINES, "fine").publish(1)
        found = await until_it_says(cluster, "fine", "nothing")
        assert "lines/fine" in str(found)
        await cluster.stream(ALONE, "k").publish(1)
        async with asyncio.timeout(20):
            while (await why(cluster, cluster.stream(ALONE, "k"))).check != "nobody_subscribes":
                await asyncio.sleep(0)
        assert await cluster.grain(Reader, "x").ask("fine") == "nothing"


async def test_a_handler_that_fails_is_named_with_its_error() -> None:
    async with cluster_of(2) as cluster:
        await cluster.stream(LINES, "bad").publish(1)
        found = await until_it_says(cluster, "bad", "subscription_parked")
        assert "ValueError: cannot be handled" in str(found)
        (one,) = found.reports[1].subscriptions or ()
        assert (one.grain, one.lag_events) == ("Reader/bad", 1) and one.attempts > 0
        assert one.attempts - 1 <= one.retries <= one.attempts


async def test_retries_are_counted_over_all_events_and_are_told_when_nothing_is_undone() -> None:
    def hasty() -> PersistentStreams:
        return provider(Backoff(0.001, 1.0, 0.001))

    async with LocalCluster(silos=1, grains=[Reader], streams={"default": hasty}) as cluster:
        await cluster.stream(LINES, "thrice").publish_many([1, 2, 3])
        agents = cluster.silos[0].services.part("default").manager.agents
        await until(lambda: [one.dispatch.delivered_count for one in agents()] == [3])
        (one,) = (await asked(cluster, "thrice")).reports[1].subscriptions or ()
        assert (one.state, one.retries, one.attempts) == ("idle", 4, 0)


async def test_a_full_cache_names_the_stream_that_holds_it() -> None:
    async with cluster_of() as cluster:
        await cluster.silos[0].stream(LINES, "stuck").publish_many(range(20))
        found = await until_it_says(cluster, "fine", "cache_full")
        assert "of stream lines/stuck" in str(found) and "20 of 20 events" in str(found)
        agent = found.reports[1].agent
        assert agent is not None and (agent.full_count, agent.purged, agent.evicted) == (1, 0, 0)
        assert agent.full_s > 0
        GATE.set()
        await until_it_says(cluster, "stuck", "nothing")
        (stats,) = cluster.silos[0].services.part("default").stats()
        assert (stats.full_count, stats.purged, stats.evicted) == (1, 20, 0)
        assert stats.full_s >= agent.full_s


async def test_a_queue_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(
        self: MemoryReceiver, max_events: int, max_bytes: int, wait_s: float, /
    ) -> Sequence[QueueMessage]:
        raise OSError("the cable is out")

    monkeypatch.setattr(MemoryReceiver, "read", read)
    async with cluster_of() as cluster:
        found = await until_it_says(cluster, "fine", "queue_unreachable")
        assert "MemoryReceiver.read raised OSError: the cable is out" in str(found)


async def test_a_queue_that_no_silo_may_read() -> None:
    async with Silo(grains=[Reader], streams={"default": provider()}, can_own_queues=False) as silo:
        found = await why(silo, silo.stream(LINES, "k"))
        assert found.check == "queue_unowned" and "can_own_queues" in str(found)


async def test_a_provider_that_is_not_there_is_named() -> None:
    other = StreamNamespace("lines", int, provider="other")
    async with cluster_of() as cluster:
        with pytest.raises(ConfigError, match="other"):
            await why(cluster.silos[0], cluster.silos[0].stream(other, "k"))


async def test_the_command_prints_the_sentence_and_the_hops(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_OPERATOR_SECRET", "an operator's secret of this test")
    async with cluster_of() as cluster:
        await cluster.silos[0].stream(LINES, "bad").publish(1)
        await until_it_says(cluster, "bad", "subscription_parked")
        gateway = cluster.silos[0].address.partition("@")[0]
        words = ["why", "--gateway", gateway, "lines", "bad"]
        assert await asyncio.to_thread(main, words) == 0
        out = capsys.readouterr().out
        assert "cannot be handled" in out.splitlines()[0]
        assert "queue-0 (owned" in out and "1 events or" in out
        assert "0 events purged, 0 evicted before lagging subscriptions read them, " in out
        assert "0 times full, for 0.0 s in total" in out
        words[-2:] = ["--provider", "none", "lines", "bad"]
        assert await asyncio.to_thread(main, words) == 1
        assert "none" in capsys.readouterr().err


async def test_asking_does_not_wait_for_a_silo_that_has_gone() -> None:
    async with cluster_of(2) as cluster:
        await cluster.stream(LINES, "fine").publish(1)
        owner = (await until_it_says(cluster, "fine", "nothing")).reports[1].owner
        gone = next(silo for silo in cluster.silos if silo.address == owner)
        other = next(silo for silo in cluster.silos if silo.address != owner)
        await gone.stop()
        await until(lambda: not other.services.members.is_live(owner))
        assert (await why(other, other.stream(LINES, "fine"))).check in ("queue_unowned", "nothing")


async def test_dead_letters_of_a_stream_are_named() -> None:
    def giving_up() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(), options=StreamOptions(delivery=DeliveryOptions(retries=0))
        )

    streams = {"default": giving_up}
    async with LocalCluster(silos=2, grains=[Reader], streams=streams) as cluster:
        assert not (await asked(cluster, "bad")).reports[1].letters
        for item in range(7):
            await cluster.stream(LINES, "bad").publish(item)
        await cluster.stream(LINES, "good").publish(0)
        letters = dead_letters(cluster)
        async with asyncio.timeout(20):
            while len(await letters.list()) < 7:
                await asyncio.sleep(0)
        found = await asked(cluster, "bad")
        first = found.reports[1].letters[0]
        assert first.id == (await letters.list())[0].id and first.attempts == 1
        assert first.error == "ValueError: cannot be handled"
        told = f"Dead letters of the stream: 5 or more. For example, {first.id} was given up after"
        assert told in str(found)
        assert len(found.reports[1].letters) == 5
        for letter in (await letters.list())[2:]:
            await letters.delete(letter.id)
        assert "Dead letters of the stream: 2. For example" in str(await asked(cluster, "bad"))
        assert "Dead letters" not in str(await asked(cluster, "good"))


async def test_the_streams_of_a_namespace_that_are_furthest_behind_are_listed() -> None:
    async with cluster_of(silos=2) as cluster:
        assert await lagging(cluster, "lines") == []
        for count, key in enumerate(("stuck-1", "stuck-2", "stuck-3"), 1):
            for item in range(count):
                await cluster.stream(LINES, key).publish(item)
        await cluster.stream(LINES, "good").publish(0)
        async with asyncio.timeout(20):
            while len(await lagging(cluster, "lines")) != 3:
                await asyncio.sleep(0)
        found = await lagging(cluster.silos[0], "lines")
        lags = [one.lag for one in found]
        assert lags == sorted(lags, reverse=True)
        assert {one.stream.key for one in found} == {"stuck-1", "stuck-2", "stuck-3"}
        assert all("s for the reply of Reader/stuck" in one.reason for one in found)
        assert len(await lagging(cluster, "lines", limit=2)) == 2
        assert await lagging(cluster, "others") == []
        for limit in (0, 1_001):
            with pytest.raises(ConfigError, match="1 to 1,000"):
                await lagging(cluster, "lines", limit=limit)
        GATE.set()
