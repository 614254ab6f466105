"""Parcels of a state: stored with the value, and sent once they are stored."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pytest
from tests.runtime.definition.state_owner import StateOwner

from millstream.runtime import Conflict, Etag, MemoryStateStore, State, StorageUnavailable, state
from millstream.runtime.definition.parcels import ParcelRow, Parcels

T = TypeVar("T")


@dataclass
class Tally:
    count: int = 0


class Holder:
    tally = state(Tally)


class Sender:
    def __init__(self) -> None:
        self.told = 0

    def on_stored(self) -> None:
        self.told += 1

    async def wait_sent(self) -> None: ...


class Store(MemoryStateStore):
    """Fails the next write, before or after it is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = ""
        self.writes = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        await asyncio.sleep(0)
        await self.gate.wait()
        self.writes += 1
        fails, self.fails = self.fails, ""
        if fails == "before":
            raise StorageUnavailable("away")
        etag = await super().write(key, data, expect, fence)
        if fails == "after":
            raise StorageUnavailable("no answer")
        return etag


def made(store: MemoryStateStore) -> State[Tally]:
    return State(Holder.__dict__["tally"], StateOwner(), store, "Holder/a/tally", None)


def row(store: MemoryStateStore) -> Any:
    found = store.get("Holder/a/tally")
    return None if found is None else msgspec.msgpack.decode(found.data)


def add(one: State[Tally], *parcels: bytes) -> None:
    one.parcels.origin = one.parcels.origin or "o"
    for parcel in parcels:
        one.parcels.add(parcel)
        one.value.count += 1


async def test_a_parcel_is_stored_with_the_value_and_sent_only_then() -> None:
    store = Store()
    one = made(store)
    one.parcels.sender = sender = Sender()
    add(one, b"x", b"y")
    assert not one.parcels.has_unsent and not one.parcels.unsent(9)
    await one.write()
    assert sender.told == 1 and one.parcels.unsent(9) == [(1, b"x"), (2, b"y")]
    assert one.parcels.unsent(1) == [(1, b"x")]
    assert row(store)[2:] == ["o", 1, [b"x", b"y"]]
    another = made(store)
    await another.read()
    assert another.parcels.unsent(9) == [(1, b"x"), (2, b"y")] and another.value.count == 2


async def test_rows_of_states_without_parcels_are_as_they_were() -> None:
    store = Store()
    one = made(store)
    await one.write()
    assert len(row(store)) == 2


async def test_what_is_sent_leaves_the_row_and_its_number_is_not_given_again() -> None:
    store = Store()
    one = made(store)
    add(one, b"x", b"y")
    await one.write()
    one.parcels.on_done(1)
    assert one.parcels.unsent(9) == [(2, b"y")] and not one.parcels.is_trimmed
    add(one, b"z")
    await one.commit("s", "q", (1, 1, 0))
    assert row(store)[2:] == ["o", 2, [b"y", b"z"]]
    one.parcels.on_done(3)
    one.value.count = 99  # not written
    await one.trim()
    assert row(store)[2:] == ["o", 4, []] and row(store)[0]["count"] == 3
    assert one.parcels.is_trimmed
    again = made(store)
    await again.read()
    add(again, b"n")
    await again.clear()
    assert again.parcels.unsent(9) == [(4, b"n")]


async def test_a_value_that_is_restored_leaves_no_parcel_behind() -> None:
    store = Store()
    one = made(store)
    add(one, b"x")
    await one.write()
    add(one, b"lost")
    one.restore()
    assert one.parcels.last == 1 and one.parcels.size_bytes == 1
    add(one, b"y")
    await one.write()
    assert one.parcels.unsent(9) == [(1, b"x"), (2, b"y")]


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_write_that_failed_sends_nothing(fails: str) -> None:
    store = Store()
    one = made(store)
    add(one, b"x")
    store.fails = fails
    with pytest.raises(StorageUnavailable):
        await one.commit("s", "q", (1, 1, 0))
    one.restore()
    assert not one.parcels.has_unsent and not one.parcels.count
    add(one, b"other")
    if fails == "before":
        await one.commit("s", "q", (1, 2, 0))
        assert one.parcels.unsent(9) == [(1, b"other")]
        return
    with pytest.raises(Conflict):  # it is stored, so the next activation has it
        await one.commit("s", "q", (1, 2, 0))
    assert not one.parcels.has_unsent
    next_one = made(store)
    await next_one.read()
    assert next_one.parcels.unsent(9) == [(1, b"x")]


