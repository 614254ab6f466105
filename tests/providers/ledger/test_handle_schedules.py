"""Writers and recoveries whose messages arrive in one chosen order."""

from __future__ import annotations

import asyncio
from asyncio import Future

import msgspec
import pytest
from tests.providers.ledger.gates import GatedBookies, GatedStore
from tests.providers.ledger.model_bookies import One, Process
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.handle.writer import LedgerWriter
from millstream.providers.ledger.inspection import LedgerError, LedgerRecord, LedgerState
from millstream.providers.ledger.protocol.errors import (
    LedgerClosed,
    LedgerFenced,
    NotEnoughBookies,
    NotRecoverable,
)
from millstream.providers.ledger.protocol.record import Fragment, close, recovering

QUICK = HandleOptions(unconfirmed_max_s=3.0, recover_max_s=3.0)
USUAL = Quorum(3, 3, 2)


class Scene:
    """The process of one writer, and rows and bookies with gates."""

    def __init__(self, bookies: int, options: HandleOptions | None = None) -> None:
        self.bookies, self.store = GatedBookies(bookies), GatedStore()
        self.one = Process(self.bookies, self.store, options=options)
        self.gates = self.bookies.gates

    def other(self, seed: int = 1, options: HandleOptions | None = None) -> Process:
        """Return another process."""
        return Process(self.bookies, self.store, seed, options)

    async def record(self, writer: LedgerWriter) -> LedgerRecord:
        record = await self.one.rows.read(writer.ledger)
        assert record is not None
        return record

    def go(self, *names: str) -> None:
        """Make these bookies unavailable."""
        for name in names:
            self.bookies.all[name].is_away = True


async def told(future: Future[int]) -> object:
    """Return the number of an append, or the class of its error."""
    try:
        return await future
    except LedgerError as error:
        return type(error)


async def changing(scene: Scene) -> tuple[LedgerWriter, LedgerRecord, Future[int]]:
    """Make a writer that lost two of three bookies and waits at the gate to store their
    replacement.
    """
    writer = await scene.one.ledgers.create(USUAL, "t")
    record = await scene.record(writer)
    scene.go(*record.fragments[0].bookies[:2])
    scene.store.gates.shut("write")
    future = writer.append(b"0")
    await scene.store.gates.until("write")
    return writer, record, future


@virtually
async def test_nothing_on_other_bookies_counts_before_the_record_names_them() -> None:
    """BookKeeper #1591: the row store stalls, so entries wait although enough bookies have them."""
    scene = Scene(6)
    writer, record, future = await changing(scene)
    writes = scene.store.writes
    others = [writer.append(b"%d" % number) for number in range(1, 5)]
    await asyncio.sleep(10.0)
    assert not future.done() and not any(other.done() for other in others)
    assert await scene.record(writer) == record
    scene.store.gates.open("write")
    assert await asyncio.gather(future, *others) == [0, 1, 2, 3, 4]
    assert scene.store.writes == writes + 2, "one change for one failure: the row, its witness"
    (fragment,) = (await scene.record(writer)).fragments
    assert fragment.bookies[2] == record.fragments[0].bookies[2]
    for name in fragment.bookies[:2]:
        assert (writer.ledger, 4) in scene.bookies.all[name].entries


@virtually
async def test_a_second_failure_during_a_change_is_seen_to_behind_it() -> None:
    scene = Scene(6)
    writer, record, future = await changing(scene)
    scene.go(record.fragments[0].bookies[2])
    scene.store.gates.open("write")
    assert await future == 0
    await writer.append(b"1")
    (fragment, *_) = (await scene.record(writer)).fragments
    assert fragment.first == 0 and not set(fragment.bookies[:2]) & set(record.fragments[0].bookies)


@virtually
async def test_an_end_during_a_change_leaves_bookies_as_they_were() -> None:
    scene = Scene(6)
    writer, record, future = await changing(scene)
    closing = asyncio.ensure_future(writer.close())
    again = asyncio.ensure_future(writer.close())
    assert await told(future) is LedgerClosed
    scene.store.gates.open("write")
    end = await closing
    assert (end.last, end.length, end.state) == (-1, 0, LedgerState.CLOSED)
    assert await again is end


@virtually
async def test_an_end_by_somebody_else_during_a_change_stands() -> None:
    scene = Scene(6)
    writer, record, future = await changing(scene)
    go_on = scene.store.gates.pass_others("write")
    end = close(recovering(record), 2, 1234, 9999)
    await scene.one.rows.update(writer.ledger, lambda _: end)
    go_on()
    assert await told(future) is LedgerClosed
    found = await scene.record(writer)
    assert (found.last, found.length, found.fragments) == (1234, 9999, record.fragments)


