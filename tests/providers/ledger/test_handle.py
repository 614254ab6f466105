"""Writing, reading, closing and recovering ledgers over bookies that fail.

In each test another process reads the ledger back from the bookies and rows.
"""

from __future__ import annotations

import asyncio
from asyncio import Future

import msgspec
import pytest
from tests.providers.ledger.model_bookies import ModelBookies, Process
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.inspection import LedgerError, LedgerState
from millstream.providers.ledger.protocol.errors import (
    LedgerClosed,
    LedgerFenced,
    LedgerGone,
    NotEnoughBookies,
    NotRecoverable,
)
from millstream.providers.ledger.protocol.record import Fragment

QUICK = HandleOptions(unconfirmed_max_s=3.0, recover_max_s=3.0)


async def contents(process: Process, ledger: int) -> list[bytes]:
    """Return all payloads of a ledger, as another process reads them."""
    reader = await process.ledgers.reader(ledger)
    found: list[bytes] = []
    while page := await reader.read(len(found), 7, 1 << 20):
        assert [entry.head.entry for entry in page] == list(
            range(len(found), len(found) + len(page))
        )
        found += [entry.payload for entry in page]
    return found


async def outcome(future: Future[int]) -> int | type[BaseException]:
    try:
        return await future
    except LedgerError as error:
        return type(error)


@pytest.mark.parametrize("quorum", [(1, 1, 1), (3, 3, 2), (5, 3, 2)])
@virtually
async def test_what_is_confirmed_is_read_back_in_order(quorum: tuple[int, int, int]) -> None:
    bookies = ModelBookies(5)
    one = Process(bookies)
    two = Process(bookies, one.store, 1)
    writer = await one.ledgers.create(Quorum(*quorum), "t")
    futures = [writer.append(b"%d" % number) for number in range(40)]
    assert await asyncio.gather(*futures) == list(range(40))
    record = await writer.close()
    assert (record.last, record.state) == (39, LedgerState.CLOSED)
    assert record.length == sum(len(b"%d" % number) for number in range(40))
    assert await contents(two, writer.ledger) == [b"%d" % number for number in range(40)]
    with pytest.raises(LedgerClosed):
        writer.append(b"late")
    assert (await writer.close()) is record


@virtually
async def test_a_reader_elsewhere_sees_the_last_entry_of_an_idle_writer_within_100_ms() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies)
    two = Process(bookies, one.store, 1)
    writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
    reader = await two.ledgers.reader(writer.ledger)
    assert not await reader.read(0, 10, 100)
    for number in range(3):
        await writer.append(b"x")
        told_s = asyncio.get_running_loop().time()
        assert await reader.wait(number - 1, 5.0) == number
        assert asyncio.get_running_loop().time() - told_s < 0.1
    assert await contents(two, writer.ledger) == [b"x"] * 3


@virtually
async def test_a_reader_does_not_wait_for_a_bookie_that_is_silent() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies)
    writer, names = await one.written(5)
    await asyncio.sleep(0.1)
    for silent in names:
        bookies.all[silent].hangs = True
        began_s = asyncio.get_running_loop().time()
        reader = await Process(bookies, one.store, 1).ledgers.reader(writer.ledger)
        for entry in range(5):
            assert [e.payload for e in await reader.read(entry, 1, 1)] == [b"%d" % entry]
        assert asyncio.get_running_loop().time() - began_s < 1.0
        bookies.all[silent].hangs = False


@virtually
async def test_a_bookie_that_was_away_does_not_say_where_an_open_ledger_ends() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies)
    writer, _ = await one.written(5)
    await asyncio.sleep(0.1)
    bookies.all["b1"].is_away = True
    await asyncio.gather(*[writer.append(b"%d" % number) for number in range(5, 9)])
    await asyncio.sleep(0.1)
    bookies.all["b1"].is_away = False
    bookies.all["b1"].delay_s = 0.0001  # b1 is the first to answer
    reader = await Process(bookies, one.store, 1).ledgers.reader(writer.ledger)
    assert await reader.wait(-1, 0.0) == 8


