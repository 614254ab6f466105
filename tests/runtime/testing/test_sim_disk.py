"""The simulated disk: the data that a crash may lose, the data that it must keep, and other
faults."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime.extending import DiskFile, DiskFull, SyncFailed, read_file, replace_file
from millstream.runtime.testing import SimDisk, Simulation, make_random, run

SEEDS = range(60)


def new_disk(seed: int = 1) -> tuple[SimDisk, DiskFile]:
    """Make a disk with an empty file `/d/log` whose name is durable."""
    disk = SimDisk(make_random(seed))
    disk.make_dir("/d")
    file = disk.create("/d/log")
    disk.sync_dir("/d")
    return disk, file


def content(disk: SimDisk, path: str = "/d/log") -> bytes:
    disk.check()
    return read_file(disk, path, 1 << 30)


# -- bytes


class Crashed:
    """A synced file of `sectors` sectors that are all written again without a sync."""

    def __init__(self, seed: int, sectors: int = 6) -> None:
        disk, file = new_disk(seed)
        size = disk.sector_bytes
        file.write_at(0, b"o" * size * sectors)
        file.datasync()
        file.write_at(0, b"n" * size * sectors)
        disk.crash()
        found = content(disk)
        assert len(found) == sectors * size
        self.sectors = [found[at : at + size] for at in range(0, len(found), size)]
        self.kept = "".join(chr(sector[0]) for sector in self.sectors)


def test_a_crash_keeps_any_unsynced_sectors_each_of_them_whole() -> None:
    outcomes = set()
    for seed in SEEDS:
        crashed = Crashed(seed)
        assert all(len(set(sector)) == 1 for sector in crashed.sectors), "a sector is atomic"
        outcomes.add(crashed.kept)
    assert {"oooooo", "nnnnnn"} <= outcomes
    assert any(kept[0] == "n" and "no" in kept and "on" not in kept for kept in outcomes), "prefix"
    assert any("on" in kept for kept in outcomes), "a later sector without an earlier one"


def test_a_crash_may_keep_an_older_one_of_several_writes_to_a_sector() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk, file = new_disk(seed)
        for letter in (b"a", b"b", b"c"):
            file.write_at(0, letter)
        disk.crash()
        outcomes.add(content(disk))
    assert outcomes == {b"", b"\0", b"a", b"b", b"c"}


def test_an_unsynced_extension_is_lost_torn_kept_or_zeros() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk, file = new_disk(seed)
        file.write_at(0, b"head")
        file.sync()
        file.write_at(4, b"x" * 20_000)
        disk.crash()
        found = content(disk)
        assert found[:4] == b"head" and len(found) <= 20_004
        outcomes.add(found[4:])
    assert b"" in outcomes and b"x" * 20_000 in outcomes and bytes(20_000) in outcomes
    assert any(rest and set(rest) == {ord("x")} and len(rest) < 20_000 for rest in outcomes)
    assert any(len(rest) == 20_000 and 0 in rest and ord("x") in rest for rest in outcomes)


WRITES = st.lists(
    st.tuples(st.integers(0, 9_000), st.binary(min_size=1, max_size=3_000), st.booleans()),
    min_size=1,
    max_size=8,
)


@given(seed=st.integers(0, 10_000), writes=WRITES)
def test_what_was_synced_and_not_written_since_survives(
    seed: int, writes: list[tuple[int, bytes, bool]]
) -> None:
    """Each byte is the synced one, or one that was written there later, or a hole's zero."""
    disk, file = new_disk(seed)
    synced, possible = b"", dict[int, set[int]]()
    for offset, data, is_synced in writes:
        before = file.size_bytes
        file.write_at(offset, data)
        for at in range(before, offset):
            possible.setdefault(at, set()).add(0)
        for at, byte in enumerate(data, offset):
            possible.setdefault(at, set()).update({byte, 0} if at >= len(synced) else {byte})
        if is_synced:
            file.datasync()
            synced, possible = file.read_at(0, 1 << 20), {}
    disk.crash()
    found = content(disk)
    assert len(synced) <= len(found)
    for at, byte in enumerate(found):
        allowed = possible.get(at, set()) | ({synced[at]} if at < len(synced) else {0})
        assert byte in allowed, at


