"""A torn end of the journal is distinguished from damage before it, wherever the damage is.

There are three frames with entries: entry 0, then entries 1 and 2, then entry 3 as the end.
"""

from __future__ import annotations

import pytest
from tests.providers.ledger.bookie.kit import PATH, SMALL, entry, new_disk, on_loop, opened

from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.bookie.form.frame import FRONT_BYTES, ROW
from millstream.providers.ledger.bookie.options import HighWater, Known
from millstream.providers.ledger.protocol.errors import BookieReadOnly
from millstream.providers.ledger.protocol.found import Missing
from millstream.runtime.testing import SimDisk

SEGMENT = f"{PATH}/{1:016d}.seg"


async def written(disk: SimDisk) -> dict[int, int]:
    """Write the frames, cut the power, and return the offset of each entry's frame."""
    bookie = await opened(disk)
    offsets = dict[int, int]()
    for numbers in ((0,), (1, 2), (3,)):
        offsets |= dict.fromkeys(numbers, bookie.store.ends[1])
        await bookie.add(0, [entry(1, number, 600) for number in numbers])
    disk.crash()
    bookie.stop(RuntimeError("the power went"))
    return offsets


async def answers(bookie: Bookie, ledger: int = 1) -> list[str]:
    """Return the bookie's answer for each entry."""
    found = []
    for number in range(5):
        read = await bookie.read(ledger, number, 1, 1)
        found.append("have" if read.entries else read.missing.value)
        assert not read.entries or read.entries == (entry(ledger, number, 600),)
    return found


IN_FRONT = [0, 3, 4, 9, 11, 16, 24, FRONT_BYTES - 1, FRONT_BYTES, FRONT_BYTES + ROW.size - 1]
HEAD_OF_ENTRY = [FRONT_BYTES + ROW.size, FRONT_BYTES + ROW.size + 40, FRONT_BYTES + ROW.size + 55]
IN_BODY = [*HEAD_OF_ENTRY, FRONT_BYTES + ROW.size + 56, FRONT_BYTES + ROW.size + 600]


@pytest.mark.parametrize("at", [*IN_FRONT, *IN_BODY])
def test_an_end_that_is_torn_was_never_there(at: int) -> None:
    async def main() -> None:
        disk = new_disk()
        offsets = await written(disk)
        disk.flip_bit(SEGMENT, offsets[3] + at)
        for _ in range(3):  # later starts give the same answers
            bookie = await opened(disk)
            assert await answers(bookie) == ["have"] * 3 + ["absent"] * 2
            assert bookie.figures().doubt_below == 0
            await bookie.add(0, [entry(2, 0)])
            disk.crash()
            bookie.stop(RuntimeError("the power went"))

    on_loop(main)


@pytest.mark.parametrize("at", IN_FRONT)
def test_a_damaged_frame_with_others_behind_it_puts_all_in_doubt(at: int) -> None:
    async def main() -> None:
        disk = new_disk()
        offsets = await written(disk)
        disk.flip_bit(SEGMENT, offsets[0] + at)
        for _ in range(3):  # later starts give the same answers
            bookie = await opened(disk)
            assert await answers(bookie) == ["unknown", "have", "have", "have", "unknown"]
            assert (await bookie.read(7, 0, 1, 1)).missing is Missing.UNKNOWN
            with pytest.raises(BookieReadOnly, match="may have been fenced"):
                await bookie.add(0, [entry(1, 4)])
            disk.crash()
            bookie.stop(RuntimeError("the power went"))

    on_loop(main)


@pytest.mark.parametrize("at", IN_BODY)
def test_a_damaged_entry_in_a_whole_frame_is_unknown_alone(at: int) -> None:
    async def main() -> None:
        disk = new_disk()
        offsets = await written(disk)
        disk.flip_bit(SEGMENT, offsets[0] + at)
        bookie = await opened(disk)
        assert await answers(bookie) == ["unknown", "have", "have", "have", "absent"]
        assert bookie.figures().doubt_below == 0 and bookie.figures().damaged >= 1
        await bookie.add(0, [entry(1, 0, 600)])  # a recovery of the ledger writes the entry again
        assert (await answers(bookie))[0] == "have"

    on_loop(main)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_sector_that_cannot_be_read_is_no_torn_end(number: int) -> None:
    async def main() -> None:
        disk = new_disk()
        offsets = await written(disk)
        disk.make_unreadable(SEGMENT, offsets[number])
        bookie = await opened(disk)
        found = await answers(bookie)
        assert found[number] == "unknown" and "absent" not in found
        assert (await bookie.read(7, 0, 1, 1)).missing is Missing.UNKNOWN
        await bookie.aclose()
        bookie = await opened(disk)
        assert (await answers(bookie))[number] == "unknown"

    on_loop(main)