@virtually
async def test_a_bookie_away_is_done_without_while_an_ack_quorum_answers() -> None:
    bookies = ModelBookies(4)
    one = Process(bookies)
    writer, names = await one.written(1)
    bookies.all[names[1]].is_away = True
    await asyncio.gather(*[writer.append(b"%d" % number) for number in range(1, 9)])
    assert (await writer.close()).fragments == (Fragment(0, names),)


@virtually
async def test_two_away_are_replaced_and_what_follows_is_on_the_others() -> None:
    bookies = ModelBookies(6)
    one = Process(bookies)
    writer, names = await one.written(3)
    for name in names[:2]:
        bookies.all[name].is_away = True
    futures = [writer.append(b"%d" % number) for number in range(3, 20)]
    assert await asyncio.gather(*futures) == list(range(3, 20))
    end = await writer.close()
    assert [fragment.first for fragment in end.fragments] == [0, 3]
    assert end.fragments[1].bookies[2] == names[2], "places are kept"
    assert not set(end.fragments[1].bookies) & set(names[:2])
    assert await contents(Process(bookies, one.store, 1), writer.ledger) == [
        b"%d" % number for number in range(20)
    ]


@virtually
async def test_a_full_bookie_is_replaced_though_the_others_would_do() -> None:
    bookies = ModelBookies(4)
    one = Process(bookies)
    writer, names = await one.written(1)
    bookies.all[names[0]].is_full = True
    await writer.append(b"1")
    await asyncio.sleep(1.0)
    await writer.append(b"2")
    assert names[0] not in (await writer.close()).fragments[-1].bookies


@virtually
async def test_bookies_that_only_seem_to_be_there_are_not_tried_round_and_round() -> None:
    bookies = ModelBookies(5)
    one = Process(bookies)
    writer = await one.ledgers.create(Quorum(2, 2, 2), "t")
    await writer.append(b"0")
    keeper = (await one.bookies_of(writer.ledger))[0]
    for name, bookie in bookies.all.items():
        bookie.seems_there, bookie.is_away = True, name != keeper
    future, calls = writer.append(b"1"), sum(bookies.calls.values())
    await asyncio.sleep(3.0)
    assert not future.done()
    assert 4 <= sum(bookies.calls.values()) - calls <= 60, "each at most once a second, and a look"
    for bookie in bookies.all.values():
        bookie.is_away = False
    assert await future == 1


@virtually
async def test_a_recovery_does_not_go_round_among_bookies_that_only_seem_to_be_there() -> None:
    bookies = ModelBookies(5)
    one = Process(bookies)
    writer = await one.ledgers.create(Quorum(2, 2, 2), "t")
    await writer.append(b"0")
    await writer.aclose()
    keeper = (await one.bookies_of(writer.ledger))[0]
    for name, bookie in bookies.all.items():
        bookie.seems_there, bookie.is_away = True, name != keeper
    recovering = asyncio.ensure_future(one.ledgers.recover(writer.ledger))
    await asyncio.sleep(3.0)
    assert not recovering.done()
    assert sum(bookies.calls.values()) < 200
    for bookie in bookies.all.values():
        bookie.is_away = False
    assert (await recovering).last == 0


@virtually
async def test_a_lone_bookie_that_comes_back_gets_what_it_missed() -> None:
    bookies = ModelBookies(1)
    one = Process(bookies)
    writer = await one.ledgers.create(Quorum(1, 1, 1), "t")
    await writer.append(b"0")
    bookies.all["b0"].is_away = True
    futures = [writer.append(b"%d" % number) for number in range(1, 6)]
    await asyncio.sleep(5.0)
    assert not any(future.done() for future in futures)
    bookies.all["b0"].is_away = False
    assert await asyncio.gather(*futures) == [1, 2, 3, 4, 5]