def test_equal_seeds_forget_alike() -> None:
    assert [Crashed(seed).kept for seed in range(9)] == [Crashed(seed).kept for seed in range(9)]


def test_preallocated_room_survives() -> None:
    for seed in SEEDS:
        disk, file = new_disk(seed)
        file.preallocate(10_000)
        disk.crash()
        assert content(disk) == bytes(10_000)


# -- names


def names_after_a_crash(seed: int, change: Callable[[SimDisk], None]) -> tuple[str, ...]:
    disk = SimDisk(make_random(seed))
    disk.make_dir("/d")
    replace_file(disk, "/d/a", b"a")
    replace_file(disk, "/d/b", b"b")
    change(disk)
    disk.crash()
    disk.check()
    return tuple(f"{name}={content(disk, '/d/' + name).decode()}" for name in disk.list("/d"))


def test_unsynced_names_happen_or_do_not_each_for_itself() -> None:
    def change(disk: SimDisk) -> None:
        disk.unlink("/d/a")
        disk.create("/d/c").close()

    found = {names_after_a_crash(seed, change) for seed in SEEDS}
    assert found == {
        ("a=a", "b=b"),
        ("b=b",),
        ("a=a", "b=b", "c="),
        ("b=b", "c="),
    }


def test_a_rename_is_whole_or_not_there() -> None:
    found = {names_after_a_crash(seed, lambda disk: disk.rename("/d/a", "/d/b")) for seed in SEEDS}
    assert found == {("a=a", "b=b"), ("b=a",)}


def test_what_a_crash_left_of_names_is_durable() -> None:
    for seed in SEEDS:
        disk, _ = new_disk(seed)
        for name in ("a", "b", "c"):
            disk.create(f"/d/{name}").close()
        disk.crash()
        found = list(disk.list("/d"))
        disk.crash()
        assert list(disk.list("/d")) == found


def test_synced_names_survive() -> None:
    def change(disk: SimDisk) -> None:
        disk.rename("/d/a", "/d/c")
        disk.unlink("/d/b")
        disk.sync_dir("/d")

    assert {names_after_a_crash(seed, change) for seed in SEEDS} == {("c=a",)}


def test_a_file_whose_name_was_not_synced_may_be_gone_with_all_its_synced_bytes() -> None:
    found = set()
    for seed in SEEDS:
        disk = SimDisk(make_random(seed))
        file = disk.create("/log")
        file.write_at(0, b"x")
        file.sync()
        disk.crash()
        found.add(tuple(disk.list("/")))
    assert found == {(), ("log",)}


def test_a_file_that_moved_to_another_directory_has_one_name_after_a_crash() -> None:
    for seed in SEEDS:
        disk, _ = new_disk(seed)
        disk.make_dir("/e")
        disk.create("/d/new").close()
        disk.rename("/d/new", "/e/new")
        disk.sync_dir("/e")
        disk.crash()
        assert (list(disk.list("/d")), list(disk.list("/e"))) == (["log"], ["new"])


def test_a_replaced_file_is_old_or_new_whenever_the_power_goes() -> None:
    found = set()
    for seed in range(120):
        disk = SimDisk(make_random(seed))
        replace_file(disk, "/id", b"old")
        disk.cut_power_after(seed % 7, disk.crash)
        try:
            replace_file(disk, "/id", b"new")
            is_done = True
        except OSError:
            is_done = False
        disk.keep_power()
        found.add((read_file(disk, "/id", 3), is_done))
    assert found == {(b"old", False), (b"new", False), (b"new", True)}


