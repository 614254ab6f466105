"""The agent keeps reading a queue whose adapter raises any error, and no event is lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    AdapterHost,
    Event,
    FlowOptions,
    HashRingMapper,
    OutMessage,
    PersistentStreams,
    QueueAdapter,
    QueueId,
    QueueMessage,
    QueueReceiver,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)
from millstream.streams.ownership.record import QueueState
from millstream.streams.ownership.store import OwnershipStore

LINES = StreamNamespace("lines", str, subscriptions="implicit")
SEEN: dict[str, list[str]] = defaultdict(list)
FAILURES = 2


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: ValueError("odd"),
    lambda: KeyError("odd"),
    lambda: TimeoutError(),
    lambda: StopAsyncIteration(),
    Odd,
)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


async def until_seen(text: str) -> None:
    await until(lambda: text in SEEN["k"])


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        SEEN[self.key].append(event.item)


class Faults:
    """Raises in the first calls of one method, and counts the calls of each method."""

    def __init__(self, method: str, make: Callable[[], Exception]) -> None:
        self._method = method
        self._make = make
        self.calls: Counter[str] = Counter()
        self.read: Token | None = None
        self.acked: Token | None = None

    def enter(self, method: str) -> None:
        self.calls[method] += 1
        if method == self._method and self.calls[method] <= FAILURES:
            raise self._make()


class FaultyQueues:
    """Memory queues whose calls fail."""

    grains = MemoryQueues.grains
    capabilities = MemoryQueues.capabilities

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    async def open(self, provider: str, host: AdapterHost) -> FaultyAdapter:
        return FaultyAdapter(await MemoryQueues().open(provider, host), self._faults)


class FaultyAdapter:
    def __init__(self, inner: QueueAdapter, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.options: Any = getattr(inner, "options", None)  # the queue's grain reads these options
        self.host: Any = getattr(inner, "host", None)
        self.logs: Any = getattr(inner, "logs", None)

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int
    ) -> Sequence[Token | None]:
        return await self._inner.enqueue(queue, messages, mapper_epoch)

    def receiver(self, queue: QueueId, epoch: int) -> FaultyReceiver:
        self._faults.enter("receiver")
        return FaultyReceiver(self._inner.receiver(queue, epoch), self._faults)

    async def aclose(self) -> None:
        await self._inner.aclose()


class FaultyReceiver:
    def __init__(self, inner: QueueReceiver, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    async def start(self, after: Token | None) -> None:
        self._faults.enter("start")
        await self._inner.start(after)

    async def read(self, max_events: int, max_bytes: int, wait_s: float) -> Sequence[QueueMessage]:
        self._faults.enter("read")
        messages = await self._inner.read(max_events, max_bytes, wait_s)
        if messages:
            self._faults.read = messages[-1].token
        return messages

    async def ack(self, upto: Token | None, also: Sequence[Token] = ()) -> None:
        self._faults.enter("ack")
        await self._inner.ack(upto, also)
        self._faults.acked = upto

    async def release(self, tokens: Sequence[Token], delay_s: float, has_run: bool) -> None:
        await self._inner.release(tokens, delay_s, has_run)

    async def extend(self, tokens: Sequence[Token], lease_s: float) -> Sequence[Token]:
        return await self._inner.extend(tokens, lease_s)

    async def aclose(self) -> None:
        self._faults.enter("aclose")
        await self._inner.aclose()


def cluster_of(faults: Faults, ack_every_s: float = 0.0) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            FaultyQueues(faults),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(read_retry_s=0.01, flow=FlowOptions(ack_every_s=ack_every_s)),
        )

    return LocalCluster(silos=1, grains=[Reader], streams={"default": provider})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", ERRORS, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("method", ["receiver", "start", "read", "ack"])
async def test_a_queue_is_read_on_whatever_its_adapter_raises(
    method: str, make: Callable[[], Exception]
) -> None:
    faults = Faults(method, make)
    async with cluster_of(faults) as cluster:
        stream = cluster.stream(LINES, "k")
        for text in "abcd":
            await stream.publish(text)
            await until_seen(text)
        await until(lambda: faults.acked is not None and faults.acked == faults.read)
        assert SEEN["k"] == ["a", "b", "c", "d"]
        assert faults.calls[method] > FAILURES


class LateFaults(Faults):
    """Raises only after `is_late` is set."""

    is_late = False

    def enter(self, method: str) -> None:
        if self.is_late:
            super().enter(method)


@pytest.mark.parametrize("method", ["ack", "aclose"])
async def test_a_silo_frees_its_queue_whatever_the_adapter_raises_at_the_end(method: str) -> None:
    faults = LateFaults(method, lambda: ValueError("odd"))
    async with cluster_of(faults, ack_every_s=60.0) as cluster:
        await cluster.stream(LINES, "k").publish("a")
        await until_seen("a")
        faults.is_late = True
        records = OwnershipStore(cluster.silos[0].assembly.store("default"), "default")
        await cluster.silos[0].stop()
        stored = await records.read("queue-0")
    assert stored is not None and stored.record.state is QueueState.FREE
    assert faults.calls[method] > 0 and faults.calls["aclose"] == 1


async def test_what_the_provider_was_not_told_at_the_end_is_in_the_record() -> None:
    faults = LateFaults("ack", lambda: ValueError("odd"))
    async with cluster_of(faults, ack_every_s=60.0) as cluster:
        await cluster.stream(LINES, "k").publish("a")
        await until_seen("a")
        faults.is_late = True
        records = OwnershipStore(cluster.silos[0].assembly.store("default"), "default")
        await cluster.silos[0].stop()
        stored = await records.read("queue-0")
    assert stored is not None and stored.record.handoff is not None
    assert stored.record.handoff.clean and stored.record.upto == Token(1, 1)