@virtually
async def test_a_recovery_that_begins_during_a_change_stops_the_writer() -> None:
    scene = Scene(6)
    writer, record, future = await changing(scene)
    go_on = scene.store.gates.pass_others("write")
    await scene.one.rows.update(writer.ledger, lambda _: recovering(record))
    go_on()
    assert await told(future) is LedgerFenced
    found = await scene.record(writer)
    assert (found.state, found.fragments) == (LedgerState.RECOVERING, record.fragments)
    with pytest.raises(LedgerFenced):
        writer.append(b"late")


@virtually
async def test_a_change_keeps_what_was_moved_of_older_fragments_meanwhile() -> None:
    scene = Scene(7)
    writer = await scene.one.ledgers.create(USUAL, "t")
    await writer.append(b"0")
    record = await scene.record(writer)
    scene.go(*record.fragments[0].bookies[:2])
    await writer.append(b"1")
    two = await scene.record(writer)
    assert [fragment.first for fragment in two.fragments] == [0, 1]
    moved = Fragment(0, two.fragments[1].bookies)
    await scene.one.rows.update(
        writer.ledger, lambda _: msgspec.structs.replace(two, fragments=(moved, two.fragments[1]))
    )
    scene.go(*two.fragments[1].bookies[:2])
    await writer.append(b"2")
    end = await writer.close()
    assert [fragment.first for fragment in end.fragments] == [0, 1, 2]
    assert end.fragments[0] == moved


@virtually
async def test_an_end_that_another_gave_it_is_the_writers_if_it_is_the_same() -> None:
    for last, is_same in ((1, True), (0, False)):
        scene = Scene(3)
        writer = await scene.one.ledgers.create(USUAL, "t")
        await asyncio.gather(writer.append(b"ab"), writer.append(b"cd"))
        record = await scene.record(writer)
        end = close(record, 1, last, 2 * (last + 1))
        await scene.one.rows.update(writer.ledger, lambda _, end=end: end)  # type: ignore[misc]
        if is_same:
            assert (await writer.close()).last == 1
        else:
            with pytest.raises(LedgerClosed, match="ends with entry 0"):
                await writer.close()


@virtually
async def test_a_write_that_comes_late_to_a_bookie_that_was_read_is_refused() -> None:
    """BookKeeper #2614: one bookie's fence is lost, but a read of that bookie finds no entry.

    The recovery therefore closes the ledger before the entry. When the entry arrives there later,
    it is already on one bookie, and would be on an ack quorum.
    """
    scene = Scene(3)
    writer = await scene.one.ledgers.create(USUAL, "t")
    one, two, three = (await scene.record(writer)).fragments[0].bookies
    scene.gates.shut(f"add {one}", f"add {three}")
    future = writer.append(b"0")
    await scene.gates.until(f"add {one}", f"add {three}")
    while not scene.bookies.all[two].entries:
        await asyncio.sleep(0.001)
    scene.gates.shut(f"fence {three}")
    scene.gates.lose(f"read {two}")
    end = await scene.other().ledgers.recover(writer.ledger)
    assert end.last == -1, "two of three deny it"
    scene.gates.open(f"add {three}")
    assert await told(future) is LedgerFenced
    scene.gates.open(f"add {one}")
    await asyncio.sleep(1.0)
    for name in (one, three):
        assert not scene.bookies.all[name].entries


@virtually
async def test_an_idle_writer_whose_bookies_are_all_gone_confirms_nothing_on_fresh_ones() -> None:
    """BookKeeper #4812: another process closed the ledger, and the bookies were replaced."""
    scene = Scene(3, QUICK)
    writer = await scene.one.ledgers.create(USUAL, "t")
    await asyncio.gather(writer.append(b"0"), writer.append(b"1"))
    end = await scene.other().ledgers.recover(writer.ledger)
    assert end.last == 1
    for name in list(scene.bookies.all):
        scene.bookies.all[name].is_away = True
    scene.bookies.all |= {name: One() for name in ("b7", "b8", "b9")}
    assert await told(writer.append(b"late")) in {LedgerClosed, LedgerFenced}
    assert await scene.record(writer) == end
    assert writer.confirmed == 1


