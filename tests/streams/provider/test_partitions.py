"""Streams over a broker that decides the partitions: its numbers, its mapper, no position."""

from __future__ import annotations

from collections import defaultdict

import pytest
from tests.conditions import until
from tests.contract.adapters.partitions import (
    PartitionedBroker,
    PartitionedQueues,
    PartitionMapper,
)

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, LocalCluster
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe

WORDS = StreamNamespace("words", str)
KEYS = [f"key-{number}" for number in range(12)]
heard: defaultdict[str, list[str]] = defaultdict(list)


class Listener(Grain):
    @subscribe(WORDS)
    async def on_word(self, event: Event[str]) -> None:
        heard[self.key].append(event.item)


@pytest.fixture(autouse=True)
def nothing_heard() -> None:
    heard.clear()


async def test_events_are_heard_in_order_from_every_partition() -> None:
    broker = PartitionedBroker(partitions=3)

    def streams() -> PersistentStreams:
        queues, mapper = PartitionedQueues(broker), PartitionMapper(3)
        return PersistentStreams(queues, mapper=mapper, balancer=DeploymentBalancer())

    words = [str(number) for number in range(20)]
    async with LocalCluster(grains=[Listener], streams={"default": streams}) as cluster:
        for word in words:
            for key in KEYS:
                await cluster.stream(WORDS, key).publish(word)
        await until(lambda: all(len(heard[key]) >= len(words) for key in KEYS))
    assert heard == {key: words for key in KEYS}
    assert [partition.end for partition in broker.partitions].count(0) == 0
