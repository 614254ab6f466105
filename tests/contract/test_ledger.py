"""The ledger provider keeps the contract: a silo opens the adapters over a directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.proven import expect_run

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues, LedgerTopicSettings
from millstream.providers.ledger.inspection import TopicRecord
from millstream.providers.ledger.queues.adapter import LedgerAdapter
from millstream.providers.ledger.queues.receiver import CURSOR
from millstream.runtime import MemoryMembershipTable, Silo
from millstream.streams import AdapterHost, PersistentStreams, QueueId
from millstream.streams.testing import (
    ADAPTER_CHECKS,
    AdapterCheck,
    AdapterHooks,
    run_adapter_check,
)

ONE_ENTRY_EACH = LedgerTopicSettings(ledger_entries_max=1)
FORGETS = {check for check in ADAPTER_CHECKS if "forget" in check.hooks or "retain" in check.name}


class InASilo(LedgerQueues):
    """Opened by a silo, and again by the suite in the same silo."""

    def __init__(self, directory: Path, settings: LedgerTopicSettings) -> None:
        options = LedgerOptions(settings=settings, unowned_after_s=0.0)
        super().__init__(directory, options)
        self.host: AdapterHost | None = None
        self.adapter: LedgerAdapter

    async def open(self, provider: str, host: AdapterHost, /) -> LedgerAdapter:
        self.host = self.host or host
        self.adapter = await super().open(provider, self.host)
        return self.adapter

    async def forget(self, queue: QueueId, count: int) -> None:
        """Remove the first ledgers from the topic's list, although nobody acknowledged their
        messages. Each message that was sent by itself has a ledger."""
        desk = self.adapter._desk
        topic = desk.topic(queue)
        owner = topic or await desk.stand_in(queue)
        assert owner is not None
        cursors = {name: await owner.cursors.open(name) for name in owner.record.cursors}
        retained = [one.mark + 1 for name, one in cursors.items() if name != CURSOR]
        behind = min([owner.reader.first + count, owner.reader.end, *retained])
        if CURSOR in cursors:
            cursors[CURSOR].evict(behind)

        def without(record: TopicRecord) -> TopicRecord:
            gone = (span.is_sealed and span.end <= behind for span in record.spans)
            return record.without(sum(gone))

        await owner._owned.update(without)
        if topic is None:
            await desk.leave(queue, owner)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("check", ADAPTER_CHECKS, ids=str)
async def test_the_ledger_provider_keeps_the_contract(check: AdapterCheck, tmp_path: Path) -> None:
    settings = ONE_ENTRY_EACH if check in FORGETS else LedgerTopicSettings()
    queues = InASilo(tmp_path / "ledger", settings)
    silo = Silo(
        grains=[],
        membership=MemoryMembershipTable(),
        streams={"default": PersistentStreams(queues, balancer=DeploymentBalancer())},
        can_own_queues=False,
    )
    async with silo:
        hooks = AdapterHooks(forget=queues.forget)
        why = await run_adapter_check(check, lambda: queues, hooks=hooks)
    expect_run(why, "skip", "kill")  # numbers have no gap; see the crashes of test_dying_silos.py
