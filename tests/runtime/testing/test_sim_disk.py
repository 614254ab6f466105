"""The disk seam: both implementations alike, and what the simulated one forgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime.disk import Disk, RealDisk
from millstream.runtime.testing import SimDisk, Simulation, run
from millstream.runtime.testing.world.env import seeded_random


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path / "root") if request.param == "real" else SimDisk(seeded_random(1))


def test_file_grows_at_its_end_and_reads_anywhere(disk: Disk) -> None:
    file = disk.open("a/b/log")
    assert [file.append(b"hello "), file.append(b"world")] == [0, 6]
    assert file.read(0, 5) == b"hello" and file.append(b"!") == 11
    assert file.read(6, 100) == b"world!" and file.read(50, 5) == b""
    file.fsync()
    file.close()
    again = disk.open("a/b/log")
    assert again.size_bytes == 12 and again.append(b"?") == 12
    again.truncate(5)
    assert disk.read("a/b/log") == b"hello"
    again.close()


def test_names_are_made_renamed_removed_and_listed(disk: Disk) -> None:
    for path in ("l/2", "l/1", "other"):
        file = disk.open(path)
        file.append(path.encode())
        file.close()
    assert list(disk.list("l")) == ["l/1", "l/2"] and list(disk.list("none")) == []
    disk.rename("l/1", "m/n/1")
    disk.rename("other", "l/2")
    assert list(disk.list("")) == ["l/2", "m/n/1"] and disk.read("l/2") == b"other"
    disk.remove("l/2")
    assert list(disk.list("l")) == []


@pytest.mark.parametrize(
    "act",
    [
        lambda disk: disk.read("none"),
        lambda disk: disk.remove("none"),
        lambda disk: disk.rename("none", "other"),
    ],
)
def test_missing_file_is_an_error(disk: Disk, act: Callable[[Disk], None]) -> None:
    with pytest.raises(FileNotFoundError):
        act(disk)


def test_closed_file_is_refused(disk: Disk) -> None:
    file = disk.open("a")
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.append(b"x")


def crashed(seed: int, synced: bytes, unsynced: bytes) -> bytes:
    """What is found after a crash."""
    disk = SimDisk(seeded_random(seed))
    file = disk.open("log")
    file.append(synced)
    file.fsync()
    file.append(unsynced)
    disk.crash()
    disk.check()
    return disk.read("log")


@given(st.integers(0, 10_000), st.binary(max_size=40), st.binary(max_size=2000))
def test_synced_bytes_survive_every_crash(seed: int, synced: bytes, unsynced: bytes) -> None:
    found = crashed(seed, synced, unsynced)
    assert found.startswith(synced) and len(found) <= len(synced) + len(unsynced)


def test_unsynced_bytes_are_lost_torn_zeroed_or_kept_by_seed() -> None:
    tail = b"x" * 2000
    found = {crashed(seed, b"head", tail)[4:] for seed in range(40)}
    assert b"" in found and tail in found
    assert any(0 < len(rest) < len(tail) and set(rest) == {ord("x")} for rest in found), "torn"
    assert any(len(rest) == len(tail) and bytes(512) in rest for rest in found), "zeros"


def test_equal_seeds_tear_alike() -> None:
    assert [crashed(seed, b"", b"x" * 999) for seed in range(9)] == [
        crashed(seed, b"", b"x" * 999) for seed in range(9)
    ]


def test_bytes_of_a_failed_fsync_stay_in_danger_after_a_good_one() -> None:
    found = set()
    for seed in range(20):
        disk = SimDisk(seeded_random(seed))
        file = disk.open("log")
        file.append(b"x" * 1024)
        disk.fail_fsync()
        with pytest.raises(OSError, match="fsync failed"):
            file.fsync()
        file.append(b"y" * 10)
        file.fsync()
        assert disk.read("log") == b"x" * 1024 + b"y" * 10
        disk.check()
        disk.crash()
        assert disk.read("log")[1024:] == b"y" * 10
        found.add(disk.read("log")[:1024])
    assert b"x" * 1024 in found and bytes(1024) in found


def test_fsync_fails_by_chance() -> None:
    disk = SimDisk(seeded_random(1), fsync_failure_chance=1.0)
    with pytest.raises(OSError):
        disk.open("a").fsync()


def test_file_opened_before_a_crash_is_dead_after_it() -> None:
    disk = SimDisk(seeded_random(1))
    file = disk.open("a")
    disk.crash()
    with pytest.raises(OSError, match="crashed"):
        file.append(b"x")


def test_bit_flips_are_read() -> None:
    disk = SimDisk(seeded_random(1))
    disk.open("a").append(b"\x00")
    disk.flip_bit("a", 0, bit=3)
    assert disk.read("a") == b"\x08"


@pytest.mark.parametrize("path", ["../a", "/a", "a/../../b"])
def test_path_that_leads_out_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="leads out"):
        SimDisk(seeded_random(1)).open(path)


def test_power_cut_falls_between_two_writes_of_one_executor_job() -> None:
    """Write, fsync, rename: whatever the cut, the target is whole or not there."""

    def save(disk: SimDisk) -> None:
        file = disk.open("new")
        file.append(b"whole")
        file.fsync()
        disk.rename("new", "saved")

    async def main(sim: Simulation) -> tuple[list[str], bool]:
        host, changes = sim.host("a"), sim.rng.randrange(6)
        sim.cut_power_after("a", changes)

        async def program() -> None:
            await asyncio.to_thread(save, sim.disk(host))
            sim.disk(host).open("acknowledged")

        sim.spawn(host, program())
        await asyncio.sleep(1)
        names = list(sim.disk("a").list(""))
        assert "saved" not in names or sim.disk("a").read("saved") == b"whole"
        assert "acknowledged" not in names or "saved" in names
        return names, host.alive

    found = {(tuple(names), up) for names, up in (run(main, seed).result for seed in range(40))}
    assert found == {
        ((), False),
        (("new",), False),
        (("saved",), False),
        (("acknowledged", "saved"), True),
    }


def test_rest_of_a_callback_whose_host_crashed_reaches_no_disk() -> None:
    async def main(sim: Simulation) -> None:
        host, disk = sim.host("a"), sim.disk("a")

        async def program() -> None:
            sim.crash(host)
            for act in (lambda: disk.open("ghost"), lambda: disk.remove("real")):
                with pytest.raises(OSError):
                    act()

        disk.open("real")
        sim.spawn(host, program())
        await asyncio.sleep(1)
        assert list(disk.list("")) == ["real"]

    run(main, 1)
