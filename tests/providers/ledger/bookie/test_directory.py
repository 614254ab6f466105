"""The owner of a directory, its required files, and directories restored from older copies."""

from __future__ import annotations

import asyncio
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.providers.ledger.bookie.kit import (
    FRESH,
    PATH,
    SMALL,
    entry,
    new_disk,
    on_loop,
    opened,
)

from millstream.providers.ledger.bookie.bookie import Bookie, BookieState
from millstream.providers.ledger.bookie.form.envelope import FORMAT, HEAD
from millstream.providers.ledger.bookie.options import AskKnown, HighWater, Known
from millstream.providers.ledger.protocol.entry import check_of
from millstream.providers.ledger.protocol.errors import (
    BookieAway,
    BookieReadOnly,
    DirectoryInUse,
    DirectoryRefused,
    LedgerFenced,
)
from millstream.providers.ledger.protocol.found import Found, Missing
from millstream.runtime import ConfigError
from millstream.runtime.extending import RealDisk, read_file, replace_file
from millstream.runtime.testing import SimDisk

IDENTITY = f"{PATH}/identity"


async def used(disk: SimDisk, segments: int = 3) -> None:
    """Make a directory with some segments, and close it."""
    bookie = await opened(disk)
    for number in range(segments):
        await bookie.add(0, [entry(1, 2 * number, 8_000), entry(1, 2 * number + 1, 100)])
    await bookie.aclose()


async def refused(disk: SimDisk, match: str, cluster: str = "c") -> None:
    with pytest.raises(DirectoryRefused, match=match) as caught:
        await opened(disk, cluster=cluster)
    assert PATH in str(caught.value) and "offset 0" in str(caught.value)
    lock = disk.lock(PATH)
    assert lock is not None, "the lock is released"
    lock.release()


def test_a_new_directory_gets_a_name_and_keeps_it() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        assert (bookie.name, bookie.boot) == (FRESH, 1)
        await bookie.aclose()
        bookie = await opened(disk, fresh="f" * 32)
        assert (bookie.name, bookie.boot) == (FRESH, 2)

    on_loop(main)


def test_a_directory_that_another_bookie_has_is_in_use_until_that_ends() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        with pytest.raises(DirectoryInUse, match=PATH):
            await opened(disk)
        await bookie.aclose()
        await (await opened(disk)).aclose()

    on_loop(main)


def test_a_directory_of_another_cluster_is_refused() -> None:
    async def main() -> None:
        disk = new_disk()
        await used(disk)
        await refused(disk, "belongs to cluster 'c', not 'd'", cluster="d")

    on_loop(main)


def test_a_directory_with_files_of_somebody_else_is_refused() -> None:
    async def main() -> None:
        disk = new_disk()
        disk.make_dir(PATH)
        disk.create(f"{PATH}/thesis.txt")
        await refused(disk, "thesis.txt.*has no file 'identity'")

    on_loop(main)


def test_a_start_that_died_before_it_had_an_identity_is_no_stranger() -> None:
    async def main() -> None:
        disk = new_disk()
        disk.make_dir(PATH)
        disk.create(f"{IDENTITY}.new")
        assert (await opened(disk)).boot == 1

    on_loop(main)


@pytest.mark.parametrize("name", ["identity", f"{1:016d}.seg", f"{1:016d}.idx"])
def test_a_newer_format_is_refused(name: str) -> None:
    async def main() -> None:
        disk = new_disk()
        await used(disk)
        data = bytearray(read_file(disk, f"{PATH}/{name}", 1 << 20))
        magic, _, reserved, size = HEAD.unpack_from(data)
        HEAD.pack_into(data, 0, magic, FORMAT + 1, reserved, size)
        end = HEAD.size + size
        data[end : end + 8] = check_of(bytes(data[:end])).to_bytes(8, "little")
        replace_file(disk, f"{PATH}/{name}", bytes(data))
        await refused(disk, f"{name}.*format {FORMAT + 1}; this version reads formats up to")

    on_loop(main)


