"""The start of an explicit subscription: as far back as the provider keeps events, and never beyond
the next event."""

from __future__ import annotations

from collections import defaultdict

import pytest
from tests.conditions import spin, until
from tests.streams.partition_place import PartitionPlace

from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    Event,
    Start,
    StreamNamespace,
    Token,
)

LINES = StreamNamespace("lines", int, subscriptions="explicit")
SEEN: dict[str, list[int]] = defaultdict(list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class Hearer(Grain):
    async def listen(self, start: Start | None = None) -> None:
        await self.stream(LINES, "s").subscribe(self._on_line, start=start)

    async def resume(self, start: Start | None = None) -> None:
        (subscription,) = await self.stream(LINES, "s").subscriptions(self)
        await subscription.resume(start=start)

    async def _on_line(self, event: Event[int]) -> None:
        SEEN[self.key].append(event.item)


async def publish(cluster: LocalCluster, *items: int) -> None:
    for item in items:
        await cluster.stream(LINES, "s").publish(item)


async def has_read(cluster: LocalCluster, count: int) -> None:
    (agent,) = cluster.silos[0].services.part("default").manager.agents()
    await until(lambda: agent.reader.core.read_count >= count)


@pytest.mark.parametrize("start", ["earliest", Token(1, 3)])
async def test_a_new_subscription_begins_with_what_nobody_has_in_a_cache_any_more(
    start: Start,
) -> None:
    async with PartitionPlace([Hearer]).cluster() as cluster:
        await publish(cluster, *range(10))
        await has_read(cluster, 10)
        await spin(50)
        await cluster.grain(Hearer, "a").listen(start)
        await publish(cluster, 10, 11)
        first = 0 if start == "earliest" else 3
        await until(lambda: SEEN["a"] == list(range(first, 12)))
        await publish(cluster, 12)
        await until(lambda: SEEN["a"] == list(range(first, 13)))
        (agent,) = cluster.silos[0].services.part("default").manager.agents()
        assert len(agent.behind) == 0


async def test_one_that_exists_goes_back_and_hears_everything_again_once() -> None:
    async with PartitionPlace([Hearer]).cluster() as cluster:
        await cluster.grain(Hearer, "a").listen()
        await publish(cluster, *range(20))
        await until(lambda: len(SEEN["a"]) == 20)
        await cluster.grain(Hearer, "a").resume("earliest")
        await publish(cluster, 20)
        await until(lambda: len(SEEN["a"]) == 41)
        assert SEEN["a"] == [*range(20), *range(21)]


async def test_what_retention_took_is_left_out_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = PartitionPlace([Hearer])
    async with place.cluster() as cluster:
        await publish(cluster, *range(10))
        await has_read(cluster, 10)
        await place.broker.forget("p0", 5)
        await cluster.grain(Hearer, "a").listen(Token(1, 2))
        await until(lambda: SEEN["a"] == list(range(5, 10)))
        (stats,) = cluster.silos[0].services.part("default").stats()
        assert stats.gaps == 1
        await cluster.grain(Hearer, "b").listen("earliest")
        await until(lambda: SEEN["b"] == list(range(5, 10)))
        assert cluster.silos[0].services.part("default").stats()[0].gaps == 1
    assert f"events of lines/s from {Token(1, 2)} to before {Token(1, 5)} are lost" in caplog.text


@pytest.mark.parametrize("start", [Token(1, 500), Token(7, 0)])
async def test_a_token_that_the_queue_has_not_come_to_is_taken_for_next(
    start: Token, caplog: pytest.LogCaptureFixture
) -> None:
    async with PartitionPlace([Hearer]).cluster() as cluster:
        await publish(cluster, *range(5))
        await cluster.grain(Hearer, "a").listen(start)
        await until(lambda: "should begin at" in caplog.text)
        await publish(cluster, 5, 6)
        await until(lambda: SEEN["a"] == [5, 6])
    assert f"should begin at {start}, but the queue ends at {Token(1, 4)}" in caplog.text


async def test_a_token_that_was_published_and_not_read_yet_is_where_it_begins() -> None:
    async with PartitionPlace([Hearer]).cluster() as cluster:
        await publish(cluster, *range(5))
        token = await cluster.silos[0].stream(LINES, "s").publish(5)
        assert token == Token(1, 5)
        await cluster.grain(Hearer, "a").listen(token)
        await publish(cluster, 6)
        await until(lambda: SEEN["a"] == [5, 6])


async def test_where_it_begins_is_stored_when_subscribe_returns() -> None:
    place = PartitionPlace([Hearer])
    async with place.cluster() as cluster:
        await publish(cluster, *range(30))
        await has_read(cluster, 30)
        provider = cluster.silos[0].services.part("default")
        (agent,) = provider.manager.agents()
        agent.dispatch.pause()  # so that it stays lagging
        await cluster.grain(Hearer, "a").listen("earliest")
        record = await place.record()
        ((stream, subscription),) = [(b.stream, b.subscription) for b in record.listed]
        assert stream.key == "s" and "Hearer" in subscription


async def test_a_new_owner_goes_on_where_one_that_was_behind_is() -> None:
    place = PartitionPlace([Hearer])
    async with place.cluster() as cluster:
        await publish(cluster, *range(30))
        await has_read(cluster, 30)
        (agent,) = cluster.silos[0].services.part("default").manager.agents()
        agent.dispatch.pause()
        await cluster.grain(Hearer, "a").listen(Token(1, 4))
    assert SEEN["a"] == []
    async with place.cluster() as cluster:
        await until(lambda: SEEN["a"] == list(range(4, 30)))
        await publish(cluster, 30)
        await until(lambda: SEEN["a"] == list(range(4, 31)))
        (agent,) = cluster.silos[0].services.part("default").manager.agents()
        await until(lambda: not agent.behind.matters)
