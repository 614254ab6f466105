"""Three brokers of other shapes than ours: the contract is wide enough for each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.contract.adapters.partitions import (
    PartitionedAdapter,
    PartitionedBroker,
    PartitionedQueues,
)
from tests.contract.adapters.pushing import PushedQueues, PushingBroker
from tests.contract.adapters.tags import LeasedQueues, LeasingBroker
from tests.contract.in_virtual_time import in_virtual_time

from millstream.streams import BringsMapper, QueueAdapterFactory, StreamId
from millstream.streams.contracts.suite.host import BenchHost
from millstream.streams.testing import ADAPTER_CHECKS, AdapterCheck, run_adapter_check

Provider = tuple[Callable[[], QueueAdapterFactory], Callable[[str, int], Awaitable[None]] | None]


def leased() -> Provider:
    broker = LeasingBroker()
    return lambda: LeasedQueues(broker), None


def partitioned() -> Provider:
    broker = PartitionedBroker()
    return lambda: PartitionedQueues(broker), broker.forget


def pushed() -> Provider:
    broker = PushingBroker()
    return lambda: PushedQueues(broker), None


@pytest.mark.parametrize("provider", [leased, partitioned, pushed])
@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
def test_it_keeps_the_contract(check: AdapterCheck, provider: Callable[[], Provider]) -> None:
    make, forget = provider()
    in_virtual_time(lambda: run_adapter_check(check, make, forget=forget))


async def test_a_broker_adds_partitions_while_it_is_used() -> None:
    broker, told = PartitionedBroker(2), list[str]()
    adapter: PartitionedAdapter = await PartitionedQueues(broker).open("p", BenchHost())
    assert isinstance(adapter, BringsMapper)
    before = adapter.mapper(lambda: told.append("changed"))
    broker.add_partition()
    after = adapter.mapper(lambda: None)
    assert told == ["changed"] and (before.epoch, after.epoch) == (2, 3)
    assert list(before.queues()) == ["p0", "p1"] and list(after.queues()) == ["p0", "p1", "p2"]
    assert {after.queue_for(StreamId("n", str(n))) for n in range(50)} == {"p0", "p1", "p2"}
    await adapter.aclose()
    broker.add_partition()
    assert told == ["changed"]