@virtually
async def test_nobody_waits_longer_than_the_limit_for_enough_bookies() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies, options=QUICK)
    writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
    await writer.append(b"0")
    for name in ("b0", "b1"):
        bookies.all[name].hangs = True
    futures = [writer.append(b"%d" % number) for number in range(1, 4)]
    assert [await outcome(future) for future in futures] == [NotEnoughBookies] * 3
    with pytest.raises(NotEnoughBookies, match="of 3 bookies within .* s: b"):
        writer.append(b"late")
    with pytest.raises(NotEnoughBookies, match="needs 2 running bookies .* space, but there are 1"):
        bookies.all["b0"].is_away = bookies.all["b1"].is_away = True
        await one.ledgers.create(Quorum(3, 3, 2), "t")


@virtually
async def test_a_writer_that_gave_up_ends_its_ledger_behind_what_is_confirmed() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies, options=QUICK)
    writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
    await writer.append(b"0")
    for name in ("b0", "b1"):
        bookies.all[name].is_away = True
    assert await outcome(writer.append(b"1")) is NotEnoughBookies
    end = await writer.close()
    assert (end.state, end.last, end.length) == (LedgerState.CLOSED, 0, 1)
    for name in ("b0", "b1"):
        bookies.all[name].is_away = False
    assert await contents(Process(bookies, one.store, 1), writer.ledger) == [b"0"]


@virtually
async def test_with_fewer_bookies_there_are_fewer_copies_never_below_the_ack_quorum() -> None:
    bookies = ModelBookies(2)
    one = Process(bookies)
    writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
    record = await one.rows.read(writer.ledger)
    assert record is not None and record.quorum == Quorum(2, 2, 2)
    assert await writer.append(b"0") == 0


@virtually
async def test_a_writer_that_was_fenced_confirms_nothing_more() -> None:
    bookies = ModelBookies(3)
    one, other = Process(bookies), Process(bookies)
    other = Process(bookies, one.store, 1)
    writer, _ = await one.written(5)
    end = await other.ledgers.recover(writer.ledger)
    assert end.last >= 4
    assert await outcome(writer.append(b"late")) is LedgerFenced
    with pytest.raises(LedgerFenced):
        writer.append(b"later")
    with pytest.raises(LedgerFenced):
        await writer.close()
    assert await contents(other, writer.ledger) == [b"%d" % number for number in range(5)]


@virtually
async def test_a_hanging_bookie_holds_up_no_recovery() -> None:  # BookKeeper #1067
    bookies = ModelBookies(3)
    one = Process(bookies)
    writer, _ = await one.written(5)
    bookies.all["b1"].hangs = True
    began_s = asyncio.get_running_loop().time()
    end = await Process(bookies, one.store, 1).ledgers.recover(writer.ledger)
    assert end.last == 4 and asyncio.get_running_loop().time() - began_s < 1.0


@pytest.mark.parametrize("count", [0, 1])
@virtually
async def test_a_ledger_of_no_or_one_entry_gets_its_end(count: int) -> None:
    bookies = ModelBookies(3)
    one = Process(bookies)
    writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
    await asyncio.gather(*[writer.append(b"abc") for _ in range(count)])
    await writer.aclose()
    end = await Process(bookies, one.store, 1).ledgers.recover(writer.ledger)
    assert (end.last, end.length) == (count - 1, 3 * count)


@virtually
# BookKeeper #2908
async def test_a_bookie_in_doubt_proves_nothing_and_a_copy_elsewhere_is_enough() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies, options=QUICK)
    writer, _ = await one.written(5)
    for name in ("b0", "b1"):
        bookies.all[name].entries.clear()
        bookies.all[name].is_in_doubt = True
    other = Process(bookies, one.store, 1, QUICK)
    with pytest.raises(
        NotRecoverable, match="entry 5 has no readable replica: .*lost a part of its directory"
    ):
        await other.ledgers.recover(writer.ledger)
    bookies.all["b1"].is_in_doubt = False  # b1 never had the entries, and the copy of b2 is enough
    end = await other.ledgers.recover(writer.ledger)
    assert end.last == 4
    assert await contents(other, writer.ledger) == [b"%d" % number for number in range(5)]


