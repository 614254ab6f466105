"""A process beyond appending: it makes ledgers, tells readers, waits for bookies and continues."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from tests.providers.ledger.model_bookies import ModelBookies, Process
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.inspection import BookieLedgers
from millstream.providers.ledger.metadata.ledgers import LedgerIds
from millstream.providers.ledger.protocol.errors import BookieAway, NotEnoughBookies
from millstream.providers.ledger.protocol.found import Found
from millstream.runtime import ConfigError, Etag, MemoryStateStore, Row, StorageUnavailable

USUAL = Quorum(3, 3, 2)
ALONE = Quorum(1, 1, 1)
QUICK = HandleOptions(unconfirmed_max_s=3.0, recover_max_s=3.0)


class Noting(ModelBookies):
    """Bookies that record calls of tell, watch and look, and of which some are unknown at first."""

    def __init__(self, count: int, hidden: int = 0) -> None:
        super().__init__(count)
        self.tells: list[tuple[str, int]] = []
        self.watches = self.looks = 0
        self._hidden = set(list(self.all)[count - hidden :])

    async def tell(self, bookie: str, ledger: int, term: int, confirmed: int, /) -> None:
        self.tells.append((bookie, confirmed))
        await super().tell(bookie, ledger, term, confirmed)

    async def watch(self, bookie: str, ledger: int, confirmed: int, wait_s: float, /) -> int:
        self.watches += 1
        return await super().watch(bookie, ledger, confirmed, wait_s)

    async def look(self) -> None:
        self.looks += 1
        self._hidden.clear()

    def writable(self) -> Mapping[str, float]:
        return {name: one for name, one in super().writable().items() if name not in self._hidden}


def now_s() -> float:
    return asyncio.get_running_loop().time()


# --- new ledgers ---


@virtually
async def test_a_ledger_of_which_nothing_is_said_is_as_it_is_usual() -> None:
    one = Process(ModelBookies(4))
    context = one.ledgers._context
    ledgers = BookieLedgers(context, LedgerIds(one.metadata), USUAL)
    record = await one.rows.read((await ledgers.create(None, "t")).ledger)
    assert record is not None and record.quorum == USUAL and record.wanted is None
    assert record.term == 1 and record.topic == "t"


@virtually
async def test_a_quorum_that_cannot_work_is_refused_before_anything_is_stored() -> None:
    one = Process(ModelBookies(4))
    with pytest.raises(ConfigError, match="write_quorum=3, ack_quorum=1"):
        await one.ledgers.create(Quorum(3, 3, 1), "t")
    assert await one.rows.read(0) is None


@pytest.mark.parametrize(("hidden", "looks"), [(0, 0), (1, 1)])
@virtually
async def test_bookies_are_looked_for_when_too_few_are_known(hidden: int, looks: int) -> None:
    bookies = Noting(3, hidden)
    writer = await Process(bookies).ledgers.create(USUAL, "t")
    assert writer._record.quorum == USUAL and writer._record.wanted is None
    assert bookies.looks == looks


class LateNumbers(LedgerIds):
    """The first two numbers arrive too late."""

    async def is_late(self, number: int) -> bool:
        return number < 3


@virtually
async def test_a_number_that_came_too_late_leaves_no_ledger_behind() -> None:
    one = Process(ModelBookies(3))
    ledgers = BookieLedgers(one.ledgers._context, LateNumbers(one.metadata))
    writer = await ledgers.create(USUAL, "t")
    assert writer.ledger == 3 and await writer.append(b"x") == 0
    assert [await one.rows.read(number) is None for number in (1, 2, 3)] == [True, True, False]


@virtually
async def test_a_number_that_came_too_late_takes_no_copies_away() -> None:
    one = Process(ModelBookies(2))
    ledgers = BookieLedgers(one.ledgers._context, LateNumbers(one.metadata))
    writer = await ledgers.create(USUAL, "t")
    assert writer._record.quorum == Quorum(2, 2, 2) and writer._record.wanted == USUAL


@virtually
async def test_a_reader_beside_its_writer_asks_nobody_what_is_confirmed() -> None:
    bookies = Noting(3)
    one = Process(bookies)
    first, second = await one.ledgers.create(USUAL, "t"), await one.ledgers.create(USUAL, "t")
    for writer in (first, second):
        assert await writer.append(b"x") == 0
        reader = await one.ledgers.reader(writer.ledger)
        assert await reader.wait(-1, 5.0) == 0
        assert [entry.payload for entry in await reader.read(0, 9, 100)] == [b"x"]
    assert bookies.watches == 0


# --- too few bookies ---


@virtually
async def test_a_ledger_with_fewer_copies_is_short_once_another_bookie_is_there() -> None:
    bookies = ModelBookies(3)
    bookies.all["b2"].is_full = True
    writer = await Process(bookies).ledgers.create(USUAL, "t")
    assert writer._record.quorum == Quorum(2, 2, 2) and not writer.is_short
    bookies.all["b2"].is_full = False
    assert writer.is_short


@virtually
async def test_a_ledger_that_does_without_a_bookie_is_short_once_another_is_there() -> None:
    bookies = ModelBookies(4)
    bookies.all["b3"].is_full = True
    one = Process(bookies)
    writer = await one.ledgers.create(USUAL, "t")
    bookies.all["b3"].is_full = False
    assert not writer.is_short, "all of its bookies answer"
    bookies.all["b3"].is_full = bookies.all["b0"].is_away = True
    assert await writer.append(b"x") == 0
    await asyncio.sleep(1.0)
    assert not writer.is_short, "nobody could take the place"
    bookies.all["b3"].is_full = False
    assert writer.is_short


# --- telling readers ---


@virtually
async def test_an_idle_writer_tells_each_bookie_once() -> None:
    bookies = Noting(3)
    one = Process(bookies)
    writer = await one.ledgers.create(USUAL, "t")
    for _ in range(3):
        await writer.append(b"x")
    await asyncio.sleep(5.0)
    assert sorted(bookies.tells) == [("b0", 2), ("b1", 2), ("b2", 2)]


@virtually
async def test_a_writer_that_pauses_briefly_tells_no_more_often_than_it_may() -> None:
    bookies = Noting(3)
    one = Process(bookies)
    writer = await one.ledgers.create(USUAL, "t")
    began_s = now_s()
    for _ in range(100):
        await writer.append(b"x")
        await asyncio.sleep(0.010)
    rounds = (now_s() - began_s) / HandleOptions().tell_after_s
    assert 100 < len(bookies.tells) <= 3 * (rounds + 1)


@virtually
async def test_nothing_is_told_while_the_next_entry_is_on_its_way() -> None:
    bookies = Noting(3)
    one = Process(bookies)
    writer = await one.ledgers.create(USUAL, "t")
    await writer.append(b"0")
    for bookie in bookies.all.values():
        bookie.delay_s = 0.5
    following = writer.append(b"1")
    await asyncio.sleep(0.2)
    assert bookies.tells == [], "the entry says it"
    await following
    await asyncio.sleep(0.2)
    assert {confirmed for _, confirmed in bookies.tells} == {1}


@virtually
async def test_the_end_is_told_at_once_also_where_all_is_known() -> None:
    bookies = Noting(3)
    one = Process(bookies)
    writer = await one.ledgers.create(USUAL, "t")
    await writer.append(b"x")
    await asyncio.sleep(1.0)
    bookies.tells.clear()
    await writer.close()
    await asyncio.sleep(0.01)
    assert sorted(bookies.tells) == [("b0", 0), ("b1", 0), ("b2", 0)]


@virtually
async def test_who_appended_hears_of_its_own_entry_and_waits_for_no_later_one() -> None:
    bookies = ModelBookies(3)
    writer = await Process(bookies).ledgers.create(USUAL, "t")
    first = writer.append(b"0")
    await asyncio.sleep(0.002)
    for bookie in bookies.all.values():
        bookie.hangs = True
    later = writer.append(b"1")
    assert await asyncio.wait_for(first, 0.1) == 0
    assert not later.done()


@virtually
async def test_nobody_need_look_at_what_became_of_an_append(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bookies = ModelBookies(3)
    writer = await Process(bookies).ledgers.create(USUAL, "t")
    for bookie in bookies.all.values():
        bookie.is_away = True
    writer.append(b"0")
    await writer.aclose()
    await asyncio.sleep(1.0)
    gc.collect()
    assert "never retrieved" not in caplog.text


# --- bookies that leave and return ---


@virtually
async def test_a_bookie_that_comes_later_takes_the_place_of_one_that_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bookies = ModelBookies(3)
    one = Process(bookies)
    bookies.all["b2"].is_full = True
    writer = await one.ledgers.create(Quorum(2, 2, 2), "t")
    bookies.all["b0"].is_away = True
    waiting = writer.append(b"x")
    await asyncio.sleep(5.0)
    assert not waiting.done() and "instead of" not in caplog.text
    bookies.all["b2"].is_full = False
    assert await asyncio.wait_for(waiting, 3.0) == 0
    assert set(await one.bookies_of(writer.ledger)) == {"b1", "b2"}
    assert "ledger 1: entries from 0 on are stored on b2 instead of b0" in caplog.text


@virtually
async def test_a_bookie_that_failed_is_taken_again_when_it_is_back() -> None:
    bookies = ModelBookies(2)
    one = Process(bookies)
    writer = await one.ledgers.create(ALONE, "t")
    (first,) = await one.bookies_of(writer.ledger)
    (other,) = set(bookies.all) - {first}
    bookies.all[first].is_away = True
    assert await writer.append(b"0") == 0
    assert await one.bookies_of(writer.ledger) == (other,)
    await asyncio.sleep(5.0)
    bookies.all[first].is_away, bookies.all[other].is_away = False, True
    assert await writer.append(b"1") == 1
    assert await one.bookies_of(writer.ledger) == (first,)


@virtually
async def test_the_entry_that_has_waited_longest_decides_when_a_writer_gives_up() -> None:
    bookies = ModelBookies(1)
    writer = await Process(bookies, options=QUICK).ledgers.create(ALONE, "t")
    bookies.all["b0"].is_away = True
    began_s, waiting = now_s(), [writer.append(b"0")]
    while writer.failed is None:
        await asyncio.sleep(0.5)
        if writer.failed is None:
            waiting.append(writer.append(b"more"))
    assert 3.0 <= now_s() - began_s <= 5.0
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(one) for one in found} == {NotEnoughBookies}
    assert "entry 0 was not acknowledged by 1 of 1 bookies within 3 s: b0 is away" in str(found[0])


@virtually
async def test_a_store_that_is_away_is_asked_with_pauses_for_other_bookies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Store(MemoryStateStore):
        is_away = False
        writes = 0

        async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
            self.writes += 1
            if self.is_away:
                raise StorageUnavailable("the store is away")
            return await super().write(key, data, expect, fence)

    bookies, store = ModelBookies(4), Store()
    writer = await Process(bookies, store).ledgers.create(USUAL, "t")
    for name in writer._record.fragments[0].bookies[:2]:
        bookies.all[name].is_away = True
    bookies.all[writer._record.fragments[0].bookies[0]].is_away = False
    bookies.all[writer._record.fragments[0].bookies[0]].is_full = True
    store.is_away, store.writes = True, 0
    waiting = writer.append(b"x")
    await asyncio.sleep(10.0)
    assert 2 < store.writes < 60
    assert "ledger 1: could not replace bookies, retrying: the store is away" in caplog.text
    store.is_away = False
    assert await waiting == 0


def hurry(process: Process) -> None:
    """Make all random pauses as short as possible."""
    process.ledgers._context.clock.uniform = lambda low, high: low  # type: ignore[method-assign]


@virtually
async def test_a_row_that_is_damaged_is_looked_at_again_with_pauses_that_grow() -> None:
    class Store(MemoryStateStore):
        reads_s: ClassVar[list[float]] = []

        async def read(self, key: str, /) -> Row | None:
            if "/ledgers/" in key and "witness" not in key:
                self.reads_s.append(now_s())
            return await super().read(key)

    bookies, store = ModelBookies(4), Store()
    process = Process(bookies, store)
    hurry(process)
    writer = await process.ledgers.create(USUAL, "t")
    (key,) = [key for key, _ in store.range("ledger/tests/ledgers/", "", 9)]
    whole = store.get(key)
    assert whole is not None
    etag = store.put(key, b"?", whole.etag, 0)
    for name in writer._record.fragments[0].bookies[:2]:
        bookies.all[name].is_away = True
    store.reads_s.clear()
    waiting = writer.append(b"x")
    await asyncio.sleep(1.0)
    pauses = [after - before for before, after in pairwise(store.reads_s)]
    assert pauses[:4] == pytest.approx([0.01, 0.02, 0.04, 0.08], abs=0.001)
    store.put(key, whole.data, etag, 0)
    for one in bookies.all.values():
        one.is_away = False
    assert await waiting == 0


@virtually
async def test_a_bookie_that_is_away_is_looked_for_with_pauses_that_grow() -> None:
    class Bookies(ModelBookies):
        def __init__(self) -> None:
            super().__init__(3)
            self.looks_s: list[float] = []

        async def read(self, bookie: str, *of: Any) -> Found:
            self.looks_s.append(now_s())
            raise BookieAway("it only seems to be there")

    bookies = Bookies()
    process = Process(bookies)
    hurry(process)
    writer = await process.ledgers.create(Quorum(3, 3, 2), "t")
    gone = bookies.all[writer._record.fragments[0].bookies[0]]
    gone.is_away = gone.seems_there = True
    await writer.append(b"x")
    await asyncio.sleep(1.0)
    pauses = [after - before for before, after in pairwise(bookies.looks_s)]
    assert pauses[:3] == pytest.approx([0.02, 0.04, 0.08], abs=0.001)


@virtually
async def test_of_what_waits_for_a_bookie_that_has_failed_nothing_more_is_sent() -> None:
    bookies = ModelBookies(3)
    process = Process(bookies, options=HandleOptions(add_bytes_max=1))
    writer = await process.ledgers.create(Quorum(3, 3, 2), "t")
    name = writer._record.fragments[0].bookies[0]
    bookies.all[name].is_away = True
    bookies.all[name].delay_s = 0.01
    calls = bookies.calls[name]
    await asyncio.gather(*[writer.append(b"%d" % number) for number in range(50)])
    await asyncio.sleep(0.5)
    assert bookies.calls[name] - calls <= 4  # the requests that were under way


@virtually
async def test_nothing_is_left_running_of_trouble_that_is_over_or_a_writer_that_has_ended() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies)
    writer, names = await one.written(1)
    await asyncio.sleep(1.0)
    running = len(one.tasks)
    bookies.all[names[0]].is_away = True
    for _ in range(8):
        await writer.append(b"x")
    await asyncio.sleep(1.0)
    assert len(one.tasks) > running, "somebody looks whether it is back"
    bookies.all[names[0]].is_away = False
    await asyncio.sleep(5.0)
    assert len(one.tasks) == running
    await writer.close()
    await asyncio.sleep(1.0)
    assert len(one.tasks) == 0


@virtually
async def test_who_is_told_nothing_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "millstream.ledger")

    class Deaf(ModelBookies):
        async def tell(self, bookie: str, ledger: int, term: int, confirmed: int, /) -> None:
            raise BookieAway(f"{bookie} is away")

    writer = await Process(Deaf(3)).ledgers.create(USUAL, "t")
    await writer.append(b"x")
    await asyncio.sleep(1.0)
    assert (
        "does not know yet that entry 0 is confirmed" in caplog.text
        and await writer.append(b"y") == 1
    )
