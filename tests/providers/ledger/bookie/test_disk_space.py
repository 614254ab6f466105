"""A disk that fills up. The bookie becomes read-only, still accepts fences and recoveries, and
becomes writable again by itself."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.ledger.bookie.kit import SMALL, entry, new_disk, on_loop, opened

from millstream.providers.ledger.bookie.bookie import Bookie, BookieState
from millstream.providers.ledger.bookie.cache import ENTRY_COST_BYTES, Cache
from millstream.providers.ledger.bookie.disk_space import LOOKS_AFTER_REFUSAL, DiskSpace
from millstream.providers.ledger.protocol.errors import BookieReadOnly
from millstream.runtime.extending import DiskFull, RealDisk


def test_below_the_reserve_only_fences_and_recoveries_are_written() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        await bookie.add(0, [entry(1, 0)])
        disk.fill_up(SMALL.reserve_bytes - 1)
        await asyncio.sleep(SMALL.watch_s + 0.1)
        assert bookie.figures().state is BookieState.READ_ONLY
        with pytest.raises(BookieReadOnly, match="reserve_bytes is 32768"):
            await bookie.add(0, [entry(1, 1)])
        await bookie.fence(1, 2)
        await bookie.add(2, [entry(1, 1, 3_000)])
        for ledger in range(2, 30):
            assert (await bookie.read(ledger, 0, 1, 1, 1)).entries == ()
        assert len((await bookie.read(1, 0, 9, 9_999)).entries) == 2
        await bookie.aclose()
        bookie = await opened(disk)
        assert bookie.figures().state is BookieState.READ_ONLY, "from its start on"
        disk.fill_up(SMALL.reserve_bytes + 1)
        await asyncio.sleep(SMALL.watch_s + 0.1)
        assert bookie.figures().state is BookieState.READ_ONLY, "not to and fro"
        disk.make_room()
        await asyncio.sleep(SMALL.watch_s + 0.1)
        assert bookie.figures().state is BookieState.WRITABLE
        await bookie.add(0, [entry(40, 0)])

    on_loop(main)


@pytest.mark.parametrize("free_bytes", [0, 300, 600, 2_000, 4_095, 4_096, 5_000, 9_000])
def test_a_disk_that_is_full_at_once_loses_nothing(free_bytes: int) -> None:
    """A write fails even if part of its data still has space. Other requests continue."""

    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        await bookie.add(0, [entry(1, 0)])
        disk.fill_up(free_bytes)
        done, failed = [0], 0
        for number in range(1, 9):
            try:
                await bookie.add(0, [entry(1, number, 3_000)])
                done.append(number)
            except BookieReadOnly:
                failed += 1
        assert failed and bookie.figures().state is BookieState.READ_ONLY
        await asyncio.sleep(0.1)
        disk.make_room()
        await asyncio.sleep(SMALL.watch_s)
        await bookie.add(0, [entry(1, 20)])
        disk.crash()
        bookie.stop(RuntimeError("the power went"))
        bookie = await opened(disk)
        for number in (*done, 20):
            assert (await bookie.read(1, number, 1, 1)).entries, number

    on_loop(main)


def test_a_fence_that_found_no_room_is_not_taken_for_durable() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        for number in range(3):
            await bookie.add(0, [entry(1, number, 5_000)])
        disk.fill_up(0)
        refused = 0
        for term in range(1, 40):
            try:
                await bookie.fence(2, term)
            except BookieReadOnly:
                refused += 1
                with pytest.raises(BookieReadOnly):
                    await bookie.fence(2, term)
        assert refused
        disk.make_room()
        await bookie.fence(2, 39)
        disk.crash()
        bookie.stop(RuntimeError("the power went"))
        assert (await opened(disk)).store.term_of(2) == 39

    on_loop(main)


async def test_a_limit_of_files_leaves_room_in_other_files(tmp_path: Path) -> None:
    """A file that cannot grow is followed by another one, as under `RLIMIT_FSIZE`."""
    options = replace(SMALL, segment_bytes=1 << 24, allocate_bytes=65_536, entry_bytes_max=1 << 16)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = str(tmp_path / "bookie")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, old[1]))
    try:
        bookie = await Bookie.open(RealDisk(), path, options, cluster="c", fresh="f" * 32)
        await bookie.fence(1, 1)
        for number in range(20):
            await bookie.add(1, [entry(1, number, 60_000)])
        await bookie.fence(2, 9)
        assert bookie.figures().segments > 5
        assert max(os.stat(f"{path}/{name}").st_size for name in os.listdir(path)) <= 200_000
        await bookie.aclose()
        bookie = await Bookie.open(RealDisk(), path, options, cluster="c", fresh="f" * 32)
        assert len((await bookie.read(1, 0, 99, 1 << 30)).entries) == 20
        assert bookie.store.term_of(2) == 9
        await bookie.aclose()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@given(st.lists(st.integers(0, 50)))
def test_room_needs_twice_the_reserve_to_be_there_again(free: list[int]) -> None:
    room, is_full = DiskSpace(10), False
    assert room.free_bytes == -1, "nobody has looked"
    for free_bytes in free:
        was_full, is_full = is_full, free_bytes < (20 if is_full else 10)
        assert room.see(free_bytes) is (was_full != is_full)
        assert room.is_full is is_full


def test_a_refused_write_is_believed_for_a_while_though_there_seems_to_be_room() -> None:
    room = DiskSpace(10)
    room.see(100)
    assert room.refuse("file too large")
    assert not room.refuse("file too large"), "it is full already"
    for _ in range(LOOKS_AFTER_REFUSAL - 1):
        assert not room.see(100)
        assert (room.is_full, room.refusal) == (True, "file too large")
    assert room.see(100)
    assert (room.is_full, room.refusal) == (False, "")


def test_a_bookie_that_hits_a_limit_says_which_write_was_refused() -> None:
    async def main() -> None:
        bookie = await opened(new_disk())
        bookie.on_refused(DiskFull(errno.EFBIG, "File too large", "7.seg"))
        with pytest.raises(BookieReadOnly, match="a write was refused: .*File too large: '7.seg'"):
            await bookie.add(0, [entry(1, 0)])
        await asyncio.sleep(SMALL.watch_s * (LOOKS_AFTER_REFUSAL - 2))
        assert bookie.figures().state is BookieState.READ_ONLY, "not to and fro"
        await asyncio.sleep(SMALL.watch_s * 4)
        await bookie.add(0, [entry(1, 0)])

    on_loop(main)


def test_a_disk_that_is_seen_to_be_full_needs_no_while() -> None:
    room = DiskSpace(10)
    room.see(100)
    room.refuse("no space left")
    assert not room.see(3)
    assert room.refusal == ""
    assert not room.see(19), "not twice the reserve"
    assert room.see(20)
    assert not room.is_full


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 300)), max_size=60))
def test_a_cache_keeps_what_was_used_last_within_its_limit(
    steps: list[tuple[bool, int, int]],
) -> None:
    limit = 3 * ENTRY_COST_BYTES
    cache, model = Cache(limit), dict[int, bytes]()
    for is_put, number, size in steps:
        if is_put:
            model.pop(number, None)
            model[number] = bytes(size)
            cache.put(1, number, model[number])
            while sum(len(one) + ENTRY_COST_BYTES for one in model.values()) > limit:
                del model[next(iter(model))]
        else:
            assert cache.get(1, number) == model.get(number)
            if number in model:
                model[number] = model.pop(number)
        assert cache.get(2, number) is None
        cost = sum(len(one) + ENTRY_COST_BYTES for one in model.values())
        assert cache.size_bytes == cost <= limit


def test_a_full_cache_lets_go_of_what_was_used_longest_ago() -> None:
    cache = Cache(3 * (ENTRY_COST_BYTES + 10))
    for number in range(3):
        cache.put(1, number, bytes(10))
    assert cache.get(1, 0) == bytes(10), "three just fit"
    cache.put(1, 3, bytes(10))
    assert [cache.get(1, number) is not None for number in range(4)] == [True, False, True, True]


def test_a_disk_that_was_not_looked_at_yet_refuses_nothing() -> None:
    room = DiskSpace(100)
    assert (room.is_full, room.refusal, room.free_bytes) == (False, "", -1)
