"""Streams over brokers of other shapes: partitions of its own, single messages, calling back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from tests.conditions import until
from tests.contract.adapters.partitions import (
    PartitionedBroker,
    PartitionedQueues,
    PartitionMapper,
)
from tests.contract.adapters.pushing import PushedQueues, PushingBroker
from tests.contract.adapters.tags import LeasedQueues, LeasingBroker

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    QueueAdapterFactory,
    QueueMapper,
    StreamNamespace,
    subscribe,
)

WORDS = StreamNamespace("words", str)
KEYS = [f"key-{number}" for number in range(12)]
SENT = [str(number) for number in range(20)]
heard: defaultdict[str, list[str]] = defaultdict(list)


class Listener(Grain):
    @subscribe(WORDS)
    async def on_word(self, event: Event[str]) -> None:
        heard[self.key].append(event.item)


@pytest.fixture(autouse=True)
def nothing_heard() -> None:
    heard.clear()


async def carry(
    queues: QueueAdapterFactory, mapper: QueueMapper, is_done: Callable[[], bool]
) -> None:
    """Publish everything, until all of it was heard and the broker knows that."""

    def streams() -> PersistentStreams:
        return PersistentStreams(queues, mapper=mapper, balancer=DeploymentBalancer())

    async with LocalCluster(grains=[Listener], streams={"default": streams}) as cluster:
        for word in SENT:
            for key in KEYS:
                await cluster.stream(WORDS, key).publish(word)
        await until(lambda: all(set(heard[key]) >= set(SENT) for key in KEYS) and is_done())


async def test_events_are_heard_in_order_from_every_partition() -> None:
    broker = PartitionedBroker(partitions=3)
    await carry(PartitionedQueues(broker), PartitionMapper(3), lambda: True)
    assert heard == {key: SENT for key in KEYS}
    assert all(partition.end for partition in broker.partitions)


async def test_a_source_that_only_pushes_is_heard_and_told_of_each_event() -> None:
    broker = PushingBroker()

    def is_done() -> bool:
        return not any(topic.kept for topic in broker.topics.values())

    await carry(PushedQueues(broker, events_max=40), HashRingMapper(queues=2), is_done)
    assert heard == {key: SENT for key in KEYS}


async def test_leased_messages_are_heard_and_settled() -> None:
    """At least once: a lease may run out before its acknowledgement comes."""
    broker = LeasingBroker(capacity=1000)

    def is_done() -> bool:
        return not any(queue.letters for queue in broker.queues.values())

    await carry(LeasedQueues(broker), HashRingMapper(queues=2), is_done)
    assert {key: set(words) for key, words in heard.items()} == {key: set(SENT) for key in KEYS}
