"""Verifying a directory that no process uses distinguishes damage from crashes, and changes
nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from tests.providers.ledger.bookie.kit import FRESH, PATH, entry, new_disk, on_loop, opened

from millstream.providers.ledger.bookie.form.envelope import FORMAT, HEAD
from millstream.providers.ledger.bookie.form.frame import FRONT_BYTES, SECTOR_BYTES
from millstream.providers.ledger.bookie.form.segment import FRAMES_START, seed_of, segment_name
from millstream.providers.ledger.bookie.form.walk import Walk
from millstream.providers.ledger.bookie.offline.view import FileBookies, read_view
from millstream.providers.ledger.inspection import Verified, verify
from millstream.providers.ledger.protocol.entry import check_of
from millstream.providers.ledger.protocol.errors import (
    BookieAway,
    DirectoryInUse,
    DirectoryRefused,
)
from millstream.runtime.testing import SimDisk

Snapshot = Mapping[str, bytes]


def filled(disk: SimDisk, closes: bool = True) -> None:
    """Make a directory with three segments, closed cleanly or not."""

    async def main() -> None:
        bookie = await opened(disk)
        for number in range(0, 20, 2):
            await bookie.add(0, [entry(1, number, 3_000), entry(1, number + 1, 100)])
            await bookie.add(0, [entry(2, number, 300)])
        await bookie.fence(2, 3)
        if closes:
            await bookie.aclose()
        else:
            disk.crash()

    on_loop(main)


def looked(disk: SimDisk) -> Verified:
    """Verify the directory, and check that nothing has changed."""
    before = dict(disk.copy_of(PATH))
    try:
        return verify(disk, PATH)
    finally:
        assert disk.copy_of(PATH) == before
        lock = disk.lock(PATH)
        assert lock is not None
        lock.release()


def damaged(disk: SimDisk, name: str, change: Callable[[bytes], bytes]) -> None:
    copy, path = dict(disk.copy_of(PATH)), f"{PATH}/{name}"
    copy[path] = change(copy[path])
    disk.restore(PATH, copy)


def frames_of(disk: SimDisk, number: int) -> list[tuple[int, int]]:
    """The beginning and end of each frame of a segment."""
    file = disk.open(f"{PATH}/{segment_name(number)}", can_write=False)
    return [
        (one.offset, one.offset + one.front.length) for one in Walk(file, seed_of(FRESH, number))
    ]


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def test_a_whole_directory_is_counted_and_nothing_is_said() -> None:
    disk = new_disk()
    filled(disk)
    found = looked(disk)
    assert not found.faults and not found.notes
    assert (found.segments, found.ledgers, found.entries) == (3, 2, 30)
    assert found.frames > 20 and found.identity.directory == FRESH


@pytest.mark.parametrize("seed", range(12))
def test_what_a_crash_leaves_is_no_damage(seed: int) -> None:
    disk = new_disk(seed)
    filled(disk, closes=False)
    assert not looked(disk).faults

    async def torn() -> None:
        bookie = await opened(disk)
        disk.cut_power_after(5 + seed, disk.crash)
        try:
            for number in range(20):
                await bookie.add(4, [entry(3, number, 2_000)])
        except Exception as error:
            assert "power" in str(error) or error

    on_loop(torn)
    disk.keep_power()
    assert not looked(disk).faults


def test_every_frame_that_is_damaged_is_found_with_its_place() -> None:
    for number in (1, 2, 3):
        disk = new_disk()
        filled(disk)
        whole = dict(disk.copy_of(PATH))
        for start, _ in frames_of(disk, number):
            for at in (start, start + 20, start + FRONT_BYTES + 2):
                disk.restore(PATH, whole)
                damaged(disk, segment_name(number), flipped(at))
                faults = looked(disk).faults
                assert faults, (number, at)
                assert {one.file for one in faults} <= {
                    f"{PATH}/{segment_name(n)}" for n in (number, number + 1)
                }, (number, at, faults)
                assert any(one.offset <= at + SECTOR_BYTES for one in faults), (at, faults)
                assert all(one.advice for one in faults)


def test_an_entry_that_is_damaged_is_named() -> None:
    disk = new_disk()
    filled(disk)
    start, end = max(frames_of(disk, 1), key=lambda pair: pair[1] - pair[0])
    damaged(disk, segment_name(1), flipped(end - SECTOR_BYTES - 1))
    (fault,) = looked(disk).faults
    assert re.search(r"entry \d+ of ledger 1 fails its checksum", fault.what)
    assert start < fault.offset < end and str(fault).count(". What can be done: ") == 1


def test_a_sector_that_cannot_be_read_is_found() -> None:
    disk = new_disk()
    filled(disk)
    disk.make_unreadable(f"{PATH}/{segment_name(2)}", FRAMES_START + 600)
    assert looked(disk).faults


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("identity", lambda _: b"", "identity: offset 0: the file is damaged: 0 bytes"),
        ("identity", lambda data: data[:-9], "identity: offset 0: the file is damaged"),
        (
            segment_name(2),
            lambda _: b"",
            "0000002.seg: offset 0: the file ends here, but had a",
        ),
        (
            "0000000000000002.idx",
            flipped(40),
            "0000002.idx: offset 0: the file is damaged: the checksum",
        ),
    ],
)
def test_a_file_that_is_damaged_is_named(
    name: str, change: Callable[[bytes], bytes], text: str
) -> None:
    disk = new_disk()
    filled(disk)
    damaged(disk, name, change)
    assert text in "\n".join(map(str, looked(disk).faults))


@pytest.mark.parametrize("name", ["identity", segment_name(1), segment_name(3)])
def test_a_file_that_was_deleted_is_missed(name: str) -> None:
    disk = new_disk()
    filled(disk)
    copy = dict(disk.copy_of(PATH))
    del copy[f"{PATH}/{name}"]
    disk.restore(PATH, copy)
    assert f"{PATH}/{name}: offset 0: the file is missing" in "\n".join(
        map(str, looked(disk).faults)
    )


def test_a_copy_that_mixes_old_and_new_is_found() -> None:
    disk = new_disk()
    filled(disk)
    old = dict(disk.copy_of(PATH))
    filled_again(disk)
    newest = max(name for name in disk.list(PATH) if name.endswith(".seg"))
    old[f"{PATH}/{newest}"] = disk.copy_of(PATH)[f"{PATH}/{newest}"]
    disk.restore(PATH, old)
    text = "\n".join(map(str, looked(disk).faults))
    assert (
        f"{newest}: offset 0: 'identity' is older than this file: it lists segments up to 3" in text
    )


def filled_again(disk: SimDisk) -> None:
    async def main() -> None:
        for number in range(2):
            bookie = await opened(disk)
            await bookie.add(0, [entry(5, number, 100)])
            await bookie.aclose()

    on_loop(main)


def newer(data: bytes) -> bytes:
    """Return the same data in the format of a later version."""
    magic, _, reserved, size = HEAD.unpack_from(data)
    end = HEAD.size + size
    front = HEAD.pack(magic, FORMAT + 1, reserved, size) + data[HEAD.size : end]
    return front + check_of(front).to_bytes(8, "little") + data[end + 8 :]


@pytest.mark.parametrize("name", ["identity", segment_name(2), "0000000000000002.idx"])
def test_a_newer_format_is_no_damage_and_is_refused(name: str) -> None:
    disk = new_disk()
    filled(disk)
    damaged(disk, name, newer)
    with pytest.raises(
        DirectoryRefused, match=f"{name}: offset 0: the file has format 2; .*use the newer"
    ):
        looked(disk)


def test_what_is_no_bookies_directory_is_refused() -> None:
    disk = new_disk()
    with pytest.raises(DirectoryRefused, match=f"{PATH}: offset 0: the directory does not exist"):
        verify(disk, PATH)
    disk.make_dir(PATH)
    with pytest.raises(DirectoryRefused, match="the directory is empty.*restore its files"):
        looked(disk)
    disk.create(f"{PATH}/notes.txt").close()
    with pytest.raises(DirectoryRefused, match="there are no files of a bookie: 'identity'"):
        looked(disk)


def test_a_directory_that_a_bookie_has_is_in_use() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        with pytest.raises(
            DirectoryInUse, match=f"{PATH}: a running bookie uses this directory; stop"
        ):
            verify(disk, PATH)
        await bookie.aclose()

    on_loop(main)


def test_files_of_others_are_noted() -> None:
    disk = new_disk()
    filled(disk)
    disk.create(f"{PATH}/notes.txt").close()
    found = looked(disk)
    assert (
        found.notes == (f"{PATH}/notes.txt: the file does not belong to the bookie",)
        and not found.faults
    )


def test_entries_can_be_viewed_while_a_bookie_runs() -> None:
    async def main() -> None:
        disk = new_disk()
        bookie = await opened(disk)
        for number in range(12):
            await bookie.add(0, [entry(1, number, 3_000)])
        view = read_view(disk, PATH)
        bookies = FileBookies({view.name: view})
        found = await bookies.read(FRESH, 1, 3, 100, 10**6, 0)
        assert found.entries == tuple(entry(1, number, 3_000) for number in range(3, 12))
        assert await bookies.watch(FRESH, 1, -1, 0.0) == 10
        assert (await bookies.read(FRESH, 7, 0, 1, 1, 0)).entries == ()
        with pytest.raises(BookieAway, match="the directory of bookie other was not given"):
            await bookies.read("other", 1, 0, 1, 1, 0)
        with pytest.raises(BookieAway, match="is open for reading only"):
            await bookies.add(FRESH, 0, [entry(1, 12)])
        view.close()
        await bookie.aclose()

    on_loop(main)


def test_what_cannot_be_viewed_is_refused() -> None:
    disk = new_disk()
    disk.make_dir(PATH)
    with pytest.raises(
        DirectoryRefused, match="the file does not exist.*the directory of a bookie"
    ):
        read_view(disk, PATH)
    filled(disk)
    damaged(disk, "identity", newer)
    with pytest.raises(DirectoryRefused, match="the file has format 2"):
        read_view(disk, PATH)