@virtually
async def test_what_is_not_confirmed_is_not_read() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies)
    other = Process(bookies, one.store, 1)
    writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
    await asyncio.gather(writer.append(b"0"), writer.append(b"1"))
    bookies.all["b0"].hangs = bookies.all["b1"].hangs = True
    writer.append(b"2")
    await asyncio.sleep(0.1)
    assert max(entry for _, entry in bookies.all["b2"].entries) == 2
    bookies.all["b0"].hangs = bookies.all["b1"].hangs = False
    assert await contents(other, writer.ledger) == [b"0", b"1"]


@virtually
async def test_a_recovery_writes_back_to_other_bookies_and_says_so_with_the_end() -> None:
    bookies = ModelBookies(4)
    one = Process(bookies)
    writer = await one.ledgers.create(Quorum(3, 3, 3), "t")
    await asyncio.gather(*[writer.append(b"%d" % number) for number in range(5)])
    writer.append(b"5")
    await asyncio.sleep(0.002)
    names = await one.bookies_of(writer.ledger)
    bookies.all[names[1]].is_away = True
    await writer.aclose()
    other = Process(bookies, one.store, 1)
    end = await other.ledgers.recover(writer.ledger)
    (spare,) = set(bookies.all) - set(names)
    assert end.fragments[-1].bookies[1] == spare
    for name in names:
        bookies.all[name].is_away = name != names[1]
    bookies.all[names[1]].entries.clear()
    first = end.fragments[-1].first
    for entry in range(first, end.last + 1):
        assert (writer.ledger, entry) in bookies.all[spare].entries


@virtually
async def test_a_reader_finds_entries_that_were_moved() -> None:  # BookKeeper #4613
    bookies = ModelBookies(4)
    one = Process(bookies)
    other = Process(bookies, one.store, 1)
    writer = await one.ledgers.create(Quorum(1, 1, 1), "t")
    await asyncio.gather(*[writer.append(b"%d" % number) for number in range(5)])
    end = await writer.close()
    reader = await other.ledgers.reader(writer.ledger)
    (old,) = end.fragments[0].bookies
    new = next(name for name in bookies.all if name != old)
    bookies.all[new].entries |= bookies.all[old].entries
    bookies.all[old].entries.clear()
    moved = msgspec.structs.replace(end, fragments=(Fragment(0, (new,)),))
    await one.rows.update(writer.ledger, lambda _: moved)
    assert [entry.payload for entry in await reader.read(3, 9, 100)] == [b"3", b"4"]
    bookies.all[new].entries.clear()
    with pytest.raises(NotRecoverable, match=f"entry 2 has no readable replica.*{new}"):
        await reader.read(2, 1, 100)


@virtually
async def test_many_who_recover_while_it_is_written_agree_on_one_end() -> None:
    bookies = ModelBookies(4, seed=3)
    one = Process(bookies)
    writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
    futures = [writer.append(b"%d" % number) for number in range(30)]
    others = [Process(bookies, one.store, seed) for seed in range(1, 5)]
    ends = await asyncio.gather(*[other.ledgers.recover(writer.ledger) for other in others])
    assert len({(end.last, end.fragments) for end in ends}) == 1
    told = [await outcome(future) for future in futures]
    confirmed = [entry for entry in told if isinstance(entry, int)]
    assert max(confirmed, default=-1) <= ends[0].last
    assert len(await contents(others[0], writer.ledger)) == ends[0].last + 1


@virtually
async def test_a_deleted_ledger_is_gone() -> None:
    bookies = ModelBookies(1)
    one = Process(bookies)
    writer = await one.ledgers.create(Quorum(1, 1, 1), "t")
    await writer.append(b"0")
    await one.ledgers.delete(writer.ledger)
    await one.ledgers.delete(writer.ledger)
    for act in (one.ledgers.reader, one.ledgers.recover):
        with pytest.raises(LedgerGone, match="it was deleted"):
            await act(writer.ledger)
    with pytest.raises(LedgerGone):
        await writer.close()


