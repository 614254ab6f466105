"""The contract suite and the push receiver as adapter authors use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_type

from millstream.runtime import CursorTooOld, EnqueueFailed
from millstream.runtime.testing import FailingStore, FailingTable, SimCluster, Simulation
from millstream.streams import (
    AdapterHost,
    Capability,
    HashRingMapper,
    LimitsMessages,
    MessageLimits,
    OutMessage,
    PersistentStreams,
    PushReceiver,
    PushSource,
    QueueAdapter,
    QueueAdapterFactory,
    QueueId,
    QueueMessage,
    QueueReceiver,
    TellsFailed,
    Token,
)
from millstream.streams.testing import (
    ADAPTER_CHECKS,
    AdapterBench,
    AdapterCheck,
    AdapterHooks,
    ContractBroken,
    owners,
    record_providers,
    run_adapter_check,
    wait_owned,
)


class Subscription:
    """A source with parameter names of its own."""

    async def start(self, callback: Callable[[QueueMessage], None], from_: Token | None) -> None:
        self._callback = callback

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    async def ack(self, up_to: Token | None, single: Sequence[Token]) -> None: ...
    async def aclose(self) -> None: ...


class Feed:
    capabilities = frozenset({Capability.ITEM_ACK, Capability.OWN_POSITION})

    async def open(self, provider: str, host: AdapterHost) -> FeedAdapter:
        return FeedAdapter()


class Telling(PushReceiver):
    """Reports given-up messages to its source."""

    async def fail(self, tokens: Sequence[Token], reason: str) -> None: ...


def telling(receiver: Telling) -> TellsFailed:
    return receiver


class FeedAdapter:
    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int
    ) -> Sequence[Token | None]:
        return [None] * len(messages)

    def receiver(self, queue: QueueId, epoch: int) -> PushReceiver:
        return PushReceiver(Subscription(), Feed.capabilities, events_max=10, bytes_max=1 << 20)

    async def aclose(self) -> None: ...


SOURCE: PushSource = Subscription()
RECEIVER: QueueReceiver = PushReceiver(SOURCE, {Capability.ORDERED})
FACTORY: QueueAdapterFactory = Feed()


async def forget(queue: QueueId, count: int) -> None: ...
async def kill(adapter: QueueAdapter) -> None: ...
async def relayout() -> None: ...


HOOKS = AdapterHooks(
    forget=forget, skip=forget, kill=kill, relayout=relayout, narrow=Feed, patience_s=60.0
)


def lost_connection(receiver: PushReceiver) -> tuple[int, int, bool, int]:
    receiver.on_disconnect(OSError("reset"))
    return receiver.events_max, receiver.events_held, receiver.is_paused, receiver.refused


def is_gone(first: Token) -> CursorTooOld:
    return CursorTooOld("gone", first=first)


async def check_all() -> None:
    for check in ADAPTER_CHECKS:
        assert_type(check, AdapterCheck)
        why = await run_adapter_check(check, Feed)
        assert_type(why, str)
        await run_adapter_check(
            check, Feed, lambda queue, count: [b""] * count, HashRingMapper(queues=2), HOOKS
        )


async def run_by_hand(bench: AdapterBench) -> str:
    try:
        await ADAPTER_CHECKS[0].run(bench)
    except ContractBroken as broken:
        return f"{broken.check} {broken.rule} {broken.expected} {broken.came}"
    except EnqueueFailed as error:
        return str(error.cause)
    return ""


async def who_reads(cluster: SimCluster) -> None:
    assert_type(await wait_owned(cluster, within_s=10.0), dict[QueueId, str])
    assert_type(owners(cluster, "orders"), dict[QueueId, str])


async def grows_and_shrinks(cluster: SimCluster) -> None:
    assert_type(cluster.add_silo(), str)
    await cluster.remove_silo("silo-0")


def judged(simulation: Simulation, make: Callable[[], PersistentStreams]) -> SimCluster:
    streams = record_providers(simulation, {"default": make})
    assert_type(streams, dict[str, Callable[[], PersistentStreams]])
    return SimCluster(simulation, grains=[], streams=streams)


def troubled(simulation: Simulation) -> SimCluster:
    store = FailingStore(simulation.rng, rate=0.01)
    store.fail("write", "queue/default/", times=2, is_done=True)
    table = FailingTable(simulation.rng, rate=0.05)
    table.fail("heartbeat", "silo-0:", hangs=True)
    return SimCluster(simulation, grains=[], stores={"default": store}, membership=table)


def largest(adapter: LimitsMessages) -> MessageLimits:
    assert_type(adapter.message_limits.bytes_max, int)
    return MessageLimits(bytes_max=1_024, items_max=10)
