"""Streams over priority queues keep the contract: a silo with the part opens the adapters."""

from __future__ import annotations

import pytest
from tests.contract.proven import expect_run

from millstream.balancers import DeploymentBalancer
from millstream.providers.priority import (
    DeadlineOptions,
    DeadlineQueues,
    MemoryStore,
    PriorityQueues,
)
from millstream.providers.priority.adapter.queues import DeadlineAdapter
from millstream.runtime import MemoryMembershipTable, Silo
from millstream.streams import AdapterHost, PersistentStreams
from millstream.streams.testing import ADAPTER_CHECKS, AdapterCheck, run_adapter_check


class InASilo(DeadlineQueues):
    """Opened by a silo, and again by the suite over the same store, which survives the suite's
    adapters."""

    def __init__(self) -> None:
        super().__init__(options=DeadlineOptions(lease_s=0.5, messages_max=110, retention_s=0.001))
        self.host: AdapterHost | None = None

    async def open(self, provider: str, host: AdapterHost, /) -> DeadlineAdapter:
        self.host = self.host or host
        return await super().open(provider, self.host)


class KeptStore(MemoryStore):
    """A store that says that it is durable."""

    is_durable = True


@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
async def test_streams_over_priority_queues_keep_the_contract(check: AdapterCheck) -> None:
    queues = InASilo()
    silo = Silo(
        grains=[],
        membership=MemoryMembershipTable(),
        streams={"default": PersistentStreams(queues, balancer=DeploymentBalancer())},
        parts={"priority": PriorityQueues(KeptStore())},
        can_own_queues=False,
    )
    async with silo:
        why = await run_adapter_check(check, lambda: queues)
    expect_run(why, "kill")  # see the crashes of test_dying_silos.py