@pytest.mark.parametrize("at", range(0, 200, 7))
def test_a_damaged_head_of_a_segment_loses_nothing(at: int) -> None:
    async def main() -> None:
        disk = new_disk()
        await written(disk)
        disk.flip_bit(SEGMENT, at)
        bookie = await opened(disk)
        assert await answers(bookie) == ["have"] * 4 + ["absent"]

    on_loop(main)


def test_an_end_that_was_surely_durable_is_not_taken_for_torn() -> None:
    """After a clean stop, the identity file says how far the journal was durable."""

    async def main() -> None:
        disk = new_disk()
        await written(disk)
        bookie = await opened(disk)
        await bookie.aclose()
        disk.unlink(f"{PATH}/{2:016d}.idx")
        disk.sync_dir(PATH)
        disk.flip_bit(f"{PATH}/{2:016d}.seg", 512 + 5)
        bookie = await opened(disk)
        assert (await bookie.read(7, 0, 1, 1)).missing is Missing.UNKNOWN

    on_loop(main)


def test_an_index_file_that_is_damaged_or_missing_is_made_anew() -> None:
    async def main() -> None:
        disk = new_disk()
        await written(disk)
        bookie = await opened(disk)
        await bookie.fence(5, 5)
        await bookie.aclose()
        disk.flip_bit(f"{PATH}/{1:016d}.idx", 60)
        disk.unlink(f"{PATH}/{2:016d}.idx")
        bookie = await opened(disk)
        assert bookie.figures().scanned.segments == 2
        assert await answers(bookie) == ["have"] * 4 + ["absent"]
        assert bookie.store.term_of(5) == 5
        await bookie.aclose()
        bookie = await opened(disk)
        assert bookie.figures().scanned.segments == 0
        assert await answers(bookie) == ["have"] * 4 + ["absent"]

    on_loop(main)


def test_damage_of_a_sealed_segment_is_unknown_when_it_is_read_and_a_wrong_read_too() -> None:
    async def main() -> None:
        disk = new_disk()
        offsets = await written(disk)
        bookie = await opened(disk, SMALL)
        await bookie.aclose()
        bookie = await opened(disk)
        disk.flip_bit(SEGMENT, offsets[0] + IN_BODY[-1])
        disk.make_unreadable(SEGMENT, offsets[1] + 512)
        assert (await answers(bookie))[:2] == ["unknown", "unknown"]
        disk.flip_reads(1)
        assert bookie.figures().damaged >= 2

    on_loop(main)


def test_an_end_that_the_metadata_know_is_not_taken_for_torn() -> None:
    async def main(at: int) -> None:
        disk = new_disk()
        offsets = await written(disk)
        water = HighWater(1, 4)

        async def ask(name: str) -> Known:
            return Known(water, 3)

        disk.flip_bit(SEGMENT, offsets[3] + at)
        bookie = await opened(disk, ask_known=ask)
        assert (await answers(bookie))[3] == "unknown"
        assert (await bookie.read(2, 0, 1, 1)).missing is Missing.UNKNOWN
        assert (await bookie.read(3, 0, 1, 1)).missing is Missing.ABSENT
        assert bookie.high_water.sequence >= water.sequence

    for at in (0, IN_BODY[-1]):
        on_loop(main, at)


def test_a_damaged_state_puts_all_in_doubt() -> None:
    """The lost fences are unknown."""

    async def main() -> None:
        disk = new_disk()
        await written(disk)
        disk.flip_bit(SEGMENT, 512 + FRONT_BYTES + ROW.size + 30)
        bookie = await opened(disk)
        assert await answers(bookie) == ["have"] * 4 + ["unknown"]
        with pytest.raises(BookieReadOnly):
            await bookie.add(0, [entry(1, 4)])

    on_loop(main)


def small_sectors() -> SimDisk:
    return next(disk for seed in range(99) if (disk := new_disk(seed)).sector_bytes == 512)


def test_a_sector_that_cannot_be_read_within_an_entry_costs_that_entry() -> None:
    async def main() -> None:
        disk = small_sectors()
        offsets = await written(disk)
        disk.make_unreadable(SEGMENT, offsets[0] + 512)
        bookie = await opened(disk)
        assert await answers(bookie) == ["unknown", "have", "have", "have", "absent"]
        assert bookie.figures().damaged >= 1

    on_loop(main)


def test_a_lone_sector_that_cannot_be_read_hides_one_frame_and_no_other() -> None:
    async def main() -> None:
        disk = small_sectors()
        offsets = await written(disk)
        disk.make_unreadable(SEGMENT, offsets[1])
        bookie = await opened(disk)
        assert await answers(bookie) == ["have", "unknown", "unknown", "have", "unknown"]

    on_loop(main)