# -- failures


def test_a_failed_sync_ends_the_file_and_drops_what_it_had_to_write() -> None:
    outcomes, seen = set(), set()
    for seed in SEEDS:
        disk, file = new_disk(seed)
        file.write_at(0, b"x")
        disk.fail_sync()
        with pytest.raises(SyncFailed) as caught:
            file.datasync()
        assert caught.value.filename == "/d/log"
        for act in (file.datasync, file.sync, partial(file.write_at, 1, b"y")):
            with pytest.raises(SyncFailed):
                act()
        seen.add(file.read_at(0, 1))
        again = disk.open("/d/log")
        again.write_at(1, b"z")
        again.datasync()  # this sync does not cover the first byte
        disk.crash()
        outcomes.add(content(disk))
    assert seen == {b"x", b"\0"} or seen == {b"x", b"\0", b""}
    assert b"\0z" in outcomes and b"xz" in outcomes


def dropped(seed: int, start: int) -> tuple[str, str]:
    """Return the sectors read after a failed sync of all of them, and those after a crash.

    The file has some sectors of `o`. Then 6 sectors of `n` are written from `start`, and their sync
    fails.
    """
    disk, file = new_disk(seed)
    size = disk.sector_bytes
    file.write_at(0, b"o" * size * start)
    file.datasync()
    file.write_at(0, b"n" * size * 6)
    disk.fail_sync()
    with pytest.raises(SyncFailed):
        file.datasync()
    seen = file.read_at(0, 6 * size)
    disk.crash()
    found = content(disk)
    disk.crash()
    assert content(disk) == found, "nothing is under way any more"
    assert len(seen) % size == len(found) % size == 0
    one, other = (
        "".join(chr(data[at]) for at in range(0, len(data), size)) for data in (seen, found)
    )
    assert seen == b"".join(letter.encode() * size for letter in one)
    assert found == b"".join(letter.encode() * size for letter in other)
    return one, other


def test_a_failed_sync_has_written_any_of_the_sectors() -> None:
    outcomes = {dropped(seed, start=6) for seed in SEEDS}
    found = {found for _, found in outcomes}
    assert {"oooooo", "nnnnnn"} <= found and any("on" in one for one in found)
    assert all(set(one) <= {"o", "n"} for one in found)
    assert all(seen in ("nnnnnn", found) for seen, found in outcomes), "cached, or as it is"
    assert {seen == "nnnnnn" for seen, found in outcomes if found != "nnnnnn"} == {True, False}


def test_a_failed_sync_of_an_extension_keeps_a_size_that_its_sectors_need() -> None:
    outcomes = {dropped(seed, start=0) for seed in SEEDS}
    found = {found for _, found in outcomes}
    assert {"", "nnnnnn"} <= found and any("\0n" in one for one in found)
    assert all(one == "" or one[-1] == "n" for one in found)
    assert all(set(one) <= {"\0", "n"} for one in found)


def test_a_later_sync_brings_nothing_back() -> None:
    lost = 0
    for seed in SEEDS:
        disk, file = new_disk(seed)
        size = disk.sector_bytes
        file.write_at(0, b"n" * size * 3)
        disk.fail_sync()
        with pytest.raises(SyncFailed):
            file.sync()
        again = disk.open("/d/log")
        again.write_at(4 * size, b"z")
        again.sync()
        disk.crash()
        found = content(disk)
        assert len(found) == 4 * size + 1 and found[-1:] == b"z" and not any(found[3 * size : -1])
        lost += found[: 3 * size] != b"n" * size * 3
    assert lost > 20


def test_a_failed_sync_of_a_directory_forgets_names() -> None:
    found = set()
    for seed in SEEDS:
        disk, _ = new_disk(seed)
        disk.create("/d/a").close()
        disk.fail_sync()
        with pytest.raises(SyncFailed):
            disk.sync_dir("/d")
        disk.sync_dir("/d")
        assert list(disk.list("/d")) == ["a", "log"]
        disk.crash()
        found.add(tuple(disk.list("/d")))
    assert found == {("log",), ("a", "log")}


