"""The memory provider keeps the contract: a silo opens the adapters, and its grains hold the
content."""

from __future__ import annotations

import pytest
from tests.contract.proven import expect_run

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.providers.memory.adapter import MemoryAdapter
from millstream.runtime import MemoryMembershipTable, Silo
from millstream.streams import AdapterHost, PersistentStreams
from millstream.streams.testing import ADAPTER_CHECKS, AdapterCheck, run_adapter_check


class InASilo(MemoryQueues):
    """Opened by a silo, and again by the suite over the same grains."""

    def __init__(self) -> None:
        super().__init__(MemoryOptions(capacity_events=110, enqueue_wait_s=0.01))
        self.host: AdapterHost | None = None

    async def open(self, provider: str, host: AdapterHost, /) -> MemoryAdapter:
        self.host = self.host or host
        return await super().open(provider, self.host)


@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
async def test_the_memory_provider_keeps_the_contract(check: AdapterCheck) -> None:
    queues = InASilo()
    silo = Silo(
        grains=[],
        membership=MemoryMembershipTable(),
        streams={"default": PersistentStreams(queues, balancer=DeploymentBalancer())},
        can_own_queues=False,
    )
    async with silo:
        why = await run_adapter_check(check, lambda: queues)
    # The queue keeps unacknowledged messages and has no gaps; see the crashes of
    # test_dying_silos.py.
    expect_run(why, "forget", "skip", "kill")
