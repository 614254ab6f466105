"""The mark of a bookie that must be emptied."""

from __future__ import annotations

import pytest
from tests.providers.ledger.model_bookies import ModelBookies, Process
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.inspection import BookieRecord, mark_draining
from millstream.providers.ledger.metadata.bookies import bookie_rows
from millstream.providers.ledger.protocol.errors import BookieAway, NotEnoughBookies


async def with_rows(count: int) -> Process:
    """Make a process whose bookies have rows, and a ledger over three of the first bookies."""
    process = Process(ModelBookies(3))
    for number in range(count):
        name = f"b{number}"
        record = BookieRecord(name, f"silo-{number}", 1, is_writable=True)
        await bookie_rows(process.metadata).create(name, record)
    await process.ledgers.create(Quorum(3, 3, 2), "t")
    return process


@virtually
async def test_a_mark_is_set_and_taken_back() -> None:
    metadata = (await with_rows(4)).metadata
    assert (await mark_draining(metadata, "b1")).is_draining
    assert (await mark_draining(metadata, "b1")).is_draining
    assert not (await mark_draining(metadata, "b1", is_draining=False)).is_draining


@virtually
async def test_a_bookie_is_kept_while_too_few_others_can_take_what_it_has() -> None:
    metadata = (await with_rows(3)).metadata
    with pytest.raises(NotEnoughBookies, match="over 3 bookies.*but there are 2; start more"):
        await mark_draining(metadata, "b1")


@virtually
async def test_bookies_that_are_drained_away_or_full_are_no_others() -> None:
    metadata = (await with_rows(6)).metadata
    full = BookieRecord("b3", "silo-3", 1, is_writable=False)
    await bookie_rows(metadata).update("b3", lambda _: full)
    await mark_draining(metadata, "b4", is_live=lambda silo: True)
    with pytest.raises(NotEnoughBookies, match="but there are 2"):
        await mark_draining(metadata, "b1", is_live=lambda silo: silo != "silo-5")
    await mark_draining(metadata, "b1")


@virtually
async def test_bookies_of_another_directory_group_are_no_others() -> None:
    """Entries are copied within a group only, so such a drain would never end."""
    metadata = (await with_rows(4)).metadata
    elsewhere = BookieRecord("b3", "silo-3", 1, is_writable=True, place="another directory")
    await bookie_rows(metadata).update("b3", lambda _: elsewhere)
    with pytest.raises(NotEnoughBookies, match="of its directory group.*but there are 2"):
        await mark_draining(metadata, "b1")


@virtually
async def test_a_bookie_of_nothing_may_be_the_last_and_one_without_a_row_is_none() -> None:
    process = await with_rows(4)
    await mark_draining(process.metadata, "b3")
    with pytest.raises(BookieAway, match="there is no bookie b9"):
        await mark_draining(process.metadata, "b9")