def test_as_many_syncs_fail_as_were_ordered() -> None:
    disk, file = new_disk()
    disk.fail_sync(2)
    for act in (file.sync, partial(disk.sync_dir, "/d")):
        with pytest.raises(SyncFailed):
            act()
    disk.open("/d/log").sync()


def test_what_was_ordered_before_a_crash_is_over_after_it() -> None:
    disk, _ = new_disk()
    disk.stall(5.0)
    disk.fail_sync()
    disk.flip_reads()
    disk.crash()
    assert 0.0 < disk.sync_s() < 1.0 and disk.take_owed_s() == 0.0
    file = disk.open("/d/log")
    file.write_at(0, b"x")
    file.sync()
    assert file.read_at(0, 1) == b"x"


def test_a_new_disk_owes_no_time_and_a_sync_does_once() -> None:
    assert SimDisk(make_random(1)).take_owed_s() == 0.0
    disk, file = new_disk()
    disk.take_owed_s()
    file.sync()
    assert disk.take_owed_s() > 0.0 and disk.take_owed_s() == 0.0


@pytest.mark.parametrize("act", ["write_at", "preallocate", "datasync"])
def test_the_power_goes_before_a_change_not_after_it(act: str) -> None:
    disk, file = new_disk()
    arguments = {"write_at": (0, b"x"), "preallocate": (9,), "datasync": ()}[act]
    disk.cut_power_after(0, disk.crash)
    with pytest.raises(OSError, match="power"):
        getattr(file, act)(*arguments)
    assert content(disk) == b""


def test_a_cut_that_was_taken_back_never_comes() -> None:
    disk, file = new_disk()
    disk.cut_power_after(0, disk.crash)
    disk.keep_power()
    file.write_at(0, b"x")
    assert content(disk) == b"x"


def test_the_power_goes_before_a_name_changes_and_not_where_none_would() -> None:
    for act in ("make_dir", "create", "unlink", "rename"):
        disk, _ = new_disk()
        disk.cut_power_after(0, disk.crash)
        others = ["/d/other"] if act == "rename" else []
        for missing in ["/d/none"] if act in ("unlink", "rename") else []:
            with pytest.raises(FileNotFoundError):
                getattr(disk, act)(missing, *others)
        path = "/d/log" if act in ("unlink", "rename") else "/d/new"
        with pytest.raises(OSError, match="power"):
            getattr(disk, act)(path, *others)
        assert list(disk.list("/d")) == ["log"]


def test_a_preallocation_whose_sync_fails_is_there_as_a_whole_or_not_at_all() -> None:
    sizes = set()
    for seed in SEEDS:
        disk, file = new_disk(seed)
        file.write_at(0, b"a")
        disk.fail_sync()
        with pytest.raises(SyncFailed):
            file.preallocate(10)
        disk.crash()
        sizes.add(len(content(disk)))
    assert sizes == {0, 10}


def test_a_failed_sync_keeps_no_older_version_of_a_sector() -> None:
    found = set()
    for seed in SEEDS:
        disk, file = new_disk(seed)
        file.write_at(0, b"a")
        file.write_at(0, b"b")
        disk.fail_sync()
        with pytest.raises(SyncFailed):
            file.datasync()
        disk.crash()
        found.add(content(disk)[:1])
    assert b"b" in found and b"a" not in found


def test_a_wrong_read_has_one_wrong_bit_any_of_them() -> None:
    found = set()
    for seed in range(200):
        disk, file = new_disk(seed)
        file.write_at(0, bytes(2))
        disk.flip_reads()
        found.add(int.from_bytes(file.read_at(0, 2), "big"))
        assert file.read_at(0, 2) == bytes(2)
    assert found == {1 << bit for bit in range(16)}


