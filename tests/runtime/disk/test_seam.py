"""The disk seam: the real disk and the simulated one behave alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millstream.runtime.disk.seam import JOBS_MAX, parent_of
from millstream.runtime.extending import Disk, RealDisk, read_file, replace_file
from millstream.runtime.testing import SimDisk, Simulation, make_random, run

Job = Callable[[Disk, str], Coroutine[Any, Any, None]]


class Bench:
    """A disk, a directory on it, and a loop for asynchronous calls."""

    def __init__(self, disk: Disk, home: str, play: Callable[[Job], None]) -> None:
        self.disk, self.home, self.play = disk, home, play

    def path(self, name: str) -> str:
        return f"{self.home}/{name}"


@pytest.fixture(params=["real", "simulated"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param == "real":
        real, home = RealDisk(), (tmp_path / "home").as_posix()
        real.make_dir(home)
        return Bench(real, home, lambda job: asyncio.run(job(real, home)))

    def play(job: Job) -> None:
        async def main(sim: Simulation) -> None:
            sim.disk("a").make_dir("/home")
            await sim.call(sim.host("a"), job(sim.disk("a"), "/home"))

        run(main, 1)

    disk = SimDisk(make_random(1))
    disk.make_dir("/home")
    return Bench(disk, "/home", play)


def test_a_file_is_written_and_read_at_any_place(bench: Bench) -> None:
    file = bench.disk.create(bench.path("log"))
    file.write_at(6, b"world", bytearray(b"!"))
    file.write_at(0, memoryview(b"hello "))
    assert file.read_at(0, 5) == b"hello" and file.read_at(6, 100) == b"world!"
    assert file.size_bytes == 12 and file.read_at(12, 5) == b"" and file.read_at(50, 5) == b""
    file.datasync()
    file.sync()
    file.close()
    again = bench.disk.open(bench.path("log"), can_write=False)
    assert again.read_at(0, 100) == b"hello world!" and again.path == bench.path("log")
    for act in (partial(again.write_at, 0, b"x"), partial(again.preallocate, 99)):
        with pytest.raises(OSError) as caught:
            act()
        assert caught.value.filename == again.path
    again.datasync()
    again.close()


def test_a_gap_between_the_end_and_a_write_is_zeros(bench: Bench) -> None:
    file = bench.disk.create(bench.path("log"))
    file.write_at(3, b"x")
    assert file.read_at(0, 9) == b"\0\0\0x"
    file.close()


def test_thousands_of_parts_are_one_write(bench: Bench) -> None:
    parts = [bytes([number % 251]) * (number % 7) for number in range(3000)]
    file = bench.disk.create(bench.path("log"))
    file.write_at(10, *parts)
    assert file.read_at(10, 1 << 20) == b"".join(parts)
    file.close()


def test_preallocated_room_is_zeros_and_never_less_than_before(bench: Bench) -> None:
    file = bench.disk.create(bench.path("log"))
    file.write_at(0, b"head")
    file.preallocate((1 << 20) + 5)
    assert file.size_bytes == (1 << 20) + 5
    assert file.read_at(0, 6) == b"head\0\0" and not any(file.read_at(4, 1 << 21))
    file.preallocate(10)
    assert file.size_bytes == (1 << 20) + 5
    file.close()


def test_names_are_made_renamed_removed_and_listed(bench: Bench) -> None:
    disk = bench.disk
    for name in ("b", "a", "c"):
        file = disk.create(bench.path(name))
        file.write_at(0, name.encode())
        file.close()
    disk.make_dir(bench.path("d/e"))
    disk.make_dir(bench.path("d/e"))
    assert list(disk.list(bench.home)) == ["a", "b", "c", "d"]
    disk.rename(bench.path("a"), bench.path("b"))
    disk.rename(bench.path("c"), bench.path("d/c"))
    disk.unlink(bench.path("d/c"))
    disk.sync_dir(bench.home)
    assert list(disk.list(bench.home)) == ["b", "d"] and list(disk.list(bench.path("d"))) == ["e"]
    assert read_file(disk, bench.path("b"), 10) == b"a"


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda disk, home: disk.open(f"{home}/none"), FileNotFoundError),
        (lambda disk, home: disk.unlink(f"{home}/none"), FileNotFoundError),
        (lambda disk, home: disk.rename(f"{home}/none", f"{home}/x"), FileNotFoundError),
        (lambda disk, home: disk.create(f"{home}/none/file"), FileNotFoundError),
        (lambda disk, home: disk.rename(f"{home}/there", f"{home}/none/x"), FileNotFoundError),
        (lambda disk, home: disk.rename(f"{home}/there", f"{home}/there/x"), NotADirectoryError),
        (lambda disk, home: disk.list(f"{home}/none"), FileNotFoundError),
        (lambda disk, home: disk.sync_dir(f"{home}/none"), FileNotFoundError),
        (lambda disk, home: disk.free_bytes(f"{home}/none"), FileNotFoundError),
        (lambda disk, home: disk.lock(f"{home}/none"), FileNotFoundError),
        (lambda disk, home: disk.open(home), IsADirectoryError),
        (lambda disk, home: disk.open(home, can_write=False), IsADirectoryError),
        (lambda disk, home: disk.create(f"{home}/there"), FileExistsError),
        (lambda disk, home: disk.make_dir(f"{home}/there/sub"), NotADirectoryError),
    ],
)
def test_what_cannot_be_done_is_an_error_with_its_path(
    bench: Bench, act: Callable[[Disk, str], object], error: type[OSError]
) -> None:
    bench.disk.create(bench.path("there")).close()
    with pytest.raises(error) as caught:
        act(bench.disk, bench.home)
    assert str(caught.value.filename).startswith(bench.home)


def test_a_closed_file_is_refused(bench: Bench) -> None:
    file = bench.disk.create(bench.path("a"))
    file.close()
    file.close()
    acts: list[Callable[[], object]] = [
        lambda: file.write_at(0, b"x"),
        lambda: file.read_at(0, 1),
        file.datasync,
        lambda: file.size_bytes,
        lambda: file.has_name,
    ]
    for act in acts:
        with pytest.raises(ValueError, match="closed"):
            act()


def test_an_unlinked_file_lives_on_for_who_has_it_open(bench: Bench) -> None:
    file = bench.disk.create(bench.path("a"))
    file.write_at(0, b"old")
    assert file.has_name
    bench.disk.unlink(bench.path("a"))
    bench.disk.create(bench.path("a")).close()
    assert file.read_at(0, 9) == b"old" and not file.has_name
    file.close()


def test_a_replaced_file_has_no_name(bench: Bench) -> None:
    files = [bench.disk.create(bench.path(name)) for name in ("a", "b")]
    bench.disk.rename(bench.path("a"), bench.path("b"))
    assert [file.has_name for file in files] == [True, False]
    for file in files:
        file.close()


def test_a_negative_offset_is_an_error(bench: Bench) -> None:
    file = bench.disk.create(bench.path("a"))
    for act in (partial(file.read_at, -1, 1), partial(file.write_at, -1, b"x")):
        with pytest.raises(OSError, match=r"\[Errno 22\]") as caught:
            act()
        assert caught.value.filename == file.path
    file.close()


def test_a_directory_has_one_holder_until_it_is_released(bench: Bench) -> None:
    held = bench.disk.lock(bench.home)
    assert held is not None
    assert bench.disk.lock(bench.home) is None
    bench.disk.make_dir(bench.path("other"))
    assert bench.disk.lock(bench.path("other")) is not None
    held.release()
    again = bench.disk.lock(bench.home)
    held.release()
    assert again is not None and bench.disk.lock(bench.home) is None
    again.release()


def test_there_is_room(bench: Bench) -> None:
    assert bench.disk.free_bytes(bench.home) > 1 << 20


def test_small_files_are_replaced_whole(bench: Bench) -> None:
    path = bench.path("id")
    bench.disk.create(path + ".new").close()  # left by a crash
    replace_file(bench.disk, path, b"one")
    replace_file(bench.disk, path, b"two")
    assert read_file(bench.disk, path, 3) == b"two" and list(bench.disk.list(bench.home)) == ["id"]
    with pytest.raises(ValueError, match="more than 2 bytes"):
        read_file(bench.disk, path, 2)
    replace_file(bench.disk, path, b"four")
    with pytest.raises(ValueError, match="more than 2 bytes"):
        read_file(bench.disk, path, 2)


def test_a_thread_flushes_in_order(bench: Bench) -> None:
    async def job(disk: Disk, home: str) -> None:
        thread, file = disk.start_thread("flusher"), disk.create(f"{home}/log")
        first = thread.flush(file, 0, [b"aa", b"bb"])
        second = thread.flush(file, 2, [b"cc"])
        size = thread.run(lambda: file.size_bytes)
        await second
        assert first.done() and first.result() is None
        assert await size == 4 and file.read_at(0, 9) == b"aacc"
        await thread.run(file.close)
        thread.close()

    bench.play(job)


def test_a_job_that_fails_does_not_stop_its_thread(bench: Bench) -> None:
    async def job(disk: Disk, home: str) -> None:
        thread = disk.start_thread("flusher")
        with pytest.raises(FileNotFoundError):
            await thread.run(disk.open, f"{home}/none")
        assert await thread.run(len, "four") == 4
        thread.close()

    bench.play(job)


def test_a_job_whose_caller_left_is_done(bench: Bench) -> None:
    async def job(disk: Disk, home: str) -> None:
        thread, file = disk.start_thread("flusher"), disk.create(f"{home}/log")
        thread.flush(file, 0, [b"done"]).cancel()
        assert await thread.run(file.read_at, 0, 9) == b"done"
        await thread.run(file.close)
        thread.close()

    bench.play(job)


def test_a_closed_thread_ends_its_jobs_and_takes_no_more(bench: Bench) -> None:
    async def job(disk: Disk, home: str) -> None:
        thread = disk.start_thread("flusher")
        last = thread.run(len, "four")
        thread.close()
        thread.close()
        with pytest.raises(ValueError, match="closed"):
            thread.run(len, "")
        assert await last == 4

    bench.play(job)


def test_a_thread_has_a_limit_of_jobs(bench: Bench) -> None:
    async def job(disk: Disk, home: str) -> None:
        thread = disk.start_thread("flusher")
        for _ in range(2):
            jobs = [thread.run(len, "") for _ in range(JOBS_MAX)]
            with pytest.raises(BlockingIOError, match=f"JOBS_MAX is {JOBS_MAX}"):
                thread.run(len, "")
            await asyncio.gather(*jobs)
        assert await thread.run(len, "four") == 4
        thread.close()

    bench.play(job)


@pytest.mark.parametrize(
    ("path", "above"),
    [("a/b", "a"), ("/a/b/", "/a"), ("/a", "/"), ("a", "."), ("/", ".")],
)
def test_the_directory_of_a_path(path: str, above: str) -> None:
    assert parent_of(path) == above
