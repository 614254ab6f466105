"""Reading a ledger from bookies that are slow, unavailable or damaged."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Sequence

import msgspec
import pytest
from tests.providers.ledger.gates import GatedBookies
from tests.providers.ledger.model_bookies import Process
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.handle.context import existing
from millstream.providers.ledger.handle.hedging import HEDGE_S
from millstream.providers.ledger.handle.reader import LedgerReader
from millstream.providers.ledger.handle.writer import LedgerWriter
from millstream.providers.ledger.inspection import EntriesGivenUp, LedgerRecord
from millstream.providers.ledger.protocol.errors import BookieAway, NotRecoverable
from millstream.providers.ledger.protocol.found import Found


class Read:
    """A ledger of five entries on three bookies, their `names` by place, and a reader elsewhere."""

    def __init__(
        self, other: Process, bookies: GatedBookies, writer: LedgerWriter, reader: LedgerReader
    ) -> None:
        self.other, self.bookies, self.writer, self.reader = other, bookies, writer, reader
        self.names = writer._record.fragments[0].bookies

    @classmethod
    async def begun(cls, is_closed: bool = True) -> Read:
        bookies = GatedBookies(3)
        one = Process(bookies)
        writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
        await asyncio.gather(*[writer.append(b"%d" % number) for number in range(5)])
        await asyncio.sleep(0.1)
        if is_closed:
            await writer.close()
        other = Process(bookies, one.store, 1)
        return cls(other, bookies, writer, await other.ledgers.reader(writer.ledger))

    async def payloads(self, first: int = 0) -> list[bytes]:
        return [entry.payload for entry in await self.reader.read(first, 9, 1 << 20)]

    def damage(self, name: str, entry: int) -> None:
        entries = self.bookies.all[name].entries
        packed = entries[self.writer.ledger, entry]
        entries[self.writer.ledger, entry] = packed[:-1] + bytes([packed[-1] ^ 1])


def now_s() -> float:
    return asyncio.get_running_loop().time()


@virtually
async def test_a_bookie_that_takes_long_is_not_waited_for() -> None:
    found = await Read.begun()
    found.bookies.gates.shut(f"read {found.names[0]}", f"read {found.names[1]}")
    began_s = now_s()
    assert await found.payloads() == [b"0", b"1", b"2", b"3", b"4"]
    assert 2 * HEDGE_S <= now_s() - began_s < 2 * HEDGE_S + 0.1
    found.bookies.gates.open(f"read {found.names[0]}", f"read {found.names[1]}")
    calls = found.bookies.calls.copy()
    assert await found.payloads(3) == [b"3", b"4"]
    await asyncio.sleep(1.0)
    asked = {name for name in found.names if found.bookies.calls[name] > calls[name]}
    assert len(asked) == 1, "one that answers is enough"


@virtually
async def test_an_answer_of_the_one_that_took_long_counts_as_well() -> None:
    found = await Read.begun()
    for name in found.names[1:]:
        found.bookies.gates.lose(f"read {name}")
    found.bookies.all[found.names[0]].delay_s = 0.3
    assert await found.payloads(4) == [b"4"]


@virtually
async def test_damaged_and_missing_copies_are_passed_over() -> None:
    found = await Read.begun()
    found.damage(found.names[0], 2)
    assert await found.payloads() == [b"0", b"1"], "what is whole before it"
    assert await found.payloads(2) == [b"2", b"3", b"4"]
    found.bookies.all[found.names[1]].entries.clear()
    assert await found.payloads(2) == [b"2", b"3", b"4"]
    found.damage(found.names[2], 2)
    with pytest.raises(NotRecoverable, match="entry 2 has no readable replica: .*damaged"):
        await found.payloads(2)


@virtually
async def test_who_should_have_an_entry_that_another_one_gave_is_told_and_nobody_else() -> None:
    found = await Read.begun()
    suspected, ledger = found.bookies.suspected, found.writer.ledger
    await found.payloads()
    await asyncio.sleep(1.0)
    assert suspected == []
    first, *others = found.writer._record.holders(2)  # in the order in which the reader asks them
    found.damage(first, 2)
    await found.payloads(2)
    await asyncio.sleep(1.0)
    assert suspected == [(first, ledger, 2)]
    for name in others:
        found.damage(name, 2)
    with pytest.raises(NotRecoverable):
        await found.payloads(2)
    await asyncio.sleep(1.0)
    assert len(suspected) == 1, "no bookie has it"


@virtually
async def test_whose_writer_may_not_have_sent_an_entry_yet_is_not_told() -> None:
    found = await Read.begun(is_closed=False)
    found.damage(found.writer._record.holders(2)[0], 2)
    assert (await found.payloads(2))[:1] == [b"2"]
    await asyncio.sleep(1.0)
    assert found.bookies.suspected == []


@virtually
async def test_nothing_is_left_of_a_writer_that_was_closed_once_the_next_ledger_is_made() -> None:
    process = Process(GatedBookies(3))
    tasks = len(asyncio.all_tasks())
    writer = await process.ledgers.create(Quorum(3, 3, 2), "t")
    await writer.append(b"1")  # the third bookie has not answered yet
    await writer.close()
    held = weakref.ref(writer)
    del writer
    await asyncio.sleep(60.0)
    assert len(asyncio.all_tasks()) == tasks
    await process.ledgers.create(Quorum(3, 3, 2), "t")
    gc.collect()
    assert held() is None


@virtually
async def test_a_recovery_that_waits_is_logged_once_and_not_at_a_normal_take_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = await Read.begun(is_closed=False)
    for one in found.bookies.all.values():
        one.is_away = True
    calls = sum(found.bookies.calls.values())
    recovery = asyncio.ensure_future(found.other.ledgers.recover(found.writer.ledger))
    await asyncio.sleep(1.9)
    assert not caplog.records
    assert sum(found.bookies.calls.values()) - calls > 3
    await asyncio.sleep(5.0)

    assert caplog.text.count("retrying for up to") == 1
    for one in found.bookies.all.values():
        one.is_away = False
    assert (await recovery).last == 4


@virtually
async def test_when_nobody_answers_it_says_who_was_asked() -> None:
    found = await Read.begun()
    for name in found.names:
        found.bookies.all[name].is_away = True
    with pytest.raises(NotRecoverable) as caught:
        await found.payloads()
    assert all(f"{name} is away" in str(caught.value) for name in found.names)


@pytest.mark.parametrize("away", [0, 1, 2, 3])
@virtually
async def test_what_is_confirmed_never_goes_back_whoever_answers(away: int) -> None:
    found = await Read.begun(is_closed=False)
    assert await found.reader.wait(3, 1.0) == 4
    for name in found.names[:away]:
        found.bookies.all[name].is_away = True
    assert await found.reader.wait(4, 0.0) == 4
    assert await found.reader.wait(4, 1.0) == 4
    fresh = await found.other.ledgers.reader(found.writer.ledger)
    assert await fresh.wait(3, 0.5) == (4 if away < 3 else -1), "what one of them knows"


@virtually
async def test_the_order_in_which_bookies_are_asked_leaves_none_out() -> None:
    found = await Read.begun()
    asked: list[str] = []
    order = found.names[2], found.names[0], found.names[1]

    class Ordered(GatedBookies):
        """Returns the bookies in the given `order` as the likeliest to answer soon."""

        def likeliest(self, bookies: Sequence[str], /) -> Sequence[str]:
            assert set(bookies) == set(order)
            return order

        async def read(self, bookie: str, *args: int) -> Found:
            asked.append(bookie)
            raise BookieAway(f"{bookie} is away")

    bookies = Ordered(0)
    reader = await Process(bookies, found.other.store, 2).ledgers.reader(found.writer.ledger)
    with pytest.raises(NotRecoverable):
        await reader.read(0, 9, 100)
    assert asked == [*order, *order], "and once more when the record was read again"


class Counting(GatedBookies):
    """Counts the questions for the last confirmed entry."""

    watches = 0

    async def watch(self, bookie: str, ledger: int, confirmed: int, wait_s: float, /) -> int:
        self.watches += 1
        return await super().watch(bookie, ledger, confirmed, wait_s)


@virtually
async def test_what_is_known_is_read_without_asking_what_is_confirmed() -> None:
    bookies = Counting(3)
    one = Process(bookies)
    writer, _ = await one.written(5)
    await asyncio.sleep(0.1)
    reader = await Process(bookies, one.store, 1).ledgers.reader(writer.ledger)
    assert await reader.wait(-1, 1.0) == 4
    asked = bookies.watches
    assert await reader.wait(3, 5.0) == 4 and not reader.is_closed
    for entry in range(5):
        assert [e.payload for e in await reader.read(entry, 1, 100)] == [b"%d" % entry]
    assert bookies.watches == asked
    assert await reader.read(5, 1, 100) == [] and bookies.watches > asked


@virtually
async def test_a_reader_finds_the_bookies_that_a_ledger_has_now() -> None:
    bookies = Counting(6)
    one = Process(bookies)
    writer, _ = await one.written(5)
    await asyncio.sleep(0.1)
    first, waits, asks = [
        await Process(bookies, one.store, seed).ledgers.reader(writer.ledger) for seed in (1, 2, 3)
    ]
    for name in writer._record.fragments[0].bookies:
        bookies.all[name].is_away = True
    await writer.append(b"5")
    await asyncio.sleep(0.1)
    assert await asks.wait(4, 0.0) == 5
    assert await waits.wait(-1, 1.0) == -1, "it asked those that were there"
    assert await waits.wait(-1, 1.0) == 5, "and has read the record since"
    assert [entry.payload for entry in await first.read(5, 9, 100)] == [b"5"]


@virtually
async def test_a_ledger_that_has_its_end_is_not_waited_for() -> None:
    bookies = Counting(3)
    one = Process(bookies)
    writer, _ = await one.written(5)
    await asyncio.sleep(0.1)
    reader = await Process(bookies, one.store, 1).ledgers.reader(writer.ledger)
    assert await reader.wait(-1, 1.0) == 4
    await writer.close()
    began_s = now_s()
    assert await reader.wait(4, 5.0) == 4 and reader.is_closed
    assert now_s() - began_s < 0.1
    asked = bookies.watches
    assert await reader.wait(4, 5.0) == 4 and await reader.wait(4, 0.0) == 4
    assert bookies.watches == asked


@virtually
async def test_who_waits_learns_of_an_end_that_came_meanwhile() -> None:
    bookies = Counting(3)
    one = Process(bookies)
    writer, _ = await one.written(5)
    await asyncio.sleep(0.1)
    reader = await Process(bookies, one.store, 1).ledgers.reader(writer.ledger)
    assert await reader.wait(-1, 1.0) == 4
    waiting = asyncio.ensure_future(reader.wait(4, 1.0))
    await asyncio.sleep(0.3)
    await writer.close()
    assert await waiting == 4 and reader.is_closed


@virtually
async def test_a_silent_bookie_holds_nobody_up_who_asks_what_is_confirmed() -> None:
    bookies = Counting(3)
    one = Process(bookies)
    writer, names = await one.written(5)
    await asyncio.sleep(0.1)
    bookies.all[names[0]].hangs = True
    other = Process(bookies, one.store, 1)
    reader, began_s = await other.ledgers.reader(writer.ledger), now_s()
    assert await reader.wait(-1, 0.0) == 4
    assert abs(now_s() - began_s - HEDGE_S) < 0.02
    bookies.all[names[1]].is_away, began_s = True, now_s()
    bookies.all[names[1]].delay_s = 0.05
    assert await reader.wait(-1, 0.0) == 4
    assert abs(now_s() - began_s - HEDGE_S) < 0.02
    await asyncio.sleep(0.01)
    assert len(other.tasks) == 0, "nobody is asked any more"


@virtually
async def test_what_is_read_says_what_is_confirmed() -> None:
    bookies = Counting(3)
    one = Process(bookies)
    writer, _ = await one.written(5)
    await asyncio.sleep(0.1)
    reader = await Process(bookies, one.store, 1).ledgers.reader(writer.ledger)
    assert len(await reader.read(0, 1, 100)) == 1
    await writer.append(b"5")
    await asyncio.sleep(0.1)
    assert len(await reader.read(0, 1, 100)) == 1
    asked = bookies.watches
    assert await reader.wait(4, 5.0) == 5 and bookies.watches == asked


async def given_up(process: Process, ledger: int, *lost: tuple[int, int]) -> None:
    """Mark these entries as given up, as an operator does."""

    def change(found: LedgerRecord | None) -> LedgerRecord:
        return msgspec.structs.replace(existing(ledger, found), lost=lost)

    await process.rows.update(ledger, change)


@virtually
async def test_what_was_given_up_is_not_read_though_a_bookie_has_it() -> None:
    found = await Read.begun()
    await given_up(found.other, found.writer.ledger, (2, 3))
    found.reader = await found.other.ledgers.reader(found.writer.ledger)
    assert await found.payloads() == [b"0", b"1"], "up to what was given up"
    assert await found.payloads(4) == [b"4"]
    calls = sum(found.bookies.calls.values())
    for entry in (2, 3):
        with pytest.raises(EntriesGivenUp) as caught:
            await found.payloads(entry)
        assert (caught.value.first, caught.value.last) == (2, 3)
    assert sum(found.bookies.calls.values()) == calls


@virtually
async def test_who_finds_no_copy_learns_that_it_was_given_up_meanwhile() -> None:
    found = await Read.begun()
    await given_up(found.other, found.writer.ledger, (2, 2))
    for one in found.bookies.all.values():
        del one.entries[found.writer.ledger, 2]
    with pytest.raises(EntriesGivenUp):
        await found.payloads(2)