@pytest.mark.parametrize("at", range(0, 140, 9))
def test_a_damaged_identity_is_refused(at: int) -> None:
    async def main() -> None:
        disk = new_disk()
        await used(disk)
        disk.flip_bit(IDENTITY, at)
        await refused(disk, "identity.*the file is damaged")

    on_loop(main)


@pytest.mark.parametrize("segment", [1, 2, 3])
def test_a_directory_that_misses_a_segment_is_refused(segment: int) -> None:
    async def main() -> None:
        disk = new_disk()
        await used(disk)
        disk.unlink(f"{PATH}/{segment:016d}.seg")
        await refused(disk, f"{segment:016d}.seg.*the file is missing")

    on_loop(main)


def test_a_segment_of_another_directory_or_number_is_refused() -> None:
    async def main(source: str) -> None:
        disk = new_disk()
        await used(disk)
        other = new_disk(2)
        foreign = await opened(other, fresh="e" * 32)
        await foreign.aclose()
        data = read_file(
            other if source == "other" else disk,
            f"{PATH}/{1 if source == 'other' else 2:016d}.seg",
            1 << 20,
        )
        replace_file(disk, f"{PATH}/{1:016d}.seg", data)
        await refused(disk, "the file is segment . of directory")

    for source in ("other", "second"):
        on_loop(main, source)


def test_an_identity_that_is_older_than_its_segments_is_refused() -> None:
    async def main(copy_after: int) -> None:
        disk = new_disk()
        await used(disk, copy_after)
        old = read_file(disk, IDENTITY, 1 << 20)
        await used(disk, 1)
        replace_file(disk, IDENTITY, old)
        await refused(disk, "'identity' is older than this file: it lists segments up to")

    on_loop(main, 1)
    on_loop(main, 3)


def known(high_water: HighWater, next_ledger: int) -> AskKnown:
    async def ask(name: str) -> Known:
        assert name == FRESH
        return Known(high_water, next_ledger)

    return ask


def test_a_directory_that_is_as_far_as_it_was_recorded_is_sure() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        await bookie.add(0, [entry(1, 0)])
        water = bookie.high_water
        disk.crash()
        bookie.stop(RuntimeError("the power went"))
        for _ in range(3):
            bookie = await opened(disk, ask_known=known(water, 9))
            assert (await bookie.read(1, 1, 1, 1)).missing is Missing.ABSENT
            assert bookie.high_water > water
            water = bookie.high_water
            await bookie.aclose()

    on_loop(main)


@pytest.mark.parametrize("clean", [False, True])
def test_a_directory_that_was_restored_from_an_older_copy_denies_nothing_that_it_had(
    clean: bool,
) -> None:
    """For ledgers below the bound, existing entries are returned, fences stay, and recoveries may
    write. Ledgers above the bound work as in a new directory.
    """

    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        await bookie.add(0, [entry(1, 0)])
        copy = disk.copy_of(PATH)
        await bookie.add(0, [entry(1, 1), entry(1, 2)])
        await bookie.fence(2, 3)
        water = bookie.high_water
        await bookie.aclose()
        disk.restore(PATH, copy)
        for start in range(3):
            bookie = await opened(disk, ask_known=known(water, 5 if start == 0 else 50))
            if start == 0:
                assert bookie.high_water.boot > water.boot
            assert bookie.high_water.sequence >= water.sequence
            assert bookie.figures().doubt_below == 5
            assert await bookie.read(1, 0, 9, 99) == Found((entry(1, 0),), Missing.UNKNOWN, -1)
            assert (await bookie.read(4, 0, 9, 99)).missing is Missing.UNKNOWN
            assert (await bookie.read(5, 9, 9, 99)).missing is Missing.ABSENT
            for ledger in (1, 2, 4):
                with pytest.raises((BookieReadOnly, LedgerFenced)):
                    await bookie.add(start, [entry(ledger, 7)])
            await bookie.add(0, [entry(5, start)])
            term = 4 + start
            found = await bookie.read(2, 9, 9, 99, term)
            assert found.missing is Missing.UNKNOWN, "a fence does not bring back what was"
            await bookie.add(term, [entry(2, start)])
            water = bookie.high_water
            if clean:
                await bookie.aclose()
            else:
                disk.crash()
                bookie.stop(RuntimeError("the power went"))

    on_loop(main)