@virtually
async def test_an_end_of_another_recovery_is_taken_over() -> None:
    scene = Scene(3)
    writer = await scene.one.ledgers.create(USUAL, "t")
    await writer.append(b"0")
    names = (await scene.record(writer)).fragments[0].bookies
    gates = [f"add {name}" for name in names]
    scene.gates.shut(*gates)
    recovery = asyncio.ensure_future(scene.other().ledgers.recover(writer.ledger))
    await scene.gates.until(*gates)
    record = await scene.record(writer)
    other = close(record, record.term, -1, 0)
    await scene.one.rows.update(writer.ledger, lambda _: other)
    scene.gates.open(*gates)
    assert (await recovery).last == -1


@virtually
async def test_a_recovery_that_cannot_read_or_write_back_leaves_the_ledger_as_it_is() -> None:
    """The bookies' adds are lost first, and then the bookies are unavailable."""
    scene = Scene(3, QUICK)
    writer = await scene.one.ledgers.create(USUAL, "t")
    await asyncio.gather(writer.append(b"0"), writer.append(b"1"))
    names = (await scene.record(writer)).fragments[0].bookies
    scene.gates.lose(*(f"add {name}" for name in names))
    with pytest.raises((NotEnoughBookies, NotRecoverable)):
        await scene.other(1, QUICK).ledgers.recover(writer.ledger)
    assert (await scene.record(writer)).state is LedgerState.RECOVERING
    scene.go(*names)
    with pytest.raises(NotRecoverable, match="could be fenced"):
        await scene.other(2, QUICK).ledgers.recover(writer.ledger)
    for name in names:
        scene.bookies.all[name].is_away = False
    scene.gates.find(*(f"add {name}" for name in names))
    assert (await scene.other(3).ledgers.recover(writer.ledger)).last == 1


@virtually
async def test_an_entry_behind_a_missing_one_is_not_kept() -> None:
    scene = Scene(3)
    writer = await scene.one.ledgers.create(Quorum(3, 2, 2), "t")
    await asyncio.gather(*[writer.append(b"%d" % number) for number in range(3)])
    names = (await scene.record(writer)).fragments[0].bookies
    scene.gates.shut(*(f"add {name}" for name in names))
    one, two = writer.append(b"3"), writer.append(b"4")
    await scene.gates.until(*(f"add {name}" for name in names))
    four = next(iter(writer_entries(writer, 4)))
    for name in (names[1], names[2]):
        scene.bookies.all[name].entries[writer.ledger, 4] = four
    await writer.aclose()
    end = await scene.other().ledgers.recover(writer.ledger)
    assert end.last == 2
    assert await told(one) is LedgerClosed and await told(two) is LedgerClosed


def writer_entries(writer: LedgerWriter, entry: int) -> list[bytes]:
    packed = writer._sending.core.find_packed(entry)
    return [] if packed is None else [packed]


@virtually
async def test_a_slow_bookie_owes_so_many_bytes_and_then_has_failed() -> None:
    scene = Scene(4, HandleOptions(owed_bytes_max=1_000))
    writer = await scene.one.ledgers.create(USUAL, "t")
    record = await scene.record(writer)
    slow = record.fragments[0].bookies[1]
    scene.gates.shut(f"add {slow}", f"read {slow}")
    for _ in range(10):
        await writer.append(b"x" * 300)
    core = writer._sending.core
    assert core.away() == [1], "the others do without it"
    scene.gates.open(f"add {slow}", f"read {slow}")
    while core.away():
        await asyncio.sleep(0.01)
    await writer.append(b"y")
    assert (await writer.close()).last == 10


@virtually
async def test_a_recovery_ends_though_a_bookie_is_full_or_answers_late() -> None:
    scene = Scene(4)
    writer = await scene.one.ledgers.create(USUAL, "t")
    await asyncio.gather(*[writer.append(b"%d" % number) for number in range(20)])
    names = (await scene.record(writer)).fragments[0].bookies
    scene.bookies.all[names[0]].delay_s = 0.5
    scene.bookies.all[names[1]].is_full = True
    end = await scene.other(1, HandleOptions(page_entries=3)).ledgers.recover(writer.ledger)
    assert end.last == 19 and end.length == sum(len(b"%d" % number) for number in range(20))


@virtually
async def test_a_full_bookie_without_another_costs_no_more_the_longer_it_lasts() -> None:
    scene = Scene(3)
    writer = await scene.one.ledgers.create(USUAL, "t")
    await writer.append(b"0")
    scene.bookies.all[(await scene.record(writer)).fragments[0].bookies[0]].is_full = True
    await writer.append(b"1")
    counts: list[int] = []
    for _ in range(3):
        for _ in range(30):
            await asyncio.sleep(1.0)
            await writer.append(b"x")
        counts.append(len(asyncio.all_tasks()))
    assert max(counts) - min(counts) <= 2, "there is one way to each bookie"
    assert (await writer.close()).last == 91