def test_a_disk_with_less_room_than_is_used_has_none() -> None:
    disk, file = new_disk()
    file.write_at(0, b"abc")
    disk.fill_up(-2)
    assert disk.free_bytes("/") == 0
    with pytest.raises(DiskFull):
        file.write_at(2, b"xy")
    assert file.read_at(0, 9) == b"abx", "what is there already needs no room"


def test_a_write_behind_the_end_of_a_full_disk_leaves_the_file_as_it_was() -> None:
    disk, file = new_disk()
    disk.fill_up(3)
    with pytest.raises(DiskFull):
        file.write_at(3, b"x")
    assert file.size_bytes == 0


def test_syncs_fail_by_chance() -> None:
    disk = SimDisk(make_random(1), sync_failure_chance=1.0)
    with pytest.raises(SyncFailed):
        disk.create("a").sync()


def test_a_full_disk_takes_a_part_and_says_so() -> None:
    disk, file = new_disk()
    file.write_at(0, b"123")
    disk.fill_up(free_bytes=2)
    assert disk.free_bytes("/d") == 2
    with pytest.raises(DiskFull) as caught:
        file.write_at(3, b"4567")
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == "/d/log"
    assert file.read_at(0, 9) == b"12345" and disk.free_bytes("/d") == 0
    file.write_at(0, b"over")
    with pytest.raises(DiskFull):
        file.preallocate(6)
    with pytest.raises(DiskFull):
        file.write_at(100, b"far")
    assert file.size_bytes == 5
    file.sync()
    disk.make_room()
    file.write_at(3, b"4567")
    assert file.read_at(0, 9) == b"ove4567"


def test_room_comes_back_when_a_file_is_removed() -> None:
    disk, file = new_disk()
    file.preallocate(1_000)
    disk.fill_up()
    disk.unlink("/d/log")
    assert disk.free_bytes("/") == 1_000


def test_an_unreadable_sector_is_an_error_until_it_is_written_whole() -> None:
    disk, file = new_disk()
    size = disk.sector_bytes
    file.write_at(0, b"x" * 3 * size)
    disk.make_unreadable("/d/log", size + 5)
    assert file.read_at(0, size) and file.read_at(2 * size, size)
    for offset, count in ((0, size + 1), (size, 1), (size, 2 * size)):
        with pytest.raises(OSError) as caught:
            file.read_at(offset, count)
        assert caught.value.errno == errno.EIO
    file.write_at(size, b"half")
    with pytest.raises(OSError):
        file.read_at(size, 1)
    file.write_at(size, b"y" * size)
    assert file.read_at(size, 1) == b"y"


def test_a_flipped_bit_stays_and_a_wrong_read_does_not() -> None:
    disk, file = new_disk()
    file.write_at(0, b"\0" * 8)
    disk.flip_bit("/d/log", 0, bit=3)
    file.sync()
    disk.flip_reads()
    wrong, right = file.read_at(1, 7), file.read_at(1, 7)
    assert sum(byte.bit_count() for byte in wrong) == 1 and right == bytes(7)
    disk.crash()
    assert content(disk) == b"\x08" + bytes(7)


@pytest.mark.parametrize("is_unreadable", [False, True])
def test_damage_falls_somewhere(is_unreadable: bool) -> None:
    disk, file = new_disk()
    assert disk.damage(is_unreadable=is_unreadable) is None
    file.write_at(0, bytes(100))
    assert disk.damage("/elsewhere") is None
    found = disk.damage("/d", is_unreadable=is_unreadable)
    assert found is not None and found[0] == "/d/log"
    if is_unreadable:
        with pytest.raises(OSError):
            content(disk)
    else:
        assert content(disk)[found[1]] != 0


def test_damage_is_any_one_bit() -> None:
    found = set()
    for seed in range(200):
        disk, file = new_disk(seed)
        file.write_at(0, b"\0")
        disk.damage()
        found.add(content(disk)[0])
    assert found == {1 << bit for bit in range(8)}


