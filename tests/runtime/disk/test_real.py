"""The real disk and its system calls. Tests replace the calls with faults."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream.runtime.disk.real import HELD, RealFile
from millstream.runtime.extending import DiskFull, RealDisk, SyncFailed, read_file, replace_file


def new_file(tmp_path: Path) -> RealFile:
    return RealDisk().create((tmp_path / "log").as_posix())


def refuse(number: int) -> Callable[..., None]:
    def call(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def test_files_and_directories_are_this_users_alone(tmp_path: Path) -> None:
    home = tmp_path / "a" / "b"
    RealDisk().make_dir(home.as_posix())
    RealDisk().create((home / "log").as_posix()).close()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (home.parent, home, home / "log")]
    assert modes == [0o700, 0o700, 0o600]


def test_a_directory_is_made_durable_in_the_one_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(RealDisk, "sync_dir", lambda self, path: synced.append(path))
    home = (tmp_path / "a" / "b").as_posix()
    RealDisk().make_dir(home)
    assert synced == [tmp_path.as_posix(), (tmp_path / "a").as_posix()]
    RealDisk().make_dir(home)  # the process that made it may have crashed before it was durable
    assert synced[2:] == [(tmp_path / "a").as_posix()]


def test_a_write_that_comes_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev

    def short(fd: int, parts: Sequence[memoryview], offset: int) -> int:
        whole = b"".join(parts)
        return write(fd, [whole[:3]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    file = new_file(tmp_path)
    file.write_at(1, b"ab", b"", b"cdefg", bytearray(b"h"))
    assert file.read_at(0, 99) == b"\0abcdefgh"
    file.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    file = new_file(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", refuse(number))
        with pytest.raises(DiskFull) as caught:
            file.write_at(0, b"x")
    assert caught.value.errno == number and caught.value.filename == file.path
    file.write_at(0, b"x")
    file.datasync()
    file.close()


def test_preallocating_without_room_gives_back_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = new_file(tmp_path)
    file.write_at(0, b"head")
    for name in ("posix_fallocate", "pwritev"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse(errno.ENOSPC))
            with pytest.raises(DiskFull):
                file.preallocate(1 << 20)
        assert file.size_bytes == 4
    file.close()


def test_preallocating_does_without_what_the_file_system_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.EOPNOTSUPP))
    file = new_file(tmp_path)
    file.preallocate(5_000)
    assert file.read_at(0, 9_000) == bytes(5_000)
    file.close()


def test_preallocated_room_has_its_blocks(tmp_path: Path) -> None:
    file = new_file(tmp_path)
    file.preallocate(1 << 20)
    assert os.stat(file.path).st_blocks * 512 >= 1 << 20
    file.close()


@pytest.mark.parametrize(("call", "name"), [("datasync", "fdatasync"), ("sync", "fsync")])
def test_a_failed_sync_ends_the_file_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, name: str
) -> None:
    file = new_file(tmp_path)
    file.write_at(0, b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse(errno.EIO))
        with pytest.raises(SyncFailed, match="may be lost") as caught:
            getattr(file, call)()
    assert caught.value.errno == errno.EIO and caught.value.filename == file.path
    acts: list[Callable[[], object]] = [
        file.datasync,
        file.sync,
        lambda: file.write_at(0, b"y"),
        lambda: file.preallocate(10),
    ]
    for act in acts:
        with pytest.raises(SyncFailed):
            act()
    assert file.read_at(0, 1) == b"x" and file.size_bytes == 1
    file.close()


class Noted:
    """A disk or file that records its calls."""

    def __init__(self, inner: Any, asked: list[Any]) -> None:
        self._inner, self._asked = inner, asked

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self._asked.append((name, args, options))
            result = getattr(self._inner, name)(*args, **options)
            return Noted(result, self._asked) if name in ("open", "create") else result

        return call


def test_a_small_file_is_closed_and_read_no_further_than_it_may_be(tmp_path: Path) -> None:
    asked, path = list[Any](), (tmp_path / "id").as_posix()
    disk: Any = Noted(RealDisk(), asked)
    replace_file(disk, path, b"abc")
    names = ["unlink", "create", "write_at", "sync", "close", "rename", "sync_dir"]
    assert [name for name, *_ in asked] == names
    asked.clear()
    assert read_file(disk, path, 3) == b"abc"
    opened = ("open", (path,), {"can_write": False})
    assert asked == [opened, ("read_at", (0, 4), {}), ("close", (), {})]


def test_of_two_syncs_at_once_none_succeeds_after_the_other_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system reports lost bytes of both to one call only. The other call would succeed."""
    file, ended = new_file(tmp_path), list[type[Exception] | None]()
    is_in, may_end, calls = threading.Event(), threading.Event(), list[int]()

    def fail_once(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            is_in.set()
            may_end.wait(10)
            raise OSError(errno.EIO, "I/O error")

    def sync(call: Callable[[], None]) -> None:
        try:
            call()
        except OSError as error:
            ended.append(type(error))
        else:
            ended.append(None)

    monkeypatch.setattr(os, "fsync", fail_once)
    monkeypatch.setattr(os, "fdatasync", fail_once)
    threads = [threading.Thread(target=sync, args=(file.sync,))]
    threads[0].start()
    assert is_in.wait(10)
    threads.append(threading.Thread(target=sync, args=(file.datasync,)))
    threads[1].start()
    threads[1].join(0.05)  # time in which a wrong call would happen
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert ended == [SyncFailed, SyncFailed] and len(calls) == 1


def test_a_sync_that_finds_no_room_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = new_file(tmp_path)
    monkeypatch.setattr(os, "fdatasync", refuse(errno.ENOSPC))
    with pytest.raises(SyncFailed):
        file.datasync()
    file.close()


def test_a_directory_whose_sync_fails_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(SyncFailed) as caught:
        RealDisk().sync_dir(tmp_path.as_posix())
    assert caught.value.filename == tmp_path.as_posix()


def test_a_descriptor_is_closed_when_its_last_call_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = new_file(tmp_path)
    began, may_end = threading.Event(), threading.Event()
    used, closed = list[int](), list[int]()  # unreferenced files of other tests may be closed, too

    def slow(fd: int) -> None:
        used.append(fd)
        began.set()
        assert may_end.wait(10)

    monkeypatch.setattr(os, "fdatasync", slow)
    close = os.close

    def noted(fd: int) -> None:
        closed.append(fd)
        close(fd)

    monkeypatch.setattr(os, "close", noted)
    syncing = threading.Thread(target=file.datasync)
    syncing.start()
    assert began.wait(10)
    file.close()
    assert used[0] not in closed
    may_end.set()
    syncing.join(10)
    assert closed.count(used[0]) == 1


def test_a_forked_child_holds_no_lock_of_its_parent(tmp_path: Path) -> None:
    disk, home = RealDisk(), tmp_path.as_posix()
    held = disk.lock(home)
    assert held is not None
    (hears, tells), (ended, ends) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends)
        os.write(tells, b"x")
        os.read(ended, 1)  # until the parent closes the other end
        os._exit(0)
    try:
        assert os.read(hears, 1) == b"x"
        assert disk.lock(home) is None, "the parent still has it"
        held.let_go()  # as the parent's death would
        again = disk.lock(home)
        assert again is not None, "the child lives, and has no copy"
        again.release()
    finally:
        os.close(ends)
        os.waitpid(child, 0)
        for fd in (hears, tells, ended):
            os.close(fd)


