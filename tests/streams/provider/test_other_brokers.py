"""Streams over other kinds of brokers: with partitions, with single messages, and with
callbacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import pytest
from tests.conditions import until
from tests.contract.adapters.partitions import (
    PartitionedAdapter,
    PartitionedBroker,
    PartitionedQueues,
    PartitionMapper,
)
from tests.contract.adapters.pushing import PushedQueues, PushingBroker
from tests.contract.adapters.tags import LeasedQueues, LeasingBroker

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    AdapterHost,
    Backoff,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    QueueAdapterFactory,
    QueueMapper,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.ownership import brought

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
    """Publish all words, and wait until they were handled and acknowledged."""

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


async def test_a_broker_that_adds_queues_while_running_is_followed_by_every_silo() -> None:
    broker = PartitionedBroker(partitions=2)

    def streams() -> PersistentStreams:
        balancer = DeploymentBalancer(rebalance_delay_s=0.01)
        options = StreamOptions(ownership=OwnershipOptions(poll_s=0.05))
        return PersistentStreams(PartitionedQueues(broker), balancer=balancer, options=options)

    async with LocalCluster(silos=2, grains=[Listener], streams={"default": streams}) as cluster:

        def read() -> set[str]:
            parts = [silo.services.part("default") for silo in cluster.silos]
            return {agent.queue for part in parts for agent in part.manager.agents()}

        async def publish(words: Sequence[str]) -> None:
            for word in words:
                for key in KEYS:
                    await cluster.stream(WORDS, key).publish(word)

        await publish(SENT[:5])
        assert len(broker.partitions) == 2
        broker.add_partition()
        broker.add_partition()
        broker.add_partition()
        await publish(SENT[5:])
        await until(lambda: all(set(heard[key]) >= set(SENT) for key in KEYS))
        await until(lambda: read() == {f"p{number}" for number in range(5)})
    assert all(partition.end for partition in broker.partitions)
    assert {key: sorted(words) for key, words in heard.items()} == {
        key: sorted(SENT) for key in KEYS
    }


async def test_a_mapper_that_is_given_is_used_in_the_place_of_the_adapters() -> None:
    broker = PartitionedBroker(partitions=3)
    await carry(PartitionedQueues(broker), PartitionMapper(1), lambda: True)
    assert [bool(partition.end) for partition in broker.partitions] == [True, False, False]
    assert not broker.watchers


class Moody(PartitionedAdapter):
    """Raises at its second and third call."""

    asked = 0

    def mapper(self, changed: Callable[[], None], /) -> PartitionMapper:
        type(self).asked += 1
        if self.asked in (2, 3):
            raise OSError("the broker does not say")
        return super().mapper(changed)


class MoodyQueues(PartitionedQueues):
    async def open(self, provider: str, host: AdapterHost) -> Moody:
        return Moody(self.broker, host)


async def test_a_broker_that_does_not_say_its_queues_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(brought, "RETRIES", Backoff(0.01, 2, 0.02))
    broker = PartitionedBroker(partitions=1)
    Moody.asked = 0

    def streams() -> PersistentStreams:
        return PersistentStreams(MoodyQueues(broker), balancer=DeploymentBalancer())

    async with LocalCluster(grains=[Listener], streams={"default": streams}) as cluster:
        mapper = cluster.silos[0].services.part("default").mapper
        broker.add_partition()
        await until(lambda: len(mapper.queues()) == 2)
    assert caplog.text.count("could not be updated") == 2
    assert "OSError: the broker does not say" in caplog.text


async def test_a_source_that_only_pushes_is_heard_and_told_of_each_event() -> None:
    broker = PushingBroker()

    def is_done() -> bool:
        return not any(topic.kept for topic in broker.topics.values())

    await carry(PushedQueues(broker, events_max=40), HashRingMapper(queues=2), is_done)
    assert heard == {key: SENT for key in KEYS}


async def test_leased_messages_are_heard_and_settled() -> None:
    """At least once, because a lease may run out before its acknowledgement arrives."""
    broker = LeasingBroker(capacity=1000)

    def is_done() -> bool:
        return not any(queue.letters for queue in broker.queues.values())

    await carry(LeasedQueues(broker), HashRingMapper(queues=2), is_done)
    assert {key: set(words) for key, words in heard.items()} == {key: set(SENT) for key in KEYS}
