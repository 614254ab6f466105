"""A recovery closes a ledger while bookies leave and return, and cuts off no confirmed entry."""

from __future__ import annotations

import asyncio

import pytest
from tests.providers.ledger.gates import GatedBookies, GatedStore
from tests.providers.ledger.model_bookies import Process
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.inspection import LedgerState
from millstream.providers.ledger.protocol.errors import LedgerFenced, LedgerGone, NotRecoverable

QUICK = HandleOptions(unconfirmed_max_s=3.0, recover_max_s=3.0)


async def left(bookies: GatedBookies, entries: int = 5) -> tuple[Process, int, tuple[str, ...]]:
    """Make a ledger whose writer left it open, and return another process, its number and its
    bookies.
    """
    store = GatedStore()
    writer, names = await Process(bookies, store).written(0)
    for number in range(entries):
        await writer.append(b"%d" % number)
    await asyncio.sleep(0.1)
    await writer.aclose()
    return Process(bookies, store, 1, QUICK), writer.ledger, names


@virtually
async def test_it_is_said_once_that_it_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    bookies = GatedBookies(3)
    other, ledger, names = await left(bookies)
    for name in names[:2]:
        bookies.all[name].is_away = True
    began_s = other.clock.now()
    with pytest.raises(NotRecoverable):
        await other.ledgers.recover(ledger)
    assert 2.0 < other.clock.now() - began_s <= 3.1
    assert bookies.calls[names[2]] > 5, "it was tried several times"
    assert caplog.text.count("retrying for up to 3 s") == 1


@virtually
async def test_nothing_of_a_recovery_is_left_running() -> None:
    bookies = GatedBookies(3)
    other, ledger, names = await left(bookies)
    bookies.all[names[0]].hangs = True
    assert (await other.ledgers.recover(ledger)).state is LedgerState.CLOSED
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtually
async def test_a_ledger_that_is_deleted_before_it_got_its_end_is_gone() -> None:
    bookies = GatedBookies(3)
    other, ledger, names = await left(bookies)
    bookies.gates.shut(*[f"fence {name}" for name in names])
    recovering = asyncio.ensure_future(other.ledgers.recover(ledger))
    await bookies.gates.until(*[f"fence {name}" for name in names])
    await other.ledgers.delete(ledger)
    bookies.gates.open(*[f"fence {name}" for name in names])
    with pytest.raises(LedgerGone, match=f"no ledger {ledger}: it was deleted"):
        await recovering


@virtually
async def test_who_takes_a_place_of_a_recovery_may_fail_as_well() -> None:
    bookies = GatedBookies(8)
    other, ledger, names = await left(bookies)
    for one in bookies.all.values():
        one.told.clear()  # the last entry says that the one before it is confirmed
    gone, gone_too, there, *later = [bookies.all[n] for n in bookies.all if n not in names]
    for one in (gone, gone_too):
        one.is_away = one.seems_there = True
    for one in later:
        one.is_full = True
    bookies.gates.lose(*[f"add {name}" for name in names])
    recovering = asyncio.ensure_future(other.ledgers.recover(ledger))
    await asyncio.sleep(0.5)
    for one in later:
        one.is_full = False
    record = await recovering
    assert [fragment.first for fragment in record.fragments] == [0, 4]
    assert record.fragments[0].bookies == names
    took = [bookies.all[name] for name in record.fragments[1].bookies]
    assert gone not in took and gone_too not in took and there in took
    assert sum((ledger, 4) in one.entries for one in took) >= 2
    reader = await other.ledgers.reader(ledger)
    assert [e.payload for e in await reader.read(4, 9, 100)] == [b"4"]


@virtually
async def test_an_end_needs_the_last_entry_that_is_confirmed() -> None:
    bookies = GatedBookies(3)
    other, ledger, names = await left(bookies)
    for one in bookies.all.values():
        del one.entries[ledger, 4]
    text = f"ledger {ledger}: entry 4 has no readable replica: bookie {names[1]} has no intact"
    with pytest.raises(NotRecoverable, match=text):
        await other.ledgers.recover(ledger)


@virtually
async def test_while_a_bookie_that_may_have_it_is_away_the_last_entry_is_waited_for() -> None:
    bookies = GatedBookies(3)
    other, ledger, names = await left(bookies)
    for name in names[:2]:
        del bookies.all[name].entries[ledger, 4]
    bookies.gates.lose(f"read {names[2]}")
    text = f"ledger {ledger}: no bookie returned entry 4, which is confirmed; start .*{names[2]}"
    with pytest.raises(NotRecoverable, match=text):
        await other.ledgers.recover(ledger)


@virtually
async def test_places_that_fail_one_after_the_other_are_all_replaced_in_the_end() -> None:
    bookies = GatedBookies(8)
    other, ledger, names = await left(bookies)
    for one in bookies.all.values():
        one.told.clear()  # the last entry must be written again
    first, second, third = names
    others = [f"add {name}" for name in bookies.all if name not in names]
    bookies.gates.lose(f"add {first}", f"add {second}")
    bookies.gates.shut(f"add {third}", *others)
    recovering = asyncio.ensure_future(other.ledgers.recover(ledger))
    while len(came := [gate for gate in bookies.gates.waiting if gate in others]) < 2:
        await asyncio.sleep(0.01)
    failing, kept = came  # in place of the first two
    for gate in (failing, f"add {third}"):
        bookies.all[gate.removeprefix("add ")].is_away = True
        bookies.gates.open(gate)
    await asyncio.sleep(0.5)
    for gate in others:
        if gate != failing:
            bookies.gates.open(gate)
    took = (await recovering).fragments[-1].bookies
    assert kept.removeprefix("add ") in took
    assert not {*names, failing.removeprefix("add ")} & set(took)
    assert all((ledger, 4) in bookies.all[name].entries for name in took)


@pytest.mark.parametrize("entries", [0, 1, 2, 12])
@virtually
async def test_the_end_says_how_many_bytes_there_are(entries: int) -> None:
    bookies = GatedBookies(3)
    other, ledger, _ = await left(bookies, entries)
    record = await other.ledgers.recover(ledger)
    payloads = [b"%d" % number for number in range(entries)]
    assert (record.last, record.length) == (entries - 1, sum(map(len, payloads)))


@virtually
async def test_who_is_overtaken_all_the_time_gives_up_and_says_so() -> None:
    class Busy(GatedBookies):
        """Other recoveries have fenced the ledger again before each attempt."""

        async def fence(self, bookie: str, ledger: int, term: int, /) -> int:
            raise LedgerFenced(f"{bookie}: ledger {ledger} is fenced in term 77", 77)

    other, ledger, _ = await left(Busy(3))
    with pytest.raises(NotRecoverable, match="other processes keep recovering it, now in term 77"):
        await other.ledgers.recover(ledger)
