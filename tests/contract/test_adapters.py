"""Adapters over four other kinds of brokers keep the contract, so it is wide enough for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.contract.adapters.feeding import FedQueues, kill_fed
from tests.contract.adapters.partitions import (
    PartitionedAdapter,
    PartitionedBroker,
    PartitionedQueues,
)
from tests.contract.adapters.pushing import PushedQueues, PushingBroker, push_hooks
from tests.contract.adapters.tags import LeasedQueues, LeasingBroker
from tests.contract.in_virtual_time import in_virtual_time

from millstream.streams import BringsMapper, QueueAdapterFactory, StreamId
from millstream.streams.contracts.suite.host import BenchHost
from millstream.streams.testing import (
    ADAPTER_CHECKS,
    AdapterCheck,
    AdapterHooks,
    run_adapter_check,
)

Provider = tuple[Callable[[], QueueAdapterFactory], AdapterHooks]


def leased() -> Provider:
    broker = LeasingBroker()
    return lambda: LeasedQueues(broker), AdapterHooks(kill=broker.kill, patience_s=60.0)


def partitioned() -> Provider:
    broker = PartitionedBroker()
    hooks = AdapterHooks(
        forget=broker.forget, skip=broker.skip, kill=broker.kill, relayout=broker.relayout
    )
    return lambda: PartitionedQueues(broker), hooks


def pushed() -> Provider:
    broker = PushingBroker()
    return lambda: PushedQueues(broker), push_hooks(broker)


def fed() -> Provider:
    broker = PartitionedBroker()
    hooks = AdapterHooks(
        forget=broker.forget,
        skip=broker.skip,
        kill=kill_fed,
        relayout=broker.relayout,
        narrow=lambda: FedQueues(broker, events_max=4),
    )
    return lambda: FedQueues(broker), hooks


@pytest.mark.one_in(4)
@pytest.mark.parametrize("provider", [leased, partitioned, pushed, fed])
@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
def test_it_keeps_the_contract(check: AdapterCheck, provider: Callable[[], Provider]) -> None:
    make, hooks = provider()
    why = in_virtual_time(lambda: run_adapter_check(check, make, hooks=hooks))
    assert not why.startswith("not run")


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


def test_what_no_hook_shows_of_a_source_is_said() -> None:
    """A push receiver does not pass a check of pausing that could not run."""
    for name in ("a_paused_source_pushes_nothing", "pausing_loses_and_repeats_nothing"):
        check = next(check for check in ADAPTER_CHECKS if check.name == name)
        for provider, why in (
            (pushed, "not run: the hook `narrow` is not given"),
            (leased, "the receiver is not a `PushReceiver`"),
        ):
            make, _ = provider()
            assert in_virtual_time(partial(run_adapter_check, check, make)) == why
