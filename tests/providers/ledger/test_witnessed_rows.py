"""Rows with a witness: older rows are refused, and concurrent processes are never reported as
faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from tests.contract.in_virtual_time import in_virtual_time
from tests.providers.ledger.clocks import LoopClock
from tests.providers.ledger.test_metadata_rows import SlowStore, Sum, adding

from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import ROW_TRIES_MAX, RecordRows
from millstream.providers.ledger.metadata.witness import witness_key
from millstream.runtime import Corrupt, Row, StorageUnavailable

KEY = "ledger/c/sums/s"
WITNESS = witness_key("ledger/c/", KEY)


def sums(store: SlowStore, seed: int = 0) -> RecordRows[str, Sum]:
    metadata = Metadata(store, "c", LoopClock(seed), f"process{seed}")
    return RecordRows(metadata, "sums/", Sum, key_part, is_witnessed=True)


def data_of(store: SlowStore, key: str = KEY) -> bytes:
    row = store.get(key)
    assert row is not None
    return row.data


def force(store: SlowStore, key: str, data: bytes | None) -> None:
    row = store.get(key)
    if row is not None:
        store.remove(key, row.etag, 0)
    if data is not None:
        store.put(key, data, None, 0)


@pytest.mark.parametrize("count", [1, 2])
def test_an_older_row_is_refused_by_who_reads_and_by_who_changes_it(count: int) -> None:
    async def main() -> None:
        store = SlowStore()
        rows = sums(store)
        await rows.update("s", adding(1))
        old = data_of(store)
        for number in range(count):
            await rows.update("s", adding(2 + number))
        force(store, KEY, old)
        text = f"row {KEY} has generation 1, but its witness, row {WITNESS}, knows generation "
        with pytest.raises(Corrupt, match=f"{text}{1 + count}"):
            await rows.read("s")
        with pytest.raises(Corrupt, match=text):
            await rows.update("s", adding(9))
        assert data_of(store) == old

    in_virtual_time(main)


def test_a_missing_row_and_one_of_an_earlier_creation_are_refused() -> None:
    async def main() -> None:
        store = SlowStore()
        rows = sums(store)
        for number in range(3):
            await rows.update("s", adding(number))
        old = data_of(store)
        await rows.delete("s")
        assert await rows.read("s") is None and store.get(WITNESS) is None
        await rows.update("s", adding(7))
        force(store, KEY, old)
        with pytest.raises(Corrupt, match=f"row {KEY} is of an earlier creation"):
            await rows.read("s")
        force(store, KEY, None)
        with pytest.raises(Corrupt, match=f"row {KEY} is missing"):
            await rows.read("s")
        await rows.delete("s")
        assert await rows.read("s") is None

    in_virtual_time(main)


def test_a_change_without_a_pin_may_fall_back_to_the_last_one_that_has_it() -> None:
    async def main() -> None:
        store = SlowStore()
        rows = sums(store)
        await rows.update("s", adding(1), pins=False)  # the first change always pins
        first = data_of(store)
        await rows.update("s", adding(2))
        pinned = data_of(store)
        await rows.update("s", adding(3), pins=False)
        force(store, KEY, pinned)
        found = await rows.read("s")
        assert found is not None and found.parts == (1, 2)
        force(store, KEY, first)
        with pytest.raises(Corrupt):
            await rows.read("s")

    in_virtual_time(main)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_change_has_not_happened_before_its_witness_is_stored(is_done: bool) -> None:
    async def main() -> None:
        store = SlowStore()
        rows = sums(store)
        await rows.update("s", adding(1))
        store.fail("write", WITNESS, times=ROW_TRIES_MAX, is_done=False)
        with pytest.raises(StorageUnavailable):
            await rows.update("s", adding(2))
        store.fail("write", WITNESS, times=3, is_done=is_done)
        assert (await rows.update("s", adding(2))).parts == (1, 2)  # the row has the change already
        newest = data_of(store)
        force(store, KEY, None)
        with pytest.raises(Corrupt):
            await rows.read("s")
        force(store, KEY, newest)
        assert (await rows.update("s", adding(3))).parts == (1, 2, 3)

    in_virtual_time(main)


@pytest.mark.parametrize("is_deleted_again", [True, False])
def test_a_deletion_that_was_begun_has_happened_and_is_ended_by_others(
    is_deleted_again: bool,
) -> None:
    async def main() -> None:
        store = SlowStore()
        rows = sums(store)
        await rows.update("s", adding(1))
        store.fail("clear", KEY, times=ROW_TRIES_MAX)
        with pytest.raises(StorageUnavailable):
            await rows.delete("s")
        assert store.get(KEY) is not None and await rows.read("s") is None
        if is_deleted_again:
            await rows.delete("s")
            assert store.get(KEY) is None and store.get(WITNESS) is None
        assert (await rows.update("s", adding(7))).parts == (7,)

    in_virtual_time(main)


def test_a_deletion_that_stopped_halfway_is_ended_and_any_other_row_stays() -> None:
    async def main() -> None:
        store = SlowStore()
        rows, others = sums(store), sums(store, 1)
        await rows.end_deletion("s")
        await rows.update("s", adding(1))
        await rows.end_deletion("s")
        found = await rows.read("s")
        assert found is not None and found.parts == (1,)
        store.fail("clear", KEY, times=ROW_TRIES_MAX)
        with pytest.raises(StorageUnavailable):
            await rows.delete("s")
        assert await rows.read("s") is None
        assert [one.parts async for one in rows.scan()] == [(1,)]
        before_read(store, KEY, lambda: others.update("s", adding(9)))
        await rows.end_deletion("s")  # the reader has seen the deletion, but not the new row
        found = await rows.read("s")
        assert found is not None and found.parts == (9,)
        store.fail("clear", KEY, times=ROW_TRIES_MAX)
        with pytest.raises(StorageUnavailable):
            await rows.delete("s")
        await rows.end_deletion("s")
        assert not [one async for one in rows.scan()]
        assert store.get(KEY) is None and store.get(WITNESS) is None

    in_virtual_time(main)


def test_a_row_that_was_deleted_before_its_writer_pinned_it_is_gone_and_nobody_is_accused() -> None:
    async def main() -> None:
        store = SlowStore()
        rows, others = sums(store), sums(store, 1)
        write = store.write

        async def held_up(key: str, data: bytes, expect: str | None, fence: int, /) -> str:
            etag = await write(key, data, expect, fence)
            if key == KEY:
                store.write = write  # type: ignore[method-assign]
                await others.delete("s")
            return etag

        store.write = held_up  # type: ignore[method-assign]
        await rows.update("s", adding(1))
        assert await rows.read("s") is None
        assert (await rows.update("s", adding(2))).parts == (2,)

    in_virtual_time(main)


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(6))
def test_who_races_is_never_accused(seed: int, rate: float) -> None:
    """Concurrent writes, reads and deletions of one row, with lost answers."""

    async def one(store: SlowStore, number: int, random: Random) -> None:
        rows = sums(store, number)
        for at in range(25):
            await asyncio.sleep(random.uniform(0, 0.004))
            act = random.random()
            try:
                if act < 0.2:
                    await rows.delete("s")
                elif act < 0.6:
                    await rows.update("s", adding(100 * number + at), random.random() < 0.7)
                else:
                    await rows.read("s")
            except StorageUnavailable:
                pass

    async def main() -> None:
        random = Random(seed)
        store = SlowStore(Random(seed), rate=rate)
        await asyncio.gather(*(one(store, number, random) for number in range(1, 6)))
        store.rate = 0
        rows = sums(store)
        await rows.update("s", adding(1))
        await rows.delete("s")
        assert store.get(KEY) is None and store.get(WITNESS) is None

    in_virtual_time(main)


def before_read(store: SlowStore, key: str, act: Callable[[], Awaitable[object]]) -> None:
    """Call `act` before the next read of a key."""
    read = store.read

    async def late(asked: str, /) -> Row | None:
        if asked == key:
            store.read = read  # type: ignore[method-assign]
            await act()
        return await read(asked)

    store.read = late  # type: ignore[method-assign]


def test_a_reader_between_whose_two_looks_the_row_was_made_anew_accuses_nobody() -> None:
    async def main() -> None:
        store = SlowStore()
        rows, others = sums(store), sums(store, 1)
        for number in range(3):
            await rows.update("s", adding(number))

        async def made_anew() -> None:
            await others.delete("s")
            await others.update("s", adding(9))
            before_read(store, WITNESS, lambda: others.update("s", adding(10)))

        before_read(store, KEY, made_anew)
        found = await rows.read("s")
        assert found is not None and found.parts == (9, 10)

    in_virtual_time(main)


def test_who_ends_the_deletion_of_another_too_late_removes_no_later_row() -> None:
    async def main() -> None:
        store = SlowStore()
        rows, others = sums(store), sums(store, 1)
        await rows.update("s", adding(1))
        store.fail("clear", KEY, times=ROW_TRIES_MAX)
        with pytest.raises(StorageUnavailable):
            await rows.delete("s")

        async def made_anew() -> None:
            await others.update("s", adding(9))

        before_read(store, KEY, made_anew)  # the reader has seen the deletion, but not the new row
        assert (await rows.update("s", adding(2))).parts == (9, 2)

    in_virtual_time(main)
