"""A recorded run is judged without extra code in programs and grains; planted faults are
detected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.contract.reference import LEDGER, Broker, ReferenceQueues, Shelf

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, MillstreamError, state
from millstream.runtime.testing import (
    DeadLettered,
    Delivered,
    Findings,
    Published,
    SimCluster,
    Simulation,
    check_all,
    run,
)
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    QueueId,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.agent.delivery.consumer_calls import ConsumerCalls
from millstream.streams.consumer import batch as batches
from millstream.streams.consumer import extension
from millstream.streams.consumer.fresh import fresh_of
from millstream.streams.testing import record_providers, wait_owned

ORDERS = StreamNamespace("orders", int, subscriptions="implicit")
TALK = StreamNamespace("talk", int)
KEYS = ("a", "b", "c")
OPTIONS = StreamOptions(
    delivery=DeliveryOptions(retries=2, backoff=Backoff(0.05, 2, 0.5)),
    ownership=OwnershipOptions(poll_s=0.2),
)


class Ledger(Grain):
    total = state(int)

    @subscribe(ORDERS, commit_with=total)
    async def on_order(self, event: Event[int]) -> None:
        if event.item < 0:
            raise ValueError("not an order")
        self.total.value += event.item


class Listener(Grain):
    async def listen(self) -> None:
        await self.stream(TALK, self.key).subscribe(self._on_talk)

    async def _on_talk(self, event: Event[int]) -> None: ...


class NewBroker(Broker):
    """A broker whose queues begin in the era of the provider's record."""

    def shelf(self, queue: QueueId) -> Shelf:
        return self.shelves.setdefault(queue, Shelf(era=0))


def provider(broker: Broker | None) -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues() if broker is None else ReferenceQueues(broker, LEDGER),
        mapper=HashRingMapper(queues=3),
        balancer=DeploymentBalancer(rebalance_delay_s=0.2),
        options=OPTIONS,
    )


async def publish(client: Any, first: int) -> None:
    """Publish ten events to each stream; one of them cannot be handled."""
    for number in range(first, first + 10):
        for key in KEYS:
            for namespace in (ORDERS, TALK):
                try:
                    await client.stream(namespace, key).publish(-1 if number == 13 else number)
                except MillstreamError:
                    await asyncio.sleep(0.5)


Trouble = Callable[[SimCluster], Awaitable[None]]


async def crashed(cluster: SimCluster) -> None:
    cluster.simulation.crash("silo-1")
    cluster.boot("silo-1")
    await cluster.until_settled(calm_s=2.0)


async def stopped(cluster: SimCluster) -> None:
    await cluster.stop_silo("silo-1")
    await cluster.until_settled(calm_s=2.0)


def judged(seed: int, trouble: Trouble, broker: Broker | None = None) -> tuple[Findings, Any]:
    async def driver(simulation: Simulation) -> Findings:
        streams = record_providers(simulation, {"default": lambda: provider(broker)})
        host = simulation.host("client")
        async with SimCluster(
            simulation, silos=3, grains=[Ledger, Listener], streams=streams
        ) as cluster:
            await wait_owned(cluster)

            async def program() -> None:
                async with cluster.client(host) as client:
                    for key in KEYS:
                        await client.grain(Listener, key).listen()
                    await publish(client, 0)
                    await asyncio.gather(trouble(cluster), publish(client, 10))
                    await publish(client, 20)

            await simulation.call(host, program())
            await wait_owned(cluster)
            await asyncio.sleep(30.0)
        return check_all(simulation.history, live_within_s=20.0)

    outcome = run(driver, seed, max_virtual_s=600.0)
    return outcome.result, outcome.history


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
@pytest.mark.parametrize("trouble", [crashed, stopped])
def test_a_sound_run_is_judged_without_recording_anything_by_hand(
    trouble: Trouble, seed: int
) -> None:
    findings, history = judged(seed, trouble, NewBroker(capacity=10_000))
    assert findings == []
    looked_at = findings.looked_at
    assert looked_at["Published"] >= 150 and looked_at["Delivered"] >= 150
    assert looked_at["QueueAcquired"] >= 3
    given_up = {event.item for _, event in history.of(DeadLettered)}
    assert given_up and given_up <= {event.item for _, event in history.of(Published)}
    streams = {event.stream for _, event in history.of(Delivered)}
    assert streams == {f"{name}/{key}" for name in ("orders", "talk") for key in KEYS}


def test_a_memory_queue_of_a_silo_that_stops_in_order_loses_nothing() -> None:
    assert judged(1, stopped)[0] == []


@pytest.mark.spare
def test_what_a_memory_queue_loses_with_its_silo_is_seen() -> None:
    async def slow(self: Ledger, event: Event[int]) -> None:
        await asyncio.sleep(5.0)

    async def lost(cluster: SimCluster) -> None:
        for name in cluster.names:
            cluster.simulation.crash(name)
        for name in cluster.names:
            cluster.boot(name)
        await cluster.until_settled(calm_s=2.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "on_order", _marked_as(Ledger.on_order, slow))
        findings, _ = judged(1, lost)
    assert any("never got it" in text for text in findings)


def _marked_as(known: Any, handler: Any) -> Any:
    handler.__dict__.update(known.__dict__)
    return handler


async def calm(cluster: SimCluster) -> None:
    """Cause no fault."""


def found() -> str:
    """Return the findings of a run with a planted fault."""
    return "\n".join(judged(1, calm, NewBroker(capacity=10_000))[0])


def test_an_event_that_no_handler_sees_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def forgetful(items: Sequence[Any], last: Any) -> Sequence[int]:
        nonlocal calls
        calls += 1
        return [] if calls == 20 else fresh_of(items, last)

    monkeypatch.setattr(extension, "fresh_of", forgetful)
    assert "never got it" in found()


@pytest.mark.spare
def test_an_event_that_comes_twice_without_a_word_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deliver = ConsumerCalls.deliver

    async def twice(self: Any, kind: str, key: str, batch: Any, timeout_s: float) -> Any:
        await deliver(self, kind, key, batch, timeout_s)
        return await deliver(self, kind, key, batch, timeout_s)

    monkeypatch.setattr(ConsumerCalls, "deliver", twice)
    assert not found()  # the consumer drops known events
    monkeypatch.setattr(extension, "fresh_of", lambda items, last: range(len(items)))
    assert "not marked as redelivered" in found()


def test_events_in_another_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver, held = ConsumerCalls.deliver, list[Any]()

    async def overtaken(self: Any, kind: str, key: str, batch: Any, timeout_s: float) -> Any:
        """Delay one event of one stream until after the next one."""
        mine = batch.namespace == "talk" and batch.key == "a" and not batch.redelivered
        if mine and not held:
            held.append(batch)
            return batches.Delivered(len(batch.items))
        answer = await deliver(self, kind, key, batch, timeout_s)
        if mine and len(held) == 1:
            held.append(None)
            await deliver(self, kind, key, held[0], timeout_s)
        return answer

    monkeypatch.setattr(ConsumerCalls, "deliver", overtaken)
    monkeypatch.setattr(extension, "fresh_of", lambda items, last: range(len(items)))
    assert "not marked as redelivered" in found()
