"""The numbers of ledgers: the next one, late ones, and the bound below which there is no ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.contract.in_virtual_time import in_virtual_time
from tests.providers.ledger.clocks import LoopClock

from millstream.providers.ledger import Quorum
from millstream.providers.ledger.inspection import LedgerRecord, LedgerState
from millstream.providers.ledger.metadata.ledgers import PROVED_MAX, LedgerIds, ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.runtime import Etag, MemoryStateStore, Row


class Watched(MemoryStateStore):
    """Yields to other tasks in each call, counts writes, and announces each read."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.on_read: Callable[[str], Coroutine[Any, Any, None]] | None = None

    async def read(self, key: str, /) -> Row | None:
        await asyncio.sleep(0.001)
        if (told := self.on_read) is not None:
            await told(key)
        return self.get(key)

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        self.writes += "witness" not in key
        await asyncio.sleep(0.001)
        return self.put(key, data, expect, fence)


def ids_of(store: Watched, seed: int = 0, block: int = 4) -> LedgerIds:
    return LedgerIds(Metadata(store, "c", LoopClock(seed), f"p{seed}"), block)


async def make(store: Watched, ledger: int) -> None:
    rows = ledger_rows(Metadata(store, "c", LoopClock(9), "maker"))
    await rows.create(ledger, LedgerRecord(ledger, LedgerState.OPEN, Quorum(1, 1, 1), 1, ()))


def test_callers_that_wait_together_get_a_block_of_their_number_and_no_larger_one() -> None:
    async def main() -> None:
        store = Watched()
        ids = ids_of(store, block=4)
        for begin, writes in ((1, 2), (21, 4)):
            taken = await asyncio.gather(*(ids.next() for _ in range(20)))
            assert taken == list(range(begin, begin + 20))
            assert (await ids.free(), store.writes) == (begin + 20, writes)

    in_virtual_time(main)


def test_a_number_below_what_was_closed_is_late_and_the_next_one_is_not() -> None:
    async def main() -> None:
        store = Watched()
        ids, other = ids_of(store), ids_of(store, 1)
        first = await ids.next()
        assert not await ids.is_late(first)
        assert await other.avoid(9) == 5
        assert await ids.is_late(first) and await ids.is_late(9) and not await ids.is_late(10)
        assert await ids.next() == 10
        assert not await ids.is_late(10)

    in_virtual_time(main)


@pytest.mark.parametrize("taken", [0, 1])
def test_a_number_that_a_bookie_knows_is_avoided_unless_it_was_given_out(taken: int) -> None:
    async def main() -> None:
        store = Watched()
        ids = ids_of(store)
        for _ in range(taken):
            await ids.next()
        free = 1 + 4 * taken
        assert await ids.free() == free
        assert await ids.avoid(free - 1) is None and await ids.free() == free
        assert await ids.avoid(free) == free
        assert await ids.free() == free + 1

    in_virtual_time(main)


@pytest.mark.parametrize("numbers", [(50, 90), (90, 50)])
def test_of_numbers_that_are_avoided_at_once_the_highest_counts(numbers: tuple[int, int]) -> None:
    async def main() -> None:
        store = Watched()
        await asyncio.gather(*(ids_of(store, one).avoid(one) for one in numbers))
        ids = ids_of(store)
        assert await ids.is_late(90) and not await ids.is_late(91)
        assert await ids.next() == 91

    in_virtual_time(main)


def test_no_ledger_is_there_below_the_oldest_and_none_will_be() -> None:
    async def main() -> None:
        store = Watched()
        ids = ids_of(store, block=16)
        await ids.next()
        await make(store, 5)
        assert await ids.oldest(None) == 5
        assert await ids.is_late(4) and await ids.is_late(16) and not await ids.is_late(17)
        assert await ids.avoid(30) == 17
        # the number was listed a moment ago, and is now known to be deleted
        assert await ids.oldest(2) == 5

    in_virtual_time(main)


def test_what_is_listed_need_not_be_looked_for_above() -> None:
    async def main() -> None:
        store = Watched()
        ids = ids_of(store, block=16)
        await ids.next()
        assert await ids.oldest(7) == 7
        assert await ids.is_late(6) and not await ids.is_late(7)
        writes = store.writes
        assert await ids.oldest(7) == 7 and store.writes == writes

    in_virtual_time(main)


def test_one_look_proves_so_many_numbers_and_no_more() -> None:
    async def main() -> None:
        ids = ids_of(Watched(), block=2 * PROVED_MAX)
        await ids.next()
        assert await ids.oldest(None) == 1 + PROVED_MAX
        assert await ids.oldest(None) == 1 + 2 * PROVED_MAX

    in_virtual_time(main)


def test_numbers_are_closed_before_somebody_looks_whether_their_ledgers_are_there() -> None:
    async def main() -> None:
        store = Watched()
        ids, maker = ids_of(store, block=16), ids_of(store, 1)
        await ids.next()
        looked: list[bool] = []

        async def told(key: str) -> None:
            if "/ledgers/" in key and "witness" not in key:
                store.on_read = None
                looked.append(await maker.is_late(16))

        store.on_read = told
        assert await ids.oldest(None) == 17
        assert looked == [True]

    in_virtual_time(main)
