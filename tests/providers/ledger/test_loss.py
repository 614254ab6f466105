"""Ending a ledger whose bookies are lost for good: what is left of it, and who is shut out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.providers.ledger.alone.machine import BOOKIE, Machine, VirtualEnv
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import Position
from millstream.providers.ledger.alone.own import OwnLedgers
from millstream.providers.ledger.handle.loss import end_behind, what_is_left
from millstream.providers.ledger.protocol.errors import LedgerClosed, LedgerFenced, NotRecoverable
from millstream.providers.ledger.protocol.quorum import Quorum
from millstream.providers.ledger.protocol.record import LedgerRecord, LedgerState
from millstream.providers.ledger.serving.home import Home


@asynccontextmanager
async def own(machine: Machine, places: Sequence[str]) -> AsyncIterator[OwnLedgers]:
    """The ledgers of the directories that are left."""
    made = OwnLedgers(
        *([Home(place, place) for place in places], machine.store, "topics"),
        *(BOOKIE, VirtualEnv(len(places)), machine.disk),
    )
    await made.start(0.0)
    try:
        yield made
    finally:
        await made.aclose()


PLACES = ("/a/bookie", "/b/bookie", "/c/bookie")


async def written(machine: Machine, quorum: Quorum, count: int) -> int:
    """A ledger of three bookies with entries that were acknowledged, whose writer is gone."""
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
        assert (left.last, left.lost, left.behind, len(left.away)) == (9, 0, 0, 2)
        record = await end_behind(ledgers.context, left)
        assert (record.state, record.last, record.length) == (LedgerState.CLOSED, 9, 20)
        reader = await ledgers.ledgers.reader(ledger)
        found = await reader.read(0, 100, 10**6)
        assert [one.payload for one in found] == [f"e{n}".encode() for n in range(10)]
        with pytest.raises(LedgerClosed):
            await what_is_left(ledgers.context, ledger)


@virtually
async def test_a_striped_ledger_ends_before_the_first_entry_that_is_missing() -> None:
    machine = Machine()
    ledger = await written(machine, Quorum(3, 2, 2), 10)
    async with own(machine, PLACES) as ledgers:
        record = await ledgers.context.rows.read(ledger)
        assert record is not None
        # each is on two of three places: one bookie has all but those of one remainder
        names = {one: n for n, one in enumerate(record.fragments[0].bookies)}
    place = ""
    for one in PLACES:
        async with own(machine, [one]) as ledgers:
            (name,) = ledgers.context.bookies.writable()
            if names[name] == 0:
                place = one
    async with own(machine, [place]) as ledgers:
        left = await what_is_left(ledgers.context, ledger)
        # place 0 has entries 0, 2, 3, 5, 6, 8, 9
        assert (left.last, left.length) == (0, 2)
        # its last entry says that 8 was confirmed
        assert (left.confirmed, left.lost, left.behind) == (8, 8, 5)
        assert (await end_behind(ledgers.context, left)).last == 0


@virtually
async def test_without_any_bookie_it_ends_empty() -> None:
    machine = Machine()
    ledger = await written(machine, Quorum(3, 3, 2), 3)
    async with own(machine, []) as ledgers:
        left = await what_is_left(ledgers.context, ledger)
        assert (left.last, left.length, left.confirmed) == (-1, 0, -1)
        assert (await end_behind(ledgers.context, left)).last == -1


@virtually
async def test_who_recovers_meanwhile_comes_first() -> None:
    machine = Machine()
    ledger = await written(machine, Quorum(3, 3, 2), 3)
    async with own(machine, PLACES) as ledgers:
        left = await what_is_left(ledgers.context, ledger)
        await what_is_left(ledgers.context, ledger)
        with pytest.raises(LedgerFenced):
            await end_behind(ledgers.context, left)
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
        assert (await end_behind(ledgers.context, left)).last == 0


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
        await end_behind(ledgers.context, await what_is_left(ledgers.context, ledger))
    async with machine.topics("/a", "/b", "/c") as topics:
        orders = await topics.topic("orders")
        assert len(await orders.read(Position(0, 1))) in (3, 4)
        assert await orders.produce(None, b"more") is not None


async def rows_of(ledgers: OwnLedgers) -> AsyncIterator[LedgerRecord]:
    number = 1
    while number < 20:
        record = await ledgers.context.rows.read(number)
        if record is not None:
            yield record
        number += 1
