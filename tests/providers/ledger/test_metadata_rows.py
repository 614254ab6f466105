"""Rows by compare-and-set: conflicts, lost answers, and many updates at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from tests.contract.in_virtual_time import in_virtual_time
from tests.providers.ledger.clocks import LoopClock

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.inspection import BookieRecord, LedgerRecord, LedgerState
from millstream.providers.ledger.metadata.bookies import bookie_rows
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata, key_part
from millstream.providers.ledger.metadata.rows import ROW_TRIES_MAX, ROWS_PER_SCAN, RecordRows
from millstream.providers.ledger.protocol.errors import LedgerClosed
from millstream.providers.ledger.protocol.record import Fragment, close
from millstream.runtime import Conflict, Corrupt, Etag, Row, StorageUnavailable
from millstream.runtime.extending import Sealed, seal
from millstream.runtime.testing import FailingStore


class SlowStore(FailingStore):
    """A store that yields to other tasks before and after each call. `before_write` may do more."""

    before_write: Callable[[], Coroutine[Any, Any, None]] | None = None
    writes = 0

    async def read(self, key: str, /) -> Row | None:
        await asyncio.sleep(0.001)
        return self.get(key)

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        self.writes += 1
        await asyncio.sleep(0.001)
        if (before := self.before_write) is not None:
            self.before_write = None
            await before()
        return self.put(key, data, expect, fence)

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        await asyncio.sleep(0.001)
        self.remove(key, expect, fence)


class Sum(msgspec.Struct, frozen=True, array_like=True):
    """The tests' record: numbers that were added."""

    parts: tuple[int, ...] = ()
    operation: str = ""


def sums(store: SlowStore, seed: int = 0) -> RecordRows[str, Sum]:
    return RecordRows(Metadata(store, "c", LoopClock(seed), "a:1@1"), "sums/", Sum, key_part)


def adding(number: int) -> Callable[[Sum | None], Sum]:
    def add(found: Sum | None) -> Sum:
        sum_ = found or Sum()
        return sum_ if number in sum_.parts else Sum((*sum_.parts, number), sum_.operation)

    return add


def test_an_update_writes_what_it_made_of_what_was_there() -> None:
    async def main() -> None:
        rows = sums(SlowStore())
        assert await rows.read("s") is None
        assert (await rows.update("s", adding(1))).parts == (1,)
        two = await rows.update("s", adding(2))
        assert two.parts == (1, 2) and await rows.read("s") == two

    in_virtual_time(main)


def test_an_update_that_another_one_overtook_is_made_on_what_is_there_then() -> None:
    async def main() -> None:
        store = SlowStore()
        rows, others = sums(store), sums(store, 1)

        async def overtake() -> None:
            await others.update("s", adding(7))

        store.before_write = overtake
        assert (await rows.update("s", adding(1))).parts == (7, 1)

    in_virtual_time(main)


def test_two_who_write_the_same_both_succeed_and_one_writes() -> None:
    async def main() -> None:
        store = SlowStore()
        rows, others = sums(store), sums(store, 1)
        one, two = await asyncio.gather(rows.update("s", adding(1)), others.update("s", adding(1)))
        assert one == two == await rows.read("s") and one.parts == (1,)

    in_virtual_time(main)


def test_what_changes_nothing_writes_nothing() -> None:
    async def main() -> None:
        store = SlowStore()
        rows = sums(store)
        one = await rows.update("s", adding(1))
        assert await rows.update("s", adding(1)) == one
        assert (
            await rows.update("s", lambda found: Sum((1,), found.operation if found else "")) == one
        )
        assert store.writes == 1

    in_virtual_time(main)


