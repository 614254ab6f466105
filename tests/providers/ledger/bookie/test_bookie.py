"""The promises of one bookie: adds, fences, reads and watches."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.providers.ledger.bookie.kit import SMALL, entry, new_disk, on_loop, opened

from millstream.providers.ledger.bookie.bookie import Bookie, BookieState
from millstream.providers.ledger.bookie.watches import Watches
from millstream.providers.ledger.inspection import EntryDamaged
from millstream.providers.ledger.protocol.entry import EntryHeader, pack
from millstream.providers.ledger.protocol.errors import (
    BookieAway,
    BookieError,
    BookieOverloaded,
    LedgerFenced,
)
from millstream.providers.ledger.protocol.found import Found, Missing
from millstream.runtime.testing import SimDisk


async def again(bookie: Bookie, disk: SimDisk, crash: bool = True) -> Bookie:
    """Restart the bookie, after a crash or a clean stop."""
    if crash:
        disk.crash()
        bookie.stop(RuntimeError("the power went"))
    else:
        await bookie.aclose()
    return await opened(disk)


def test_what_was_added_is_read_in_order_up_to_the_limits() -> None:
    async def main() -> None:
        bookie = await opened(new_disk())
        all_of = [entry(1, number, 100) for number in range(5)]
        await bookie.add(0, all_of[:3])
        await bookie.add(0, all_of[3:])
        assert await bookie.read(1, 0, 10, 10_000) == Found(tuple(all_of), Missing.ABSENT, 3)
        assert await bookie.read(1, 1, 2, 10_000) == Found(tuple(all_of[1:3]), Missing.LIMIT, 3)
        assert (await bookie.read(1, 0, 5, 10_000)).missing is Missing.LIMIT
        size = len(all_of[0])
        assert len((await bookie.read(1, 0, 10, 2 * size)).entries) == 2
        assert len((await bookie.read(1, 0, 10, 2 * size - 1)).entries) == 1
        assert len((await bookie.read(1, 0, 10, 0)).entries) == 1, "one at least"
        assert await bookie.read(1, 5, 10, 1) == Found((), Missing.ABSENT, 3)
        assert await bookie.read(2, 0, 10, 1) == Found((), Missing.ABSENT, -1)

    on_loop(main)


@pytest.mark.parametrize("crash", [False, True])
def test_entries_and_fences_are_there_after_a_restart(crash: bool) -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        await bookie.add(0, [entry(1, 0), entry(1, 1)])
        assert await bookie.fence(1, 3) == 0
        boot, sequence = bookie.high_water
        bookie = await again(bookie, disk, crash)
        assert bookie.high_water.boot == boot + 1 and bookie.high_water.sequence >= sequence
        found = await bookie.read(1, 0, 9, 9_999)
        assert found == Found((entry(1, 0), entry(1, 1)), Missing.ABSENT, 0)
        with pytest.raises(LedgerFenced) as caught:
            await bookie.add(2, [entry(1, 2)])
        assert caught.value.term == 3
        assert bookie.figures().scanned.segments == (1 if crash else 0)

    on_loop(main)


def test_a_fence_refuses_lower_terms_and_takes_its_own_and_higher_ones() -> None:
    async def main() -> None:
        bookie = await opened(new_disk())
        await bookie.fence(1, 5)
        await bookie.fence(1, 5)
        for term in (0, 4):
            with pytest.raises(LedgerFenced, match="fenced in term 5"):
                await bookie.add(term, [entry(1, 0)])
            with pytest.raises(LedgerFenced):
                await bookie.read(1, 0, 1, 1, term or 1)
        with pytest.raises(LedgerFenced):
            await bookie.fence(1, 4)
        await bookie.add(5, [entry(1, 0)])
        await bookie.add(6, [entry(1, 1)])
        await bookie.fence(1, 6)
        with pytest.raises(LedgerFenced):
            await bookie.add(5, [entry(1, 2)])
        await bookie.add(0, [entry(2, 0)])

    on_loop(main)


def test_nothing_is_acknowledged_or_answered_to_a_fence_before_the_sync() -> None:
    """An answer that denies entries also waits. A read that fences returns the adds that were
    already under way.
    """

    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        loop = asyncio.get_running_loop()
        disk.stall(5.0)
        begin_s = loop.time()
        calls = [
            asyncio.ensure_future(bookie.add(0, [entry(1, 0)])),
            asyncio.ensure_future(bookie.read(1, 0, 9, 9, 2)),
            asyncio.ensure_future(bookie.read(2, 0, 9, 9, 2)),
            asyncio.ensure_future(bookie.fence(1, 2)),
        ]
        await asyncio.sleep(4.9)
        assert not any(call.done() for call in calls)
        assert (await bookie.read(1, 0, 9, 9)).missing is Missing.ABSENT
        await asyncio.gather(*calls)
        assert loop.time() - begin_s >= 5.0
        assert calls[1].result() == Found((entry(1, 0),), Missing.ABSENT, -1)
        assert calls[2].result() == Found((), Missing.ABSENT, -1)

    on_loop(main)


def test_a_fence_counts_from_when_it_was_asked_for() -> None:
    async def main() -> None:
        bookie = await opened(new_disk())
        fence = asyncio.ensure_future(bookie.fence(1, 2))
        await asyncio.sleep(0)
        with pytest.raises(LedgerFenced):
            await bookie.add(1, [entry(1, 0)])
        assert not fence.done()
        await fence

    on_loop(main)


def test_a_fence_again_waits_for_what_its_own_recovery_has_added() -> None:
    """A second attempt in the same term reads entries that the first attempt wrote back. It must
    find all of them after a power failure, too.
    """

    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        await bookie.fence(1, 2)
        disk.stall(5.0)
        added = asyncio.ensure_future(bookie.add(2, [entry(1, 0)]))
        await asyncio.sleep(0)
        again = asyncio.ensure_future(bookie.fence(1, 2))
        await asyncio.sleep(4)
        assert not added.done() and not again.done()
        await again
        assert added.done()

    on_loop(main)


def test_a_second_fence_of_the_same_term_waits_for_the_first() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        disk.stall(5.0)
        fences = [asyncio.ensure_future(bookie.fence(1, 2)) for _ in range(2)]
        await asyncio.sleep(4)
        assert not fences[1].done()
        await asyncio.gather(*fences)

    on_loop(main)


def test_futures_end_in_the_order_of_adds() -> None:
    async def main() -> list[int]:
        disk = new_disk()
        bookie, ended = await opened(disk), list[int]()

        async def add(number: int) -> None:
            await bookie.add(0, [entry(1, number, 2_000)])
            ended.append(number)

        await asyncio.gather(*(add(number) for number in range(20)))
        return ended

    assert on_loop(main) == list(range(20))


def test_adds_that_come_during_a_sync_share_the_next_one() -> None:
    async def main() -> None:
        bookie = await opened(new_disk())
        before = bookie.high_water.sequence
        await asyncio.gather(*(bookie.add(0, [entry(one, 0)]) for one in range(1, 30)))
        assert bookie.high_water.sequence - before <= 2

    on_loop(main)


def test_more_bytes_than_may_wait_are_refused_at_once_but_fences_are_not() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk, replace(SMALL, unsynced_bytes_max=20_000))
        disk.stall(5.0)
        adds = [asyncio.ensure_future(bookie.add(0, [entry(1, n, 6_000)])) for n in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(BookieOverloaded, match="unsynced_bytes_max is 20000"):
            await bookie.add(0, [entry(1, 3, 6_000)])
        fence = asyncio.ensure_future(bookie.fence(2, 1))
        await asyncio.gather(*adds)
        await fence
        await bookie.add(0, [entry(1, 3, 6_000)])
        assert bookie.figures().unsynced_bytes == 0

    on_loop(main)


def test_a_cancelled_add_is_stored_all_the_same() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        call = asyncio.ensure_future(bookie.add(0, [entry(1, 0)]))
        await asyncio.sleep(0)
        call.cancel()
        await bookie.add(0, [entry(1, 1)])
        assert len((await bookie.read(1, 0, 9, 9_999)).entries) == 2

    on_loop(main)


def test_entries_come_in_any_order_and_again() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        for number in (7, 3, 2**40, 0, 3, 5):
            await bookie.add(0, [entry(1, number)])
        for _ in range(2):
            for number in (0, 3, 5, 7, 2**40):
                found = await bookie.read(1, number, 9, 9_999)
                assert found.entries == (entry(1, number),)
                assert found.missing is Missing.ABSENT
            bookie = await again(bookie, disk)

    on_loop(main)


@pytest.mark.parametrize(
    ("entries", "error", "match"),
    [
        ([entry(1, 0), entry(2, 1)], EntryDamaged, "entry 1 of ledger 2"),
        ([entry(1, 0)[:-1] + b"x"], EntryDamaged, "fails its checksum"),
        ([b"short"], EntryDamaged, "header alone has 56"),
        ([pack(EntryHeader(1, -1, -1, -1, 0, 0), b"")], EntryDamaged, "entry -1"),
        ([entry(1, 0, 8_200)], BookieError, "entry_bytes_max is 8192"),
    ],
    ids=["two ledgers", "damaged", "no entry", "negative", "too large"],
)
def test_what_is_no_entry_is_refused_whole(
    entries: list[bytes], error: type[Exception], match: str
) -> None:
    async def main() -> None:
        bookie = await opened(new_disk())
        with pytest.raises(error, match=match):
            await bookie.add(0, entries)
        assert bookie.high_water.sequence == 1
        await bookie.add(0, [])

    on_loop(main)


def test_an_entry_larger_than_a_frame_or_as_large_as_a_segment_may_be_is_stored() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk, replace(SMALL, entry_bytes_max=16_384, frame_bytes_max=1_024))
        packed = [entry(1, number, 16_384 - 56) for number in range(3)]
        await asyncio.gather(*(bookie.add(0, [one]) for one in packed))
        bookie = await again(bookie, disk)
        assert (await bookie.read(1, 0, 9, 99_999)).entries == tuple(packed)

    on_loop(main)


def test_the_end_of_a_crashed_bookie_is_written_again_before_it_answers() -> None:
    """After a crash, the last frame may be in the system's cache only. An entry without an
    acknowledgement may be lost, but an entry that was once shown must stay.
    """

    async def main(seed: int) -> int:
        disk = new_disk(seed)
        bookie = await opened(disk)
        await bookie.add(0, [entry(1, 0)])
        disk.fail_sync()  # a failed sync may leave its data in the cache
        with pytest.raises(BookieAway):
            await bookie.add(0, [entry(1, 1)])
        await bookie.aclose()
        bookie = await opened(disk)
        shown = len((await bookie.read(1, 0, 9, 9_999)).entries)
        bookie = await again(bookie, disk)
        assert len((await bookie.read(1, 0, 9, 9_999)).entries) == shown
        return shown

    assert {on_loop(main, seed) for seed in range(20)} == {1, 2}


def test_after_a_failed_sync_nothing_is_acknowledged_or_answered() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        await bookie.add(0, [entry(1, 0)])
        disk.fail_sync()
        watch = asyncio.ensure_future(bookie.watch(1, 5, 60.0))
        calls = [bookie.add(0, [entry(1, number, 5_000)]) for number in range(1, 5)]
        ended = await asyncio.gather(*calls, bookie.fence(2, 1), watch, return_exceptions=True)
        assert [type(one) for one in ended] == [BookieAway] * 6
        for call in (bookie.add(0, [entry(2, 0)]), bookie.read(1, 0, 1, 1), bookie.fence(1, 1)):
            with pytest.raises(BookieAway, match="has stopped: .*sync failed"):
                await call
        with pytest.raises(BookieAway):
            await bookie.watch(1, 0, 1.0)
        assert bookie.figures().state is BookieState.STOPPED
        assert "sync failed" in bookie.figures().reason
        await bookie.aclose()
        bookie = await opened(disk)
        assert (await bookie.read(1, 0, 9, 9_999)).entries[0] == entry(1, 0)

    on_loop(main)


def test_a_watch_ends_when_more_is_confirmed_at_a_fence_and_after_its_time() -> None:
    async def main() -> None:
        bookie = await opened(new_disk())
        loop = asyncio.get_running_loop()
        await bookie.add(0, [entry(1, 0), entry(1, 1)])
        assert await bookie.watch(1, -1, 9.0) == 0
        watch = asyncio.ensure_future(bookie.watch(1, 0, 9.0))
        await asyncio.sleep(0.1)
        await bookie.add(0, [entry(1, 2)])
        assert await watch == 1 and loop.time() < 1.0
        begin_s = loop.time()
        assert await bookie.watch(1, 1, 9.0) == 1 and loop.time() - begin_s == 9.0
        watch = asyncio.ensure_future(bookie.watch(1, 1, 9.0))
        await asyncio.sleep(0)
        await bookie.tell(1, 0, 2)
        assert await watch == 2
        watch = asyncio.ensure_future(bookie.watch(1, 2, 9.0))
        await asyncio.sleep(0)
        await bookie.fence(1, 4)
        assert await watch == 2 and loop.time() < begin_s + 10
        await bookie.tell(1, 3, 7)  # from an old writer
        await bookie.tell(9, 3, 7)  # for an unknown ledger
        assert (await bookie.read(1, 0, 1, 1)).confirmed == 2
        assert bookie.figures().watches == 0

    on_loop(main)


def test_who_knows_more_than_a_bookie_that_lags_is_not_woken_by_what_it_knows() -> None:
    async def main() -> None:
        bookie = await opened(new_disk())
        loop = asyncio.get_running_loop()
        await bookie.add(0, [entry(1, 0), entry(1, 1)])
        ahead = asyncio.ensure_future(bookie.watch(1, 3, 9.0))  # another bookie has confirmed 3
        behind = asyncio.ensure_future(bookie.watch(1, 1, 9.0))
        await asyncio.sleep(0.1)
        for number in (2, 3):  # entry 3 says that entry 2 is confirmed
            await bookie.add(0, [entry(1, number)])
        assert await behind == 2
        await asyncio.sleep(0.1)
        assert not ahead.done()
        began_s = loop.time()
        await bookie.add(0, [entry(1, 4), entry(1, 5)])
        assert await ahead == 4 and loop.time() - began_s < 0.1

    on_loop(main)


def test_the_end_of_a_ledger_which_is_told_again_is_told_to_all_who_wait() -> None:
    async def main() -> None:
        bookie = await opened(new_disk())
        await bookie.add(0, [entry(1, 0)])
        await bookie.tell(1, 0, 0)
        watches = [asyncio.ensure_future(bookie.watch(1, known, 9.0)) for known in (0, 7)]
        await asyncio.sleep(0.1)
        await bookie.tell(1, 0, 0)
        assert await asyncio.gather(*watches) == [0, 0] and asyncio.get_running_loop().time() < 1.0

    on_loop(main)


def test_nobody_is_kept_who_does_not_wait_any_more() -> None:
    async def main() -> None:
        watches = Watches(9)
        waits = [asyncio.ensure_future(watches.wait(1, 5, wait_s)) for wait_s in (1.0, 5.0)]
        waits.append(asyncio.ensure_future(watches.wait(2, 5, 9.0)))
        await asyncio.sleep(2.0)
        assert len(watches) == 2 and [len(one) for one in watches._by_ledger.values()] == [1, 1]
        waits[2].cancel()
        watches.wake(1, None)
        watches.wake(3, None)
        await asyncio.wait(waits)
        assert len(watches) == 0 and not watches._by_ledger

    on_loop(main)


def test_watches_have_a_limit_and_end_with_the_bookie() -> None:
    async def main() -> None:
        bookie = await opened(new_disk(), replace(SMALL, watches_max=1))
        watch = asyncio.ensure_future(bookie.watch(1, 0, 9.0))
        await asyncio.sleep(0)
        with pytest.raises(BookieOverloaded, match="watches_max is 1"):
            await bookie.watch(1, 0, 9.0)
        await bookie.aclose()
        with pytest.raises(BookieAway):
            await watch
        with pytest.raises(BookieAway):
            await bookie.add(0, [entry(1, 0)])

    on_loop(main)


def test_what_waits_at_a_close_is_written() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        adds = [asyncio.ensure_future(bookie.add(0, [entry(1, n, 3_000)])) for n in range(9)]
        await asyncio.sleep(0)
        await asyncio.gather(bookie.aclose(), bookie.aclose())
        await asyncio.gather(*adds)
        bookie = await opened(disk)
        assert len((await bookie.read(1, 0, 99, 99_999)).entries) == 9
        assert bookie.figures().scanned == (0, 0)

    on_loop(main)


def test_entries_of_many_segments_are_read_from_the_disk_with_what_follows() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        packed = [entry(1 + number % 2, number // 2, 700) for number in range(120)]
        for first in range(0, 120, 6):
            for ledger in (1, 2):
                mine = [one for one in packed[first : first + 6] if one[0] == ledger]
                await bookie.add(0, mine)
        assert bookie.figures().segments > 4
        found = list[bytes]()
        while len(found) < 60:
            found += (await bookie.read(1, len(found), 7, 99_999)).entries
        assert found == packed[::2]
        assert 0 < bookie.figures().cache_bytes <= SMALL.cache_bytes
        bookie = await again(bookie, disk)
        for number in reversed(range(60)):
            assert (await bookie.read(2, number, 1, 1)).entries == (packed[2 * number + 1],)

    on_loop(main)


def test_at_most_one_segment_is_read_at_start() -> None:
    async def main(seed: int) -> None:
        disk = new_disk(seed)
        bookie = await opened(disk)
        for number in range(seed):
            await bookie.add(0, [entry(1, number, 3_000)])
        bookie = await again(bookie, disk)
        assert bookie.figures().scanned.segments == 1
        assert bookie.figures().scanned.size_bytes <= SMALL.segment_bytes
        assert len((await bookie.read(1, 0, 99, 99_999)).entries) == seed

    for seed in range(1, 14):
        on_loop(main, seed)
