"""The remaining entries of a ledger, searched page by page over bookies of the model."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.providers.ledger.model_bookies import ModelBookies, Process
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.handle.context import HandleContext, existing
from millstream.providers.ledger.handle.loss import Left, give_up, what_is_left
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.inspection import ENDLESS, LedgerRecord, LedgerState

PAGES = HandleOptions(page_entries=2)


def context_of(process: Process) -> HandleContext:
    return HandleContext(
        process.ledgers._context.bookies, process.rows, process.clock, process.tasks, PAGES
    )


async def look(process: Process, ledger: int) -> Left:
    """Search from another process."""
    return await what_is_left(context_of(process), ledger)


def gaps(left: Left) -> list[tuple[int, int]]:
    return [(gap.first, gap.last) for gap in left.gaps]


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("entries", [1, 4, 5])
@virtually
async def test_of_a_ledger_that_is_whole_nothing_is_missing(entries: int, is_closed: bool) -> None:
    bookies = ModelBookies(3)
    one = Process(bookies)
    writer, names = await one.written(entries)
    await asyncio.sleep(0.1)
    await (writer.close() if is_closed else writer.aclose())
    left = await look(Process(bookies, one.store, 1), writer.ledger)
    assert (left.last, left.length, left.lost, left.away) == (entries - 1, entries, 0, ())
    assert gaps(left) == ([] if is_closed else [(entries, ENDLESS)])


@virtually
async def test_who_does_not_answer_is_asked_once_and_named_where_it_may_have_more() -> None:
    bookies = ModelBookies(6)
    one = Process(bookies)
    writer = await one.ledgers.create(Quorum(3, 3, 3), "t")
    await writer.append(b"0")
    first = await one.bookies_of(writer.ledger)
    bookies.all[first[0]].is_away = True
    await writer.append(b"1")
    await asyncio.sleep(0.1)
    await writer.aclose()
    last = await one.bookies_of(writer.ledger)
    assert first[0] not in last
    bookies.all[last[0]].is_away = True
    bookies.calls.clear()
    left = await look(Process(bookies, one.store, 1), writer.ledger)
    assert (left.last, left.length, left.lost) == (1, 2, 0)
    assert left.away == (last[0],), "the other one was replaced"
    assert bookies.calls[first[0]] == bookies.calls[last[0]] == 1


@virtually
async def test_what_was_given_up_at_the_end_is_no_loss_anew() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies)
    writer, _ = await one.written(5)
    await asyncio.sleep(0.1)
    await writer.close()
    ledger = writer.ledger
    for bookie in bookies.all.values():
        for entry in (3, 4):
            del bookie.entries[ledger, entry]
    left = await look(one, ledger)
    assert (left.last, left.lost, gaps(left)) == (4, 2, [(3, 4)])
    record = await give_up(context_of(one), left)
    assert record.state is LedgerState.CLOSED and record.lost == ((3, 4),)
    again = await look(one, ledger)
    assert (again.last, again.lost, gaps(again)) == (4, 0, [])

    def more(found: LedgerRecord | None) -> LedgerRecord:
        return msgspec.structs.replace(existing(ledger, found), lost=((3, ENDLESS),))

    await one.rows.update(ledger, more)
    assert gaps(await look(one, ledger)) == []
