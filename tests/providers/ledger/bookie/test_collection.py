"""The collection of a bookie: which entries and segments are deleted, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.providers.ledger.bookie.kit import PATH, SMALL, entry, new_disk, on_loop, opened

from millstream.providers.ledger import BookieOptions
from millstream.providers.ledger.bookie.bookie import Bookie, BookieState
from millstream.providers.ledger.protocol.errors import BookieReadOnly, LedgerFenced
from millstream.providers.ledger.protocol.found import Missing
from millstream.runtime import StorageUnavailable
from millstream.runtime.testing import SimDisk


def gone(*ledgers: int) -> Callable[[int], Awaitable[bool]]:
    async def is_gone(ledger: int) -> bool:
        await asyncio.sleep(0.001)
        return ledger in ledgers

    return is_gone


async def filled(disk: SimDisk, ledgers: int = 4, entries: int = 12) -> Bookie:
    """Fill a bookie with ledgers that share segments."""
    bookie = await opened(disk)
    for number in range(entries):
        for ledger in range(1, ledgers + 1):
            await bookie.add(0, [entry(ledger, number, 900)])
    return bookie


async def mixed(disk: SimDisk, options: BookieOptions = SMALL) -> Bookie:
    """Add 40 entries. Every eighth is of ledger 1, and the others are of ledger 2."""
    bookie = await opened(disk, options)
    for number in range(40):
        await bookie.add(0, [entry(1 + (number % 8 != 0), number, 900)])
    return bookie


async def entries_of(bookie: Bookie, ledger: int) -> int:
    found = await bookie.read(ledger, 0, 99, 1 << 20)
    assert found.entries == tuple(entry(ledger, n, 900) for n in range(len(found.entries)))
    return len(found.entries)


def test_a_deleted_ledger_leaves_a_tombstone_that_outlives_its_segments() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await filled(disk)
        assert bookie.figures().segments > 3
        await bookie.fence(9, 3)
        everything = gone(1, 2, 3, 4, 9)
        collected = await bookie.collect(everything)
        assert collected.ledgers == 5 and collected.segments > 2
        assert await bookie.collect(everything) == (0, 0, 0)
        for restart in (None, False, True):
            if restart is not None:
                if restart:
                    disk.crash()
                    bookie.stop(RuntimeError("the power went"))
                else:
                    await bookie.aclose()
                bookie = await opened(disk)
            for ledger in (1, 4, 9):
                for term in (0, 3, 99):
                    with pytest.raises(LedgerFenced, match="was deleted"):
                        await bookie.add(term, [entry(ledger, 0)])
                assert (await bookie.read(ledger, 0, 1, 1)).missing is Missing.UNKNOWN
                assert await bookie.fence(ledger, 7) == -1
            assert bookie.figures().ledgers == bookie.figures().fences == 0
            assert bookie.figures().live_bytes == 0
            assert (await bookie.read(5, 0, 1, 1)).missing is Missing.ABSENT
        left = [name for name in disk.list(PATH) if name.endswith(".seg")]
        assert len(left) == bookie.figures().segments <= 4

    on_loop(main)


@pytest.mark.parametrize("crash", [False, True])
def test_a_deleted_ledger_stays_so_while_others_keep_its_segments(crash: bool) -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await filled(disk)
        assert await bookie.collect(gone(1)) == (1, 0, 0)
        if crash:
            disk.crash()
            bookie.stop(RuntimeError("the power went"))
        else:
            await bookie.aclose()
        bookie = await opened(disk)
        assert bookie.figures().ledgers == 3
        assert (await bookie.read(1, 0, 1, 1)).missing is Missing.UNKNOWN
        assert await entries_of(bookie, 2) == 12

    on_loop(main)


def test_a_round_in_which_the_metadata_fail_deletes_nothing() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await filled(disk)

        async def is_gone(ledger: int) -> bool:
            if ledger == 4:
                raise StorageUnavailable("no answer")
            return True

        with pytest.raises(StorageUnavailable):
            await bookie.collect(is_gone)
        for ledger in range(1, 5):
            assert await entries_of(bookie, ledger) == 12
            await bookie.add(0, [entry(ledger, 12, 900)])
        assert (await bookie.collect(gone(4))).ledgers == 1

    on_loop(main)


def test_what_little_is_left_of_a_segment_moves_and_is_read_as_before() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await mixed(disk)
        before = bookie.figures()
        assert before.segments == 3
        collected = await bookie.collect(gone(2))
        after = bookie.figures()
        assert collected.segments == 2 and collected.moved_bytes > 3_000
        assert after.used_bytes < before.used_bytes / 2 and after.segments < before.segments
        for _ in range(2):
            for number in range(0, 40, 8):
                assert (await bookie.read(1, number, 1, 1)).entries == (entry(1, number, 900),)
            await bookie.aclose()
            bookie = await opened(disk)

    on_loop(main)


def test_what_short_lives_have_left_moves_together() -> None:
    """Each start begins a segment and allocates its space."""

    async def main() -> None:
        disk = new_disk()
        for number in range(8):
            bookie = await opened(disk)
            await bookie.add(0, [entry(1, number, 90)])
            await bookie.aclose()
        bookie = await opened(disk)
        assert bookie.figures().segments == 9
        assert (await bookie.collect(gone())).segments == 8
        assert bookie.figures().segments == 1
        disk.crash()
        bookie.stop(RuntimeError("the power went"))
        found = await (await opened(disk)).read(1, 0, 99, 9_999)
        assert found.entries == tuple(entry(1, number, 90) for number in range(8))

    on_loop(main)


def test_a_segment_with_a_damaged_entry_stays() -> None:
    """Without the segment, nobody would know about the entry, and the bookie would deny it."""

    async def main() -> None:
        disk = new_disk()
        bookie = await mixed(disk)
        offset = bookie.store.index.find(1, 0) & 0xFFFFFFFF
        disk.flip_bit(f"{PATH}/{1:016d}.seg", offset + 300)
        await bookie.collect(gone(2))
        await bookie.collect(gone(2))
        await bookie.aclose()
        bookie = await opened(disk)
        assert (await bookie.read(1, 0, 1, 1)).missing is Missing.UNKNOWN
        assert (await bookie.read(1, 8, 1, 1)).entries == (entry(1, 8, 900),)
        assert f"{1:016d}.seg" in disk.list(PATH)

    on_loop(main)


def test_tombstones_below_the_oldest_ledger_are_one() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await filled(disk, ledgers=6, entries=2)
        await bookie.collect(gone(2, 4))
        assert len(bookie.store.state.forgotten) == 2
        await bookie.collect(gone(), 5)
        await bookie.collect(gone(), 5)
        assert list(bookie.store.state.forgotten) == [(0, 4)]
        for ledger in (1, 3):
            with pytest.raises(LedgerFenced):
                await bookie.add(9, [entry(ledger, 0)])
        assert await entries_of(bookie, 5) == 2

    on_loop(main)


def test_reads_go_on_while_segments_are_compacted_and_removed() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await mixed(disk, replace(SMALL, cache_bytes=1))  # all reads come from the disk
        collecting = asyncio.ensure_future(bookie.collect(gone(2)))
        await asyncio.sleep(0)
        assert await bookie.collect(gone(2)) == (0, 0, 0), "one round at a time"
        reads = 0
        while not collecting.done():
            number = 8 * (reads % 5)
            assert (await bookie.read(1, number, 1, 1)).entries == (entry(1, number, 900),)
            reads += 1
            await asyncio.sleep(0.0001)
        assert reads > 5 and (await collecting).segments == 2

    on_loop(main)


@pytest.mark.parametrize("seed", range(25))
def test_a_crash_at_any_step_of_a_round_loses_nothing(seed: int) -> None:
    """Cut the power after a given number of changes of the disk."""

    async def main() -> None:
        disk = new_disk(seed)
        bookie = await mixed(disk)
        disk.cut_power_after(seed, disk.crash)
        try:
            await bookie.collect(gone(2))
        except Exception as error:
            assert "stopped" in str(error), error
        disk.keep_power()
        disk.crash()
        bookie.stop(RuntimeError("the power went"))
        bookie = await opened(disk)
        for number in range(40):
            ledger = 1 + (number % 8 != 0)
            found = await bookie.read(ledger, number, 1, 1)
            if ledger == 1:
                assert found.entries == (entry(ledger, number, 900),)
            elif not found.entries:
                assert found.missing is Missing.UNKNOWN
        await bookie.collect(gone(2))
        for number in range(0, 40, 8):
            assert (await bookie.read(1, number, 1, 1)).entries == (entry(1, number, 900),)
        assert bookie.figures().segments < 5 and bookie.figures().doubt_below == 0

    on_loop(main)


@pytest.mark.parametrize("crash", [False, True])
def test_what_others_have_is_dropped_and_can_come_back(crash: bool) -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await filled(disk)
        await bookie.fence(2, 3)
        before = bookie.figures().live_bytes
        collected = await bookie.collect(gone(), is_elsewhere=gone(1, 2, 3))
        assert collected.ledgers == 3 and collected.segments > 0
        assert bookie.figures().live_bytes < before / 3
        assert (await bookie.collect(gone(), is_elsewhere=gone(1, 2, 3))).ledgers == 0
        assert (await bookie.read(1, 0, 1, 1)).missing is Missing.UNKNOWN
        await bookie.add(3, [entry(2, number, 900) for number in range(4, 6)])
        for _ in range(2):
            found = await bookie.read(2, 4, 2, 9_999)  # a start may bring further entries back
            assert found.entries == (entry(2, 4, 900), entry(2, 5, 900))
            for ledger in (1, 2, 3):
                found = await bookie.read(ledger, 30, 1, 1)
                assert found.missing is Missing.UNKNOWN, "it may have been here"
            with pytest.raises(LedgerFenced, match="fenced in term 3"):
                await bookie.add(2, [entry(2, 7)])
            assert await entries_of(bookie, 4) == 12
            assert (await bookie.read(9, 0, 1, 1)).missing is Missing.ABSENT
            if crash:
                disk.crash()
                bookie.stop(RuntimeError("the power went"))
            else:
                await bookie.aclose()
            bookie = await opened(disk)

    on_loop(main)


def test_what_comes_while_it_is_asked_for_stays() -> None:
    async def main() -> None:
        bookie = await filled(new_disk())

        async def is_elsewhere(ledger: int) -> bool:
            if ledger == 2:  # the answer was true when asked, but then the ledger is copied back
                await bookie.add(0, [entry(2, 3, 900)])
            return ledger in (1, 2)

        assert (await bookie.collect(gone(), is_elsewhere=is_elsewhere)).ledgers == 1
        assert await entries_of(bookie, 2) == 12
        assert not (await bookie.read(1, 0, 1, 1)).entries

    on_loop(main)


def test_a_round_in_which_the_metadata_fail_drops_nothing_that_others_have() -> None:
    async def main() -> None:
        bookie = await filled(new_disk())

        async def is_elsewhere(ledger: int) -> bool:
            if ledger == 4:
                raise StorageUnavailable("no answer")
            return True

        with pytest.raises(StorageUnavailable):
            await bookie.collect(gone(), is_elsewhere=is_elsewhere)
        for ledger in range(1, 5):
            assert await entries_of(bookie, ledger) == 12

    on_loop(main)


def test_a_ledger_that_was_left_and_is_deleted_later_leaves_a_tombstone_alone() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await filled(disk)
        await bookie.collect(gone(), is_elsewhere=gone(1, 2))
        assert bookie.store.state.left == {1, 2}
        await bookie.collect(gone(1))
        await bookie.collect(gone(), 3)
        assert bookie.store.state.left == set()
        await bookie.aclose()
        bookie = await opened(disk)
        assert bookie.store.state.left == set() and len(bookie.store.state.forgotten) == 1

    on_loop(main)


@pytest.mark.parametrize("seed", range(25))
def test_a_crash_at_any_step_of_dropping_what_others_have_denies_nothing(seed: int) -> None:
    async def main() -> None:
        disk = new_disk(seed)
        bookie = await filled(disk, ledgers=2)
        disk.cut_power_after(seed, disk.crash)
        try:
            await bookie.collect(gone(), is_elsewhere=gone(2))
            await bookie.add(0, [entry(2, 5, 900)])
        except Exception as error:
            assert "stopped" in str(error), error
        disk.keep_power()
        disk.crash()
        bookie.stop(RuntimeError("the power went"))
        bookie = await opened(disk)
        assert await entries_of(bookie, 1) == 12
        for number in range(12):
            found = await bookie.read(2, number, 1, 1)
            if not found.entries:
                assert found.missing is Missing.UNKNOWN, number
        await bookie.collect(gone(), is_elsewhere=gone(2))
        assert (await bookie.read(2, 0, 1, 1)).missing is Missing.UNKNOWN
        assert bookie.figures().doubt_below == 0

    on_loop(main)


@pytest.mark.parametrize("empty", [0, 60])
def test_on_a_full_disk_empty_segments_go_first_and_others_are_compacted_if_there_is_room(
    empty: int,
) -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        for number in range(empty):
            await bookie.add(0, [entry(3, number, 900)])
        for number in range(300):
            await bookie.add(0, [entry(1 + (number % 8 != 0), number, 900)])
        before = bookie.segments()
        disk.fill_up(0)
        if empty:
            with pytest.raises(BookieReadOnly, match="no space"):
                await bookie.collect(gone(2, 3))
            assert bookie.segments() == before and bookie.state is BookieState.READ_ONLY
        disk.fill_up(6_000)  # enough for tombstones and the list of segments, but not for entries
        collected = await bookie.collect(gone(2, 3))
        assert (collected.moved_bytes > 20_000) == (empty > 0)
        assert (len(bookie.segments()) < 8) == (empty > 0)
        disk.make_room()
        await asyncio.sleep(100.0)
        await bookie.collect(gone(2, 3))
        assert len(bookie.segments()) < 8
        for number in range(0, 300, 8):
            assert (await bookie.read(1, number, 1, 10_000)).entries

    on_loop(main)


def test_a_ledger_is_deleted_from_when_its_tombstone_was_asked_for() -> None:
    """Until the tombstone is durable, the bookie neither adds to the ledger nor denies its
    entries.
    """

    async def main() -> None:
        disk = new_disk()
        bookie = await filled(disk, ledgers=2, entries=2)
        disk.stall(5.0)
        collecting = asyncio.ensure_future(bookie.collect(gone(1)))
        await asyncio.sleep(1.0)
        assert not collecting.done()
        with pytest.raises(LedgerFenced, match="ledger 1 was deleted"):
            await bookie.add(0, [entry(1, 2, 900)])
        with pytest.raises(LedgerFenced, match="ledger 1 was deleted"):
            await bookie.add(9, [entry(1, 2, 900)])
        assert (await bookie.read(1, 2, 9, 9)).missing is Missing.UNKNOWN
        assert (await bookie.read(2, 2, 9, 9)).missing is Missing.ABSENT
        await collecting
        assert bookie.store.ledgers() == [2]

    on_loop(main)
