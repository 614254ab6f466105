"""An operator closes a topic's open ledger under its owner. The topic continues, and its readers
follow."""

from __future__ import annotations

import asyncio

import pytest
from tests.providers.ledger.copies import COPIED_S, Copies, with_copies
from tests.providers.ledger.worlds import marked

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings, Quorum
from millstream.providers.ledger.inspection import StoredMessage
from millstream.providers.ledger.topic.topics import Topics

SETTINGS = LedgerTopicSettings(quorum=Quorum(3, 3, 2))
OPTIONS = LedgerTopicOptions(retention_s=None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_drained", [True, False])
def test_an_owner_goes_on_in_another_ledger_and_loses_nothing(seed: int, is_drained: bool) -> None:
    async def main(world: Copies) -> None:
        owner, reader = world.writer, world.process()
        topics = Topics(owner.ledgers, owner.metadata, owner.clock, owner.tasks)
        topic = await topics.open("t", 1, OPTIONS, SETTINGS)
        beside = Topics(reader.ledgers, reader.metadata, reader.clock, reader.tasks).reader("t")
        world.auditor()
        numbers: list[int | None] = []
        for seq in range(1, 60):
            if seq == 10:
                record = await world.record(topic.record.spans[-1].ledger)
                gone = world.bookies.all[record.fragments[-1].bookies[seed]]
                gone.is_leaving, gone.is_away = is_drained, not is_drained
            numbers += await topic.append(marked("p", seq))
            await asyncio.sleep(0.5)
        assert numbers == list(range(1, 60))
        assert len(topic.record.spans) == 2
        await asyncio.sleep(COPIED_S)
        for span in topic.record.spans:
            assert await world.missing(span.ledger) == []
        found: list[StoredMessage] = []
        while len(found) < 59:
            found += await beside.read(len(found) + 1, 100, 2**20)
        assert [one.message.seq for one in found] == list(range(1, 60))
        await topic.aclose()

    with_copies(main, seed=seed)


def test_a_reader_that_knows_the_old_places_finds_what_was_moved() -> None:  # BookKeeper #4613
    async def main(world: Copies) -> None:
        ledger = await world.ledger(entries=30)
        reader = await world.process().ledgers.reader(ledger)
        found = list(await reader.read(0, 10, 1 << 20))
        world.auditor()
        for bookie in (await world.record(ledger)).fragments[0].bookies:
            world.lose(bookie)
            await asyncio.sleep(COPIED_S)
        while len(found) < 30:
            found += await reader.read(len(found), 10, 1 << 20)
        assert [entry.payload for entry in found] == world.payloads[ledger]

    with_copies(main, bookies=6)