def test_a_change_sees_what_is_stored_and_never_what_was_read_before() -> None:
    async def main() -> None:
        store = SlowStore()
        rows, others = sums(store), sums(store, 1)
        await rows.update("s", adding(1))
        await others.update("s", adding(2))
        seen: list[tuple[int, ...]] = []

        def look(found: Sum | None) -> Sum:
            assert found is not None
            seen.append(found.parts)
            return adding(3)(found)

        await rows.update("s", look)
        assert seen == [(1, 2)]

    in_virtual_time(main)


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_six_who_update_one_row_lose_nothing(rate: float) -> None:
    async def one(store: SlowStore, seed: int) -> None:
        rows = sums(store, seed)
        for number in range(20):
            await rows.update("s", adding(seed * 100 + number))

    async def main() -> None:
        store = SlowStore(Random(5), rate=rate)
        await asyncio.gather(*(one(store, seed) for seed in range(6)))
        store.rate = 0
        found = await sums(store).read("s")
        assert found is not None
        assert sorted(found.parts) == sorted(s * 100 + n for s in range(6) for n in range(20))
        for seed in range(6):
            own = [part for part in found.parts if part // 100 == seed]
            assert own == sorted(own)

    in_virtual_time(main)


def test_a_lost_answer_is_no_failure_and_the_write_happens_once() -> None:
    async def main() -> None:
        store = SlowStore()
        rows = sums(store)
        store.fail("write", is_done=True)
        made = await rows.create("s", Sum((1,)))
        assert await rows.read("s") == made and store.writes == 1
        store.fail("write", is_done=True, times=2)

        def more(found: Sum | None) -> Sum:
            assert found is not None
            return Sum((*found.parts, 9))

        assert (await rows.update("s", more)).parts == (1, 9)
        assert (await rows.update("s", more)).parts == (1, 9, 9)
        store.fail("clear", is_done=True)
        await rows.delete("s")
        assert await rows.read("s") is None

    in_virtual_time(main)


def test_a_write_and_a_read_that_did_not_happen_are_tried_again() -> None:
    async def main() -> None:
        store = SlowStore()
        rows = sums(store)
        store.fail("write", times=3)
        store.fail("read", times=2)
        assert (await rows.create("s", Sum((1,)))).parts == (1,)
        store.fail("clear", times=3)
        await rows.delete("s")
        await rows.delete("s")
        assert await rows.read("s") is None

    in_virtual_time(main)


def test_a_lost_answer_and_another_write_on_top_make_the_change_twice() -> None:
    """The token of the first write is gone, so a change must tolerate being made twice."""

    async def main() -> None:
        store = SlowStore()
        rows, others = sums(store), sums(store, 1)
        store.fail("write", is_done=True)
        under_way = asyncio.ensure_future(rows.update("s", adding(1)))
        await asyncio.sleep(0.0025)
        await others.update("s", adding(2))
        assert (await under_way).parts == (1, 2)

    in_virtual_time(main)


def test_one_creates_a_row_and_the_other_hears_that_it_is_there() -> None:
    async def main() -> None:
        store = SlowStore()
        rows, others = sums(store), sums(store, 1)
        made = await asyncio.gather(
            rows.create("s", Sum((1,))), others.create("s", Sum((1,))), return_exceptions=True
        )
        assert sorted(type(one).__name__ for one in made) == ["Conflict", "Sum"]

    in_virtual_time(main)


def test_tries_have_an_end_and_the_error_says_whether_the_outcome_is_known() -> None:
    async def main() -> None:
        store = SlowStore()
        rows = sums(store)
        store.fail("write", times=ROW_TRIES_MAX)
        with pytest.raises(StorageUnavailable):
            await rows.update("s", adding(1))
        assert store.writes == ROW_TRIES_MAX

        def never(key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
            if len(tries) == 0:
                tries.append("lost")
                raise StorageUnavailable("lost")
            raise Conflict("another one")

        tries = ["known"]
        store.put = never  # type: ignore[method-assign]
        with pytest.raises(Conflict):
            await rows.update("s", adding(1))
        tries.clear()
        with pytest.raises(StorageUnavailable, match="unknown"):
            await rows.update("s", adding(1))

    in_virtual_time(main)


def test_an_error_of_the_change_is_the_callers_and_ends_the_update() -> None:
    open_ = LedgerRecord(7, LedgerState.OPEN, Quorum(1, 1, 1), 1, (Fragment(0, ("a",)),))

    async def main() -> None:
        rows = ledger_rows(Metadata(SlowStore(), "c", LoopClock()))
        await rows.create(7, open_)
        sealed = await rows.update(7, lambda found: close(found or open_, 1, 3, 30))
        assert sealed.last == 3
        again = await rows.update(7, lambda found: close(found or open_, 1, 3, 30))
        assert again == sealed
        with pytest.raises(LedgerClosed):
            await rows.update(7, lambda found: close(found or open_, 1, 4, 40))

    in_virtual_time(main)


def test_a_row_that_cannot_be_read_is_named() -> None:
    async def main() -> None:
        store = SlowStore()
        key = "ledger/c/sums/s"
        etag = store.put(key, b"?", None, 0)
        with pytest.raises(Corrupt, match="row ledger/c/sums/s is not a sealed row"):
            await sums(store).read("s")
        newer = seal(key, Sealed(1, 1, msgspec.msgpack.encode([("x",), "o"])))
        etag = store.put(key, newer, etag, 0)
        with pytest.raises(Corrupt, match="ledger/c/sums/s is intact, but this version cannot"):
            await sums(store).read("s")
        no_text = msgspec.msgpack.encode([(1,), "o"])[:-1] + b"\xff"
        store.put(key, seal(key, Sealed(1, 1, no_text)), etag, 0)
        with pytest.raises(Corrupt, match="ledger/c/sums/s is intact, but this version cannot"):
            await sums(store).read("s")

    in_virtual_time(main)


def test_scans_come_in_pages_and_in_the_order_of_numbers() -> None:
    async def main() -> None:
        store = SlowStore()
        rows = ledger_rows(Metadata(store, "c", LoopClock()))
        numbers = [*range(1, ROWS_PER_SCAN + 8), 10**18]
        for number in reversed(numbers):
            await rows.create(
                number, LedgerRecord(number, LedgerState.OPEN, Quorum(1, 1, 1), 1, ())
            )
        assert [record.ledger async for record in rows.scan()] == numbers
        others = ledger_rows(Metadata(store, "c2", LoopClock()))
        assert [record async for record in others.scan()] == []

    in_virtual_time(main)


NAMES = ["t", "t/u", "t%2Fu", "ü", "a b", "..", "t\n", "T"]


def test_no_two_names_give_one_key_or_one_below_another() -> None:
    parts = [key_part(name) for name in NAMES]
    assert len(set(parts)) == len(NAMES)
    assert not any("/" in part or not part.isascii() or "\n" in part for part in parts)


def test_tokens_of_two_parts_of_one_silo_differ() -> None:
    one, two = (Metadata(SlowStore(), "c", LoopClock(seed), "a:1@1") for seed in (1, 2))
    tokens = [metadata.new_operation() for metadata in (one, two) for _ in range(3)]
    assert len(set(tokens)) == 6 and all(token.startswith("a:1@1:") for token in tokens)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_no_ledger_number_is_given_twice(rate: float) -> None:
    async def main() -> None:
        store = SlowStore(Random(3), rate=rate)
        takers = [LedgerIds(Metadata(store, "c", LoopClock(seed))) for seed in range(4)]
        taken = await asyncio.gather(*(one.next() for one in takers for _ in range(40)))
        assert len(set(taken)) == 160 and min(taken) >= 1
        for at in range(4):
            own = taken[at * 40 : at * 40 + 40]
            assert own == sorted(own)
        if rate == 0:
            assert store.writes >= 12 and max(taken) <= 12 * 16

    in_virtual_time(main)


def test_a_bookie_is_as_it_last_said() -> None:
    async def main() -> None:
        rows = bookie_rows(Metadata(SlowStore(), "c", LoopClock()))
        one = BookieRecord("u", "a:1@1", 3, True, 10, 20, 5.0)
        made = await rows.update("u", lambda _: one)
        assert msgspec.structs.replace(made, operation="") == one
        assert [record async for record in rows.scan()] == [made]

    in_virtual_time(main)


def names_in(store: SlowStore) -> Sequence[str]:
    return [key for key, _ in store.range("", "", 10)]


def test_keys_are_as_the_module_says() -> None:
    async def main() -> None:
        store = SlowStore()
        metadata = Metadata(store, "x/y", LoopClock())
        await LedgerIds(metadata).next()
        await bookie_rows(metadata).create("u", BookieRecord("u"))
        record = LedgerRecord(7, LedgerState.OPEN, Quorum(1, 1, 1), 1, ())
        await ledger_rows(metadata).create(7, record)
        assert names_in(store) == [
            "ledger/x%2Fy/bookies/u",
            "ledger/x%2Fy/counter",
            "ledger/x%2Fy/ledgers/0000000000000000007",
            "ledger/x%2Fy/witness/1/counter",
            "ledger/x%2Fy/witness/4/ledgers/0000000000000000007",
        ]

    in_virtual_time(main)