def test_released_is_released_whoever_has_a_copy(tmp_path: Path) -> None:
    held = RealDisk().lock(tmp_path.as_posix())
    assert held is not None and held in HELD
    copy = os.dup(held._fd)
    held.release()
    held.release()
    again = RealDisk().lock(tmp_path.as_posix())
    assert again is not None and held not in HELD
    again.release()
    os.close(copy)


def test_a_read_that_comes_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.pread
    file = new_file(tmp_path)
    file.write_at(0, b"abcdefgh")
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read(fd, min(size, 3), at))
    assert file.read_at(1, 6) == b"bcdefg" and file.read_at(1, 99) == b"bcdefgh"
    file.close()


def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the system calls in order."""
    calls: list[str] = []
    for name in ("pwritev", "fdatasync", "fsync"):
        call = getattr(os, name)

        def note(*args: object, name: str = name, call: Callable[..., object] = call) -> object:
            result = call(*args)
            calls.append(name)
            return result

        monkeypatch.setattr(os, name, note)
    return calls


async def test_a_flush_has_written_and_synced_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, file = RealDisk().start_thread("flusher"), new_file(tmp_path)
    calls = noted(monkeypatch)
    await thread.flush(file, 0, [b"x", b"y"])
    assert calls == ["pwritev", "fdatasync"]
    await thread.run(replace_file, RealDisk(), (tmp_path / "id").as_posix(), b"x")
    assert calls[2:] == ["pwritev", "fsync", "fsync"], "the file, and its directory"
    thread.close()
    file.close()


def test_preallocated_room_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = new_file(tmp_path)
    calls = noted(monkeypatch)
    file.preallocate(100)
    assert calls == ["pwritev", "fsync"]
    file.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system has no /proc/self/fd")
def test_no_descriptor_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, home = RealDisk(), tmp_path.as_posix()
    before = len(os.listdir("/proc/self/fd"))
    replace_file(disk, f"{home}/id", b"x")
    read_file(disk, f"{home}/id", 9)
    with pytest.raises(IsADirectoryError):
        disk.open(home, can_write=False)
    held = disk.lock(home)
    assert held is not None and disk.lock(home) is None
    held.release()
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", refuse(errno.EIO))
        with pytest.raises(OSError) as caught:
            disk.lock(home)
        assert caught.value.filename == home
    del caught
    disk.open(f"{home}/id")  # the file is not referenced
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_flush_wakes_the_loop_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    woken, wake = [], loop.call_soon_threadsafe
    thread, file = RealDisk().start_thread("flusher"), new_file(tmp_path)
    if type(loop).__module__.startswith("uvloop"):
        pytest.skip("the methods of a uvloop event loop cannot be replaced")

    def counted(*args: object, **options: object) -> object:
        woken.append(args)
        return wake(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    for number in range(5):
        await thread.flush(file, number, [b"x", b"y"])
    assert len(woken) == 5
    thread.close()
    file.close()


def test_a_thread_outlives_its_loop_and_ends(tmp_path: Path) -> None:
    may_go = threading.Event()

    async def main() -> None:
        thread = RealDisk().start_thread("orphan")
        thread.run(may_go.wait, 10)
        thread.close()

    asyncio.run(main())
    found = [thread for thread in threading.enumerate() if thread.name == "orphan"]
    may_go.set()
    for thread in found:
        assert thread.daemon, "a process that ends waits for no disk"
        thread.join(10)
        assert not thread.is_alive()
    assert found


def test_elsewhere_than_on_posix_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "name", "nt")
    try:
        with pytest.raises(OSError, match="POSIX") as caught:
            RealDisk().open("x")
    finally:
        monkeypatch.undo()
    assert caught.value.filename == "x"
