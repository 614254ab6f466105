"""Closing a ledger whose bookies are lost for good: the remaining entries, and fenced old
processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.providers.ledger.alone.machine import BOOKIE, Machine, VirtualEnv, at_s, values
from tests.providers.ledger.clocks import LoopClock
from tests.providers.ledger.copies import COPIED_S, Copies
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import LedgerTopic, Position, Quorum
from millstream.providers.ledger.alone.own import OwnLedgers
from millstream.providers.ledger.handle.loss import give_up, what_is_left
from millstream.providers.ledger.inspection import (
    ENDLESS,
    EntriesGivenUp,
    LedgerRecord,
    LedgerState,
    TopicRecord,
)
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.metadata.rows import RecordRows
from millstream.providers.ledger.protocol.errors import LedgerFenced, NotRecoverable
from millstream.providers.ledger.serving.home import Home
from millstream.providers.ledger.topic.appending.takeover import LEFT_OUT
from millstream.providers.ledger.topic.numbers import LostNumbers
from millstream.providers.ledger.topic.record import topic_rows
from millstream.runtime import CursorTooOld


@asynccontextmanager
async def own(machine: Machine, places: Sequence[str]) -> AsyncIterator[OwnLedgers]:
    """Open the ledgers of the remaining directories."""
    made = OwnLedgers(
        [Home(place, place) for place in places],
        machine.store,
        "topics",
        BOOKIE,
        VirtualEnv(len(places)),
        machine.disk,
    )
    await made.start(0.0)
    try:
        yield made
    finally:
        await made.aclose()


PLACES = ("/a/bookie", "/b/bookie", "/c/bookie")


async def written(machine: Machine, quorum: Quorum, count: int) -> int:
    """Make a ledger of three bookies with acknowledged entries, whose writer has ended."""
    async with own(machine, PLACES) as ledgers:
        writer = await ledgers.ledgers.create(quorum, "t")
        for number in range(count):
            await writer.append(f"e{number}".encode())
        await asyncio.sleep(1)
        await writer.aclose()
        return writer.ledger


@virtually
async def test_what_every_living_bookie_has_is_kept() -> None:
    machine = Machine()
    ledger = await written(machine, Quorum(3, 3, 2), 10)
    async with own(machine, PLACES[:1]) as ledgers:
        with pytest.raises(NotRecoverable):
            await ledgers.ledgers.recover(ledger)
        left = await what_is_left(ledgers.context, ledger)
        assert (left.last, left.lost, len(left.away)) == (9, 0, 2)
        record = await give_up(ledgers.context, left)
        assert (record.state, record.last, record.length) == (LedgerState.CLOSED, 9, 20)
        reader = await ledgers.ledgers.reader(ledger)
        found = await reader.read(0, 100, 10**6)
        assert [one.payload for one in found] == [f"e{n}".encode() for n in range(10)]
        again = await what_is_left(ledgers.context, ledger)
        assert (again.gaps, again.away) == ((), ())


@virtually
async def test_of_a_striped_ledger_only_the_entries_that_nobody_has_are_given_up() -> None:
    machine = Machine()
    ledger = await written(machine, Quorum(3, 2, 2), 10)
    async with own(machine, PLACES) as ledgers:
        record = await ledgers.context.rows.read(ledger)
        assert record is not None
        # Each entry is on two of three places, so one bookie lacks every third entry.
        names = {one: n for n, one in enumerate(record.fragments[0].bookies)}
    place = ""
    for one in PLACES:
        async with own(machine, [one]) as ledgers:
            (name,) = ledgers.context.bookies.writable()
            if names[name] == 0:
                place = one
    async with own(machine, [place]) as ledgers:
        left = await what_is_left(ledgers.context, ledger)
        # Place 0 has entries 0, 2, 3, 5, 6, 8, 9. Its last entry says that entry 8 was confirmed.
        assert (left.last, left.length, left.lost, len(left.away)) == (9, 20, 3, 2)
        gaps = [(gap.first, gap.last, gap.before, gap.after) for gap in left.gaps]
        assert gaps == [
            (1, 1, b"e0", b"e2"),
            (4, 4, b"e3", b"e5"),
            (7, 7, b"e6", b"e8"),
            (10, ENDLESS, b"e9", b""),
        ]
        record = await give_up(ledgers.context, left)
        assert (record.state, record.last) == (LedgerState.CLOSED, 9)
        assert record.lost == ((1, 1), (4, 4), (7, 7), (10, ENDLESS))
        reader = await ledgers.ledgers.reader(ledger)
        assert [one.payload for one in await reader.read(2, 9, 10**6)] == [b"e2", b"e3"]
        for entry in (1, 4, 7):
            with pytest.raises(EntriesGivenUp):
                await reader.read(entry, 9, 10**6)


@virtually
async def test_without_any_bookie_it_ends_empty() -> None:
    machine = Machine()
    ledger = await written(machine, Quorum(3, 3, 2), 3)
    async with own(machine, []) as ledgers:
        left = await what_is_left(ledgers.context, ledger)
        assert (left.last, left.length, left.lost) == (-1, 0, 0)
        assert (await give_up(ledgers.context, left)).last == -1


@virtually
async def test_who_recovers_meanwhile_comes_first() -> None:
    machine = Machine()
    ledger = await written(machine, Quorum(3, 3, 2), 3)
    async with own(machine, PLACES) as ledgers:
        left = await what_is_left(ledgers.context, ledger)
        await what_is_left(ledgers.context, ledger)
        with pytest.raises(LedgerFenced):
            await give_up(ledgers.context, left)
        record = await ledgers.ledgers.recover(ledger)
        assert record.last == 2


@virtually
async def test_a_writer_that_lives_is_shut_out() -> None:
    machine = Machine()
    async with own(machine, PLACES) as ledgers:
        writer = await ledgers.ledgers.create(Quorum(3, 3, 2), "t")
        await writer.append(b"e0")
        left = await what_is_left(ledgers.context, writer.ledger)
        with pytest.raises(LedgerFenced):
            await writer.append(b"e1")
        assert (await give_up(ledgers.context, left)).last == 0


@virtually
async def test_the_topic_goes_on_behind_what_is_left() -> None:
    machine = Machine()
    topics = await machine.topics("/a", "/b", "/c").__aenter__()
    orders = await topics.topic("orders")
    for number in range(4):
        await orders.produce(None, str(number).encode())
    machine.die()
    for place in PLACES[1:]:
        machine.disk.restore(place, {})
    async with own(machine, PLACES[:1]) as ledgers:
        (ledger,) = [one.ledger async for one in rows_of(ledgers)]
        await give_up(ledgers.context, await what_is_left(ledgers.context, ledger))
    async with machine.topics("/a", "/b", "/c") as topics:
        orders = await topics.topic("orders")
        found = await orders.read(Position(0, 1))
        assert len(found) in (3, 4)
        more = await orders.produce(None, b"more")
        end = found[-1].position.number + 1
        assert more is not None and more.number == end + LEFT_OUT
        with pytest.raises(CursorTooOld) as gone:
            await orders.read(Position(0, end))
        assert gone.value.first == more
        assert values(await orders.read(more)) == ["more"]
        assert (await orders.subscribe("billing")).backlog == len(found) + 1


async def rows_of(ledgers: OwnLedgers) -> AsyncIterator[LedgerRecord]:
    number = 1
    while number < 20:
        record = await ledgers.context.rows.read(number)
        if record is not None:
            yield record
        number += 1


async def striped(machine: Machine) -> int:
    """Make a topic of closed ledgers and keep one bookie, which has two thirds of each ledger.

    The other bookies are lost for good. Each message is an entry. Returns the number of messages.
    """
    async with machine.topics("/a", "/b", "/c") as topics:
        orders = await topics.topic(
            "orders", ensemble=3, write_quorum=2, ack_quorum=2, ledger_entries_max=9
        )
        for number in range(1, 41):
            await orders.produce(None, str(number).encode())
        billing = await orders.subscribe("billing")
        billing.acknowledge_upto((await billing.batch(messages_max=1))[0])
    for place in PLACES[1:]:
        machine.disk.restore(place, {})
    return 40


def topics_in(machine: Machine) -> RecordRows[str, TopicRecord]:
    return topic_rows(Metadata(machine.store, "topics", LoopClock()))


async def closed_ledgers(ledgers: OwnLedgers) -> list[int]:
    return [one.ledger async for one in rows_of(ledgers) if one.state is LedgerState.CLOSED]


@virtually
async def test_of_closed_ledgers_everything_that_any_bookie_has_is_read_on() -> None:
    machine = Machine()
    count = await striped(machine)
    async with own(machine, PLACES[:1]) as ledgers:
        numbers = LostNumbers(topics_in(machine))
        lost: set[int] = set()
        found = await closed_ledgers(ledgers)
        assert len(found) == 5
        for ledger in found:
            left = await what_is_left(ledgers.context, ledger)
            parts = await numbers.of(left.record, left.gaps)
            lost |= {n for first, end in parts for n in range(first, end)}
            assert sum(end - first for first, end in parts) == left.lost > 0
            before = await give_up(ledgers.context, left)
            assert (before.last, before.length) == (left.record.last, left.record.length)
            assert await give_up(ledgers.context, left) == before
    assert 10 < len(lost) < 16
    kept = [str(n) for n in range(1, count + 1) if n not in lost]
    async with machine.topics("/a", "/b", "/c") as topics:
        orders = await topics.topic("orders")
        assert await orders.produce(None, b"more") == Position(0, count + 1)
        assert await all_of(orders) == [*kept, "more"]
        billing = await orders.subscribe("billing")
        got: list[str] = []
        gaps = 0
        while billing.backlog:
            try:
                batch = await billing.batch(messages_max=7)
            except CursorTooOld:
                gaps += 1
            else:
                got += values(batch)
                billing.acknowledge(*batch)
        assert got == [*[one for one in kept if one != "1"], "more"] and gaps > 4
        for number in sorted(lost):  # a rewind into a gap
            with pytest.raises(CursorTooOld) as gone:
                await orders.read(Position(0, number))
            first = gone.value.first.number
            assert first > number and {*range(number, first)} <= lost and first not in lost
    async with machine.topics("/a", "/b", "/c") as topics:  # its acknowledgements are stored
        orders = await topics.topic("orders")
        assert (await orders.subscribe("billing")).backlog == 0


async def all_of(topic: LedgerTopic) -> list[str]:
    """Read all messages of the only partition, and skip gaps."""
    at, found = Position(0, 1), list[str]()
    while True:
        try:
            page = await topic.read(at)
        except CursorTooOld as gone:
            at = gone.first
            continue
        if not page:
            return found
        found += values(page)
        at = Position(0, page[-1].position.number + 1)


@virtually
async def test_a_time_that_lies_in_a_gap_is_found_behind_it() -> None:
    machine = Machine()
    async with machine.topics("/a", "/b", "/c") as topics:
        orders = await topics.topic("orders", ensemble=3, write_quorum=2, ack_quorum=2)
        begun_s = asyncio.get_running_loop().time()
        for number in range(1, 11):
            await orders.produce(None, str(number).encode())
            await asyncio.sleep(10)
    for place in PLACES[1:]:
        machine.disk.restore(place, {})
    lost: set[int] = set()
    async with own(machine, PLACES[:1]) as ledgers:
        for ledger in await closed_ledgers(ledgers):
            left = await what_is_left(ledgers.context, ledger)
            parts = await LostNumbers(topics_in(machine)).of(left.record, left.gaps)
            lost |= {n for first, end in parts for n in range(first, end)}
            await give_up(ledgers.context, left)
    assert len(lost) in (3, 4)
    async with machine.topics("/a", "/b", "/c") as topics:
        owned = await topics._home.topics.open("orders/0", 100)
        beside = topics._home.topics.reader("orders/0")
        for number in range(1, 11):
            wanted = next(n for n in range(number, 12) if n not in lost)
            time_s = at_s(begun_s + 10 * (number - 1) - 5).timestamp()
            assert await owned.reader.seek(time_s) == await beside.seek(time_s) == wanted
        await beside.aclose()
        await owned.aclose()


@virtually
async def test_producers_are_known_from_the_ledger_before_where_the_last_one_is_lost() -> None:
    machine = Machine()
    async with machine.topics("/a", "/b") as topics:
        orders = await topics.topic(
            "orders", ensemble=1, write_quorum=1, ack_quorum=1, ledger_entries_max=2
        )
        for number in range(1, 9):
            await orders.produce(None, b"x", producer="p", sequence=number)
    machine.disk.restore(PLACES[1], {})
    async with own(machine, PLACES[:1]) as ledgers:
        lost = [await what_is_left(ledgers.context, one) for one in await closed_ledgers(ledgers)]
        for left in lost:
            await give_up(ledgers.context, left)
        whole = [left.record.ledger for left in lost if not left.gaps]
    assert 0 < len(whole) < len(lost), "another seed"
    async with machine.topics("/a", "/b") as topics:
        orders = await topics.topic("orders")
        known = [
            number
            for number in range(1, 9)
            if (await orders.produce(None, b"x", producer="p", sequence=number)) is None
        ]
        assert known, whole


@virtually
async def test_copies_are_made_of_what_is_left_and_nothing_lacks_any_more() -> None:
    copies = Copies(6)
    lost, whole = await copies.ledger((3, 2, 2), 9), await copies.ledger((3, 3, 2), 6)
    bookies = (await copies.record(lost)).fragments[0].bookies
    auditor = copies.auditor()
    copies.lose(*bookies[:2])
    await asyncio.sleep(COPIED_S)
    (stuck,) = auditor.auditor.report().stuck
    assert stuck.ledger == lost and f"millstream ledger recover {lost} --accept-loss" in stuck.why
    context = copies.writer.ledgers._context
    left = await what_is_left(context, lost)
    assert left.lost == 3 and set(left.away) == set(bookies[:2])
    assert all(map(auditor.auditor.is_lost, left.away))
    await give_up(context, left)
    await asyncio.sleep(COPIED_S)
    report = auditor.auditor.report()
    assert not report.stuck and not report.lacking
    record = await copies.record(lost)
    assert not set(bookies[:2]) & set(record.fragments[0].bookies)
    missing = [entry for entry, _ in await copies.missing(lost)]
    assert set(missing) == {n for first, last in record.lost for n in range(first, last + 1)}
    copies.payloads = {whole: copies.payloads[whole]}
    await copies.check()
