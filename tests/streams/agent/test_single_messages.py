"""A provider of single messages: read as fast as handled, acknowledged one by one, redelivered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.conditions import spin, until
from tests.contract.adapters import tags
from tests.contract.adapters.tags import (
    LeasedAdapter,
    LeasedQueues,
    LeasedReceiver,
    LeasingBroker,
)

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Grain, LocalCluster
from millstream.runtime.testing import SimCluster, Simulation, run
from millstream.streams import (
    AdapterHost,
    Event,
    FlowOptions,
    HashRingMapper,
    PersistentStreams,
    QueueId,
    QueueMessage,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)

LINES = StreamNamespace("lines", str, subscriptions="implicit")
SEEN: Counter[str] = Counter()
GATE = asyncio.Event()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    global GATE
    GATE = asyncio.Event()  # belongs to the loop of one test
    GATE.set()
    SEEN.clear()
    monkeypatch.setattr(tags, "LEASE_S", 60.0)


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        await GATE.wait()
        SEEN[event.item] += 1


class Failing(LeasedQueues):
    """Lets each third read fail after it has taken messages."""

    def __init__(self, broker: LeasingBroker) -> None:
        super().__init__(broker)
        self.reads = 0
        self.every = 3
        self.acked: list[bytes] = []
        self.given = 0

    async def open(self, provider: str, host: AdapterHost) -> LeasedAdapter:
        return FailingAdapter(self, self.broker, host)


class FailingAdapter(LeasedAdapter):
    def __init__(self, queues: Failing, broker: LeasingBroker, host: AdapterHost) -> None:
        super().__init__(broker, host)
        self.queues = queues

    def receiver(self, queue: QueueId, epoch: int) -> LeasedReceiver:
        return FailingReceiver(self.queues, self._broker.queue(queue))


class FailingReceiver(LeasedReceiver):
    def __init__(self, queues: Failing, queue: Any) -> None:
        super().__init__(queue)
        self.queues = queues

    async def read(self, max_events: int, max_bytes: int, wait_s: float) -> Sequence[QueueMessage]:
        found = await super().read(min(max_events, 5), max_bytes, wait_s)
        self.queues.reads += 1
        if self.queues.every and self.queues.reads % self.queues.every == 0:
            raise ValueError("the connection is lost")
        self.queues.given += len(found)
        return found

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None:
        assert upto is None and also
        for token in also:
            letter = self._channel.unsettled.get(token.seq)
            if token.era == self._channel.serial and letter is not None:
                self.queues.acked += letter.out.items
        await super().ack(upto, also)


def provider_of(queues: Failing) -> Callable[[], PersistentStreams]:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            queues,
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.01),
            options=StreamOptions(
                read_retry_s=0.001,
                read_wait_s=0.01,
                calls_out_max=8,
                flow=FlowOptions(ack_every_s=0.0),
            ),
        )

    return provider


def cluster_of(queues: Failing) -> LocalCluster:
    return LocalCluster(silos=1, grains=[Reader], streams={"default": provider_of(queues)})


async def test_nothing_is_lost_and_nothing_acknowledged_before_it_is_handled() -> None:
    broker = LeasingBroker()
    queues = Failing(broker)
    async with cluster_of(queues) as cluster:
        wanted = [f"line-{number}" for number in range(100)]
        for text in wanted:
            await cluster.stream(LINES, text[-1]).publish(text)
        await until(lambda: not broker.queue("queue-0").letters)
        assert set(SEEN) == set(wanted)
        codec = LINES.codec
        assert Counter(codec.decode(item, None) for item in queues.acked) <= SEEN


async def test_what_runs_while_its_receiver_is_replaced_is_not_acknowledged() -> None:
    broker = LeasingBroker()
    queues = Failing(broker)
    queues.every = 0
    async with cluster_of(queues) as cluster:
        GATE.clear()
        await cluster.stream(LINES, "k").publish("a")
        await cluster.stream(LINES, "k").publish("b")
        await until(lambda: queues.given == 2)
        queues.every = 1
        reads = queues.reads
        await until(lambda: queues.reads > reads)
        queues.every = 0
        await until(lambda: queues.given >= 4)  # both were delivered again
        (agent,) = cluster.silos[0].services.part("default").manager.agents()
        assert agent.cache.events == 2 and not queues.acked
        GATE.set()
        await until(lambda: not broker.queue("queue-0").letters)
        assert SEEN == {"a": 2, "b": 1}


async def test_no_more_is_read_than_there_are_calls_to_spare() -> None:
    broker = LeasingBroker()
    queues = Failing(broker)
    queues.every = 0
    async with cluster_of(queues) as cluster:
        GATE.clear()
        for number in range(40):
            await cluster.stream(LINES, str(number)).publish(f"line-{number}")
        await until(lambda: queues.given >= 8)
        await spin(200)
        assert queues.given == 8
        GATE.set()
        await until(lambda: not broker.queue("queue-0").letters)
        assert len(SEEN) == 40


def test_a_handler_that_takes_longer_than_the_lease_keeps_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tags, "LEASE_S", 0.6)
    broker = LeasingBroker()
    queues = Failing(broker)
    queues.every = 0

    async def main(simulation: Simulation) -> None:
        streams = {"default": provider_of(queues)}
        async with SimCluster(simulation, silos=1, grains=[Reader], streams=streams) as cluster:
            [silo] = cluster.silos()
            GATE.clear()
            for text in ("a", "b", "c"):
                publishing = silo.stream(LINES, "k").publish(text)
                await simulation.call(simulation.host("silo-0"), publishing)
            await asyncio.sleep(60.0)
            assert queues.given == 3 and not SEEN
            GATE.set()
            await asyncio.sleep(1.0)
            assert not broker.queue("queue-0").letters

    run(main, 1)
    assert SEEN == {"a": 1, "b": 1, "c": 1}