def test_an_older_copy_is_seen_as_often_as_it_is_restored() -> None:
    async def main() -> None:
        disk = new_disk()
        await used(disk)
        copy = disk.copy_of(PATH)
        water = HighWater(0, 0)
        for bound in (10, 20, 30):
            bookie = await opened(disk, ask_known=known(water, bound))
            assert bookie.figures().doubt_below == (0 if bound == 10 else bound)
            await bookie.add(0, [entry(bound + 1, 0)])
            water = bookie.high_water
            await bookie.aclose()
            disk.restore(PATH, copy)

    on_loop(main)


def test_without_metadata_everything_is_in_doubt() -> None:
    async def main() -> None:
        disk = new_disk()
        await used(disk)
        disk.unlink(f"{PATH}/{2:016d}.idx")
        disk.flip_bit(f"{PATH}/{2:016d}.seg", 512)
        bookie = await opened(disk)
        assert (await bookie.read(2**60, 0, 1, 1)).missing is Missing.UNKNOWN
        assert bookie.state is BookieState.READ_ONLY

    on_loop(main)


@pytest.mark.parametrize("name", ["identity", f"{1:016d}.seg", f"{2:016d}.seg"])
def test_files_that_are_removed_while_it_runs_stop_it(name: str) -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        for number in range(2):
            await bookie.add(0, [entry(1, number, 8_000)])
        assert bookie.figures().segments == 2
        disk.unlink(f"{PATH}/{name}")
        if name.startswith(f"{2:016d}"):  # no entry goes into the removed current segment
            with pytest.raises(BookieAway, match="removed while it was in use"):
                await bookie.add(0, [entry(1, 3)])
        await asyncio.sleep(SMALL.watch_s + 0.1)
        with pytest.raises(BookieAway, match="removed while it was in use"):
            await bookie.read(1, 9, 1, 1)
        assert bookie.figures().state is BookieState.STOPPED

    on_loop(main)


def test_a_read_of_a_segment_that_was_removed_denies_nothing() -> None:
    async def main() -> None:
        disk = new_disk()
        await used(disk)
        bookie = await opened(disk)
        disk.unlink(f"{PATH}/{1:016d}.seg")
        with pytest.raises(BookieAway, match="has stopped"):
            await bookie.read(1, 0, 1, 1)
        assert bookie.figures().state is BookieState.STOPPED

    on_loop(main)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("segment_bytes", 0),
        ("segment_bytes", 2 << 30),
        ("entry_bytes_max", 1 << 20),
        ("watch_s", -1.0),
        ("live_ratio_min", 1.5),
    ],
)
def test_options_that_cannot_work_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(SMALL, **{field: value})


async def test_on_a_real_disk_the_directory_is_the_users_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "bookie")
    bookie = await Bookie.open(RealDisk(), path, cluster="c", fresh=FRESH)
    await bookie.add(0, [entry(1, number, 50_000) for number in range(20)])
    assert len((await bookie.read(1, 0, 99, 1 << 30)).entries) == 20
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
    assert all(stat.S_IMODE(os.stat(f"{path}/{one}").st_mode) == 0o600 for one in os.listdir(path))
    with pytest.raises(DirectoryInUse):
        await Bookie.open(RealDisk(), path, cluster="c", fresh=FRESH)
    await bookie.aclose()
    bookie = await Bookie.open(RealDisk(), path, cluster="c", fresh=FRESH)
    assert len((await bookie.read(1, 0, 99, 1 << 30)).entries) == 20
    os.unlink(f"{path}/{2:016d}.seg")
    with pytest.raises(BookieAway, match="removed while it was in use"):
        await bookie.add(0, [entry(1, 99)])
    await bookie.aclose()