async def test_what_is_added_while_a_write_is_under_way_goes_with_the_next_one() -> None:
    store = Store()
    one = made(store)
    add(one, b"x")
    first = asyncio.ensure_future(one.write())
    await asyncio.sleep(0)
    add(one, b"y")
    await first
    assert one.parcels.unsent(9) == [(1, b"x")]
    await one.write()
    assert one.parcels.unsent(9) == [(1, b"x"), (2, b"y")]


async def test_a_restore_keeps_what_a_write_under_way_has() -> None:
    store = Store()
    one = made(store)
    add(one, b"x")
    writing = asyncio.ensure_future(one.write())
    await asyncio.sleep(0)
    add(one, b"lost")
    one.restore()
    assert one.parcels.origin == "o"
    await writing
    assert one.parcels.unsent(9) == [(1, b"x")] and one.parcels.last == 1
    assert row(store)[2:] == ["o", 1, [b"x"]]


async def test_what_is_added_before_a_write_that_waits_is_joined_goes_with_it() -> None:
    store = Store()
    store.gate.clear()
    one = made(store)
    writes: list[asyncio.Future[None]] = []
    for parcel in (b"x", b"y", b"z"):  # the third write joins the second, which waits
        add(one, parcel)
        writes.append(asyncio.ensure_future(one.write()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(*writes)
    assert row(store)[2:] == ["o", 1, [b"x", b"y", b"z"]] and store.writes == 2
    assert len(one.parcels.unsent(9)) == 3


async def test_trimming_does_not_store_what_was_not_asked_for() -> None:
    store = Store()
    one = made(store)
    add(one, b"x")
    await one.write()
    one.parcels.on_done(1)
    trimming = asyncio.ensure_future(one.trim())
    await asyncio.sleep(0)
    add(one, b"lost")
    one.restore()
    await trimming
    assert row(store)[2:] == ["o", 2, []] and not one.parcels.count


async def test_an_origin_that_was_not_stored_is_not_kept() -> None:
    one = made(Store())
    add(one, b"x")
    one.restore()
    assert one.parcels.origin == ""


def test_parcels_of_a_row_are_numbered_from_its_first() -> None:
    parcels = Parcels()
    parcels.load(ParcelRow("o", 7, [b"a", b"bc"]))
    assert parcels.unsent(9) == [(7, b"a"), (8, b"bc")] and parcels.count == 2
    parcels.on_done(7)
    assert parcels.row(8) == ("o", 8, [b"bc"]) and parcels.size_bytes == 2
    assert parcels.row(7) == ("o", 8, [])


async def test_what_a_failed_write_had_is_dropped_by_whoever_sees_it_fail() -> None:
    """The code that sees the failure may run before the write's own callbacks."""
    store = Store()
    one = made(store)
    add(one, b"x")
    store.fails = "before"
    commit = asyncio.ensure_future(one.commit("s", "q", (1, 1, 0)))
    while one._lock.locked() or not commit.done():
        await asyncio.sleep(0)
        if not one._lock.locked() and one.parcels.count:
            one.restore()  # the write has ended, and no callback has run yet
    with pytest.raises(StorageUnavailable):
        await commit
    assert not one.parcels.count


async def test_a_failed_write_is_not_kept_for_the_sake_of_another_one() -> None:
    store = Store()
    one = made(store)
    add(one, b"x")
    await one.write()
    one.parcels.on_done(1)
    add(one, b"lost")
    store.fails = "before"
    commit = asyncio.ensure_future(one.commit("s", "q", (1, 1, 0)))
    await asyncio.sleep(0)
    another = asyncio.ensure_future(one.trim())  # requested before the other write has failed
    with pytest.raises(StorageUnavailable):
        await commit
    assert not another.done()
    one.restore()
    assert not one.parcels.count
    await another
    assert row(store)[2:] == ["o", 2, []]
