"""The ledger provider keeps the contract: its adapters in a silo, over a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger.queues.adapter import LedgerAdapter, LedgerQueues
from millstream.providers.ledger.queues.options import LedgerOptions
from millstream.runtime import MemoryMembershipTable, Silo
from millstream.streams import AdapterHost, PersistentStreams
from millstream.streams.testing import ADAPTER_CHECKS, AdapterCheck, run_adapter_check


class InASilo(LedgerQueues):
    """Opened by a silo, and as often as wanted by the suite, in the same silo."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, LedgerOptions(unowned_after_s=0.0))
        self.host: AdapterHost | None = None

    async def open(self, provider: str, host: AdapterHost, /) -> LedgerAdapter:
        self.host = self.host or host
        return await super().open(provider, self.host)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
async def test_the_ledger_provider_keeps_the_contract(check: AdapterCheck, tmp_path: Path) -> None:
    queues = InASilo(tmp_path / "ledger")
    silo = Silo(
        grains=[],
        membership=MemoryMembershipTable(),
        streams={"default": PersistentStreams(queues, balancer=DeploymentBalancer())},
        can_own_queues=False,
    )
    async with silo:
        await run_adapter_check(check, lambda: queues)