@virtually
async def history(seed: int) -> tuple[int, int]:
    """Write with faults all around, recover at some time, and return the counts of confirmed and
    kept entries.
    """
    bookies = ModelBookies(5, seed)
    rng, quorum = bookies.rng, Quorum(*bookies.rng.choice([(3, 3, 2), (3, 2, 2), (5, 3, 2)]))
    one, other = Process(bookies, seed=seed), Process(bookies, seed=seed)
    other = Process(bookies, one.store, seed + 1)
    writer = await one.ledgers.create(quorum, "t")
    futures: list[Future[int]] = []
    is_over = False

    async def trouble() -> None:
        while not is_over:
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            bookie = rng.choice(list(bookies.all.values()))
            bookie.is_away = rng.random() < 0.3
            bookie.hangs = rng.random() < 0.1
            bookie.is_full = rng.random() < 0.1
            bookie.losses = 0.2 if rng.random() < 0.3 else 0.0
            bookie.delay_s = rng.choice([0.001, 0.02])

    troubling = asyncio.ensure_future(trouble())
    for number in range(rng.randint(1, 80)):
        await asyncio.sleep(rng.choice([0.0, 0.0, 0.001, 0.05]))
        if writer.failed is not None:
            break
        futures.append(writer.append(b"%d" % number))
    await asyncio.sleep(rng.choice([0.0, 0.002, 1.0]))
    recovering = asyncio.ensure_future(other.ledgers.recover(writer.ledger))
    await asyncio.sleep(rng.uniform(0.0, 2.0))
    is_over = True
    await troubling
    for bookie in bookies.all.values():
        bookie.is_away = bookie.hangs = bookie.is_full = False
        bookie.losses = 0.0
    end = await recovering
    told = [await outcome(future) for future in futures]
    confirmed = [entry for entry in told if isinstance(entry, int)]
    kept = await contents(other, writer.ledger)
    assert kept == [b"%d" % number for number in range(end.last + 1)]
    assert confirmed == list(range(len(confirmed))) and len(confirmed) <= len(kept)
    assert end.length == sum(map(len, kept))
    return len(confirmed), len(kept)


@pytest.mark.spare
def test_histories_with_trouble_lose_nothing_confirmed() -> None:
    found = [history(seed) for seed in range(60)]
    assert any(confirmed < kept for confirmed, kept in found), "some unconfirmed entries were kept"
    assert sum(confirmed for confirmed, _ in found) > 200


@virtually
async def test_the_record_says_up_to_where_all_copies_are_there() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies, options=QUICK)
    writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
    await asyncio.gather(*[writer.append(b"x") for _ in range(5)])
    await asyncio.sleep(1.0)
    bookies.all["b1"].is_away = True
    await asyncio.gather(*[writer.append(b"x") for _ in range(5)])
    assert (await writer.close()).complete == 4
    bookies.all["b1"].is_away = False
    other = await one.ledgers.create(Quorum(3, 3, 2), "t")
    await other.append(b"x")
    bookies.all["b0"].hangs = True
    await other.append(b"y")
    assert (await other.close()).complete == 0, "what is owed at the end is not complete"


@virtually
async def test_a_writer_that_gave_up_calls_nothing_complete_that_was_owed() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies, options=QUICK)
    writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
    await writer.append(b"x")
    await asyncio.sleep(1.0)
    bookies.all["b0"].hangs = True
    await writer.append(b"y")
    bookies.all["b1"].is_away = True
    assert await outcome(writer.append(b"z")) is NotEnoughBookies
    assert (await writer.close()).complete == 0


@virtually
async def test_a_recovery_calls_complete_what_the_writer_knew() -> None:
    bookies = ModelBookies(3)
    one = Process(bookies)
    two = Process(bookies, one.store, 1)
    writer = await one.ledgers.create(Quorum(3, 3, 2), "t")
    for _ in range(4):
        await writer.append(b"x")
        await asyncio.sleep(0.01)
    assert (await two.ledgers.recover(writer.ledger)).complete == 2
    empty = await one.ledgers.create(Quorum(3, 3, 2), "t")
    assert (await two.ledgers.recover(empty.ledger)).complete == -1
