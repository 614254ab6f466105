"""A running bookie reads its segments, and finds the damage in them."""

from __future__ import annotations

import pytest
from tests.providers.ledger.bookie.kit import entry, new_disk, on_loop, opened

from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.runtime.testing import SimDisk


async def checked(bookie: Bookie, segment: int) -> tuple[list[tuple[int, int]], bool, int]:
    """Return the damaged entries, whether the segment is faulty, and the number of bytes read."""
    check = await bookie.check(segment)
    try:
        damaged, size_bytes = list[tuple[int, int]](), 0
        while (step := await check.step()) is not None:
            damaged += step.damaged
            size_bytes += step.size_bytes
        return damaged, check.is_faulty, size_bytes
    finally:
        check.close()


async def filled(disk: SimDisk, entries: int = 60) -> Bookie:
    bookie = await opened(disk)
    for number in range(entries):
        await bookie.add(0, [entry(1 + number % 2, number // 2, 900)])
    return bookie


def test_a_whole_directory_has_no_damage() -> None:
    async def main() -> None:
        bookie = await filled(new_disk())
        assert len(bookie.segments()) > 3
        for segment in bookie.segments():
            damaged, is_faulty, size_bytes = await checked(bookie, segment)
            assert damaged == [] and not is_faulty
            assert size_bytes == bookie.store.ends[segment] - 512

    on_loop(main)


def test_what_is_written_while_a_segment_is_checked_is_for_the_next_check() -> None:
    async def main() -> None:
        bookie = await filled(new_disk(), 4)
        (segment,) = bookie.segments()
        end = bookie.store.ends[segment]
        check = await bookie.check(segment)
        await bookie.add(0, [entry(1, 9, 900)])
        assert bookie.store.ends[segment] > end
        read = 0
        while (step := await check.step()) is not None:
            assert step.offset <= end
            read += step.size_bytes
        assert read == end - 512 and not check.is_faulty
        check.close()
        closed = await bookie.check(segment)
        closed.close()
        with pytest.raises(ValueError, match="closed"):
            await closed.step()

    on_loop(main)


@pytest.mark.parametrize("sort", ["bit", "sector"])
def test_a_damaged_entry_is_found_in_old_segments_and_in_the_newest(sort: str) -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await filled(disk)
        for ledger, number in ((1, 2), (2, 29)):
            file, offset = bookie.where(ledger, number)
            if sort == "bit":
                disk.flip_bit(file, offset + 500)
            else:
                disk.make_unreadable(file, offset + 500)
        found = [await checked(bookie, segment) for segment in bookie.segments()]
        damaged = [one for in_segment, _, _ in found for one in in_segment]
        assert {(1, 2), (2, 29)} <= set(damaged)
        assert len(damaged) == 2 or sort == "sector", "a sector of this disk has several frames"
        assert [is_faulty for _, is_faulty, _ in found].count(True) == 2
        assert found[0][1] and found[-1][1]

    on_loop(main)


def test_where_a_frame_is_lost_its_entries_are_read_one_by_one() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await filled(disk)
        file, offset = bookie.where(1, 2)
        start = offset // 512 * 512
        *_, whole = await checked(bookie, 1)
        disk.flip_bit(file, start + 20)  # in the head of the frame
        damaged, is_faulty, size_bytes = await checked(bookie, 1)
        assert damaged == [] and is_faulty
        assert whole - size_bytes == 1_024 - len(entry(1, 2, 900)), "the entry, not its frame"
        disk.flip_bit(file, offset + 500)
        assert (await checked(bookie, 1))[0] == [(1, 2)]

    on_loop(main)


def test_a_copy_that_was_written_again_elsewhere_is_not_judged_by_the_old_one() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await filled(disk)
        file, offset = bookie.where(1, 2)
        disk.flip_bit(file, offset + 500)
        await bookie.add(0, [entry(1, 2, 900)])
        damaged, is_faulty, _ = await checked(bookie, 1)
        assert damaged == [] and is_faulty

    on_loop(main)


def test_a_segment_with_damage_goes_once_its_entries_are_repaired() -> None:
    async def main() -> None:
        async def none(ledger: int) -> bool:
            return False

        disk = new_disk()
        bookie = await filled(disk)
        file, offset = bookie.where(1, 2)
        disk.flip_bit(file, offset + 500)
        bookie.collection.wear_out(1)
        await bookie.collect(none)
        assert bookie.segments()[0] == 1, "the damaged entry is nowhere else"
        segments = bookie.begin_repair(1, [2])
        await bookie.add(0, [entry(1, 2, 900)])
        bookie.end_repair(segments)
        await bookie.collect(none)
        assert 1 not in bookie.segments() and file not in disk.copy_of("/")
        for number in range(30):
            assert not await bookie.is_damaged(1, number) and bookie.has(1, number)

    on_loop(main)


def test_the_segment_that_is_written_ends_when_it_has_damage() -> None:
    async def main() -> None:
        async def none(ledger: int) -> bool:
            return False

        disk = new_disk()
        bookie = await filled(disk, 4)
        assert bookie.segments() == [1]
        bookie.collection.wear_out(1)
        await bookie.collect(none)
        assert bookie.segments() == [2] and bookie.has(1, 1) and bookie.has(2, 0)
        await bookie.aclose()
        again = await opened(disk)
        assert again.has(1, 1) and again.has(2, 0) and not again.figures().damaged

    on_loop(main)