@pytest.mark.parametrize("seed", range(8))
def test_an_older_copy_of_a_directory_comes_back(seed: int) -> None:
    disk, file = new_disk(seed)
    file.write_at(0, b"old")
    disk.make_dir("/d/sub")
    replace_file(disk, "/d/sub/id", b"1")
    replace_file(disk, "/other", b"stays")
    copy = disk.copy_of("/d")
    file.write_at(0, b"new")
    replace_file(disk, "/d/late", b"x")
    disk.unlink("/d/sub/id")
    disk.restore("/d", copy)
    disk.crash()
    assert disk.copy_of("/d") == {"/d/log": b"old", "/d/sub/id": b"1"}
    assert content(disk, "/other") == b"stays"
    other = SimDisk(make_random(seed))
    other.restore("/", copy)
    other.crash()
    assert other.copy_of("/d") == copy and other.free_bytes("/d/sub") > 0
    disk.restore("/d", {})
    assert disk.copy_of("/d") == {} and list(disk.list("/d")) == ["sub"]


# -- life


def test_a_file_opened_before_a_crash_is_dead_after_it() -> None:
    disk, file = new_disk()
    disk.crash()
    with pytest.raises(OSError, match="crashed"):
        file.write_at(0, b"x")


def test_a_crash_releases_locks() -> None:
    disk, _ = new_disk()
    assert disk.lock("/d") is not None and disk.lock("/d") is None
    disk.crash()
    assert disk.lock("/d") is not None


@pytest.mark.parametrize("path", ["/d/../d/./log", "d//log", "../d/log"])
def test_a_path_is_cleaned(path: str) -> None:
    disk, _ = new_disk()
    assert disk.open(path).path == path


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        new_disk()[0].open("")


def test_power_cut_falls_between_two_writes_of_one_job() -> None:
    """Write, sync and rename: after any power cut, the target is whole or absent."""

    async def main(sim: Simulation) -> tuple[list[str], bool]:
        host, disk = sim.host("a"), sim.disk("a")
        sim.cut_power_after("a", sim.rng.randrange(8))

        async def program() -> None:
            await asyncio.to_thread(replace_file, disk, "/saved", b"whole")
            disk.create("/acknowledged")
            disk.sync_dir("/")

        sim.spawn(host, program())
        await asyncio.sleep(1)
        names = list(sim.disk("a").list("/"))
        assert "saved" not in names or content(disk, "/saved") == b"whole"
        assert "acknowledged" not in names or "saved" in names
        return names, host.alive

    found = {(tuple(names), up) for names, up in (run(main, seed).result for seed in range(60))}
    assert found >= {((), False), (("saved",), False), (("acknowledged", "saved"), True)}


def test_the_rest_of_a_callback_whose_host_crashed_reaches_no_disk() -> None:
    async def main(sim: Simulation) -> None:
        host, disk = sim.host("a"), sim.disk("a")

        async def program() -> None:
            sim.crash(host)
            for name, act in acts.items():
                try:
                    act()
                except OSError:  # nobody gets the errors of a dead host's program
                    refused.append(name)

        refused, file = list[str](), disk.create("real")
        acts: dict[str, Callable[[], object]] = {
            "create": lambda: disk.create("ghost"),
            "unlink": lambda: disk.unlink("real"),
            "open": lambda: disk.open("real"),
            "lock": lambda: disk.lock("/"),
            "list": lambda: disk.list("/"),
            "free_bytes": lambda: disk.free_bytes("/"),
            "read_at": lambda: file.read_at(0, 1),
        }
        disk.sync_dir("/")
        sim.spawn(host, program())
        await asyncio.sleep(1)
        assert refused == list(acts)
        assert list(disk.list("/")) == ["real"]

    run(main, 1)
