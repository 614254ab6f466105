"""The disk of the operating system.

This module owns `RealDisk`, its files and its locks. It needs POSIX. On other systems every call
raises OSError.

Invariants:

- A descriptor is closed only after its last call has ended. A call therefore never uses a number
  that another file has received meanwhile.
- A forked child holds no lock of its parent.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from .seam import Buffer, DiskFull, SyncFailed, parent_of
from .thread import RealThread

if sys.platform != "win32":
    import fcntl

__all__ = ["RealDisk"]

# no space left; user quota exceeded; size limit of the process exceeded (RLIMIT_FSIZE)
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NO_FALLOCATE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
PARTS_MAX = 1_024  # IOV_MAX
ZEROS = bytes(1 << 20)


class RealFile:
    """A file of the operating system as a `DiskFile`."""

    __slots__ = ("_calls", "_fd", "_guard", "_is_closed", "_sync_error", "_syncing", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._guard = threading.Lock()
        self._syncing = threading.Lock()
        self._calls = 0
        self._is_closed = False
        self._sync_error: OSError | None = None

    @property
    def size_bytes(self) -> int:
        with self._use() as fd:
            return os.fstat(fd).st_size

    @property
    def has_name(self) -> bool:
        with self._use() as fd:
            return os.fstat(fd).st_nlink > 0

    def read_at(self, offset: int, size_bytes: int, /) -> bytes:
        with self._use() as fd:
            data = os.pread(fd, size_bytes, offset)
            # one call returns at most 2 GiB
            while data and (more := os.pread(fd, size_bytes - len(data), offset + len(data))):
                data += more
            return data

    def write_at(self, offset: int, /, *parts: Buffer) -> None:
        with self._use(is_change=True) as fd:
            if offset < 0:  # the system may take -1 for the current file position
                raise OSError(errno.EINVAL, f"offset {offset} is negative")
            for at in range(0, len(parts), PARTS_MAX):
                offset = write_all(fd, offset, parts[at : at + PARTS_MAX])

    def preallocate(self, size_bytes: int, /) -> None:
        with self._use(is_change=True) as fd:
            old = os.fstat(fd).st_size
            try:
                fill(fd, old, size_bytes)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(fd, old)
                raise
        self.sync()

    def datasync(self) -> None:
        self._sync(is_data_only=True)

    def sync(self) -> None:
        self._sync(is_data_only=False)

    def _sync(self, is_data_only: bool) -> None:
        """Sync, one call at a time: the system reports a failure only to the first call."""
        with self._use() as fd, self._syncing:
            self._refuse_failed()
            try:
                sync_fd(fd, is_data_only)
            except OSError as error:
                self._sync_error = error
                raise sync_failed(error, self.path) from error

    def _refuse_failed(self) -> None:
        if self._sync_error is not None:
            raise sync_failed(self._sync_error, self.path)

    def close(self) -> None:
        with self._guard:
            is_last = not self._is_closed and not self._calls
            self._is_closed = True
        if is_last:
            os.close(self._fd)

    def __del__(self) -> None:
        self.close()

    @contextmanager
    def _use(self, is_change: bool = False) -> Iterator[int]:
        """Lend the descriptor to one call, and add the path to its errors."""
        with self._guard:
            if self._is_closed:
                raise ValueError(f"{self.path}: the file is closed")
            self._calls += 1
        try:
            if is_change:
                self._refuse_failed()
            yield self._fd
        except OSError as error:
            raise add_path(error, self.path) from error.__cause__
        finally:
            with self._guard:
                self._calls -= 1
                is_last = self._is_closed and not self._calls
            if is_last:
                os.close(self._fd)


class RealLock:
    """A locked directory (`flock`). The system releases the lock when the process ends."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd
        HELD.add(self)

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # this also unlocks copies in child processes
            self.let_go()

    def let_go(self) -> None:
        """Close this process's copy of the descriptor. Other copies keep the lock."""
        HELD.discard(self)
        fd, self._fd = self._fd, -1
        os.close(fd)


HELD: set[RealLock] = set()


def let_go_of_all() -> None:
    """Close the locks in a forked child, or they would outlive the parent."""
    for lock in list(HELD):
        lock.let_go()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=let_go_of_all)


class RealDisk:
    """The disk of this machine as a `Disk`, for programs without a silo.

    It needs POSIX; on other systems every call raises OSError. A child process that is forked holds
    no lock of its parent. The methods have the arguments and errors of `Disk`.
    """

    __slots__ = ()

    def open(self, path: str, /, *, can_write: bool = True) -> RealFile:
        """Open an existing file. Raises FileNotFoundError, and IsADirectoryError for a
        directory.
        """
        fd = open_fd(path, os.O_RDWR if can_write else os.O_RDONLY)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return RealFile(path, fd)

    def create(self, path: str, /) -> RealFile:
        """Create an empty file of mode 0600. Raises FileExistsError."""
        return RealFile(path, open_fd(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    def rename(self, source: str, target: str, /) -> None:
        """Give a file another name, atomically."""
        try:
            os.replace(source, target)
        except OSError as error:
            raise add_path(error, source) from None

    def unlink(self, path: str, /) -> None:
        """Remove the name of a file. Raises FileNotFoundError."""
        os.unlink(path)

    def make_dir(self, path: str, /) -> None:
        """Create a directory of mode 0700, and missing directories above it, durably."""
        above = parent_of(path)
        if not os.path.isdir(above):
            self.make_dir(above)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise NotADirectoryError(errno.ENOTDIR, "is a file", path) from None
        except OSError as error:
            raise add_path(error, path) from None
        self.sync_dir(above)  # also if it exists: its creator may have crashed before the sync

    def list(self, path: str, /) -> Sequence[str]:
        """Return the names in a directory, sorted."""
        return sorted(os.listdir(path))

    def sync_dir(self, path: str, /) -> None:
        """Make the names in a directory durable. Raises SyncFailed."""
        fd = open_fd(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync_fd(fd, is_data_only=False)
        except OSError as error:
            raise sync_failed(error, path) from error
        finally:
            os.close(fd)

    def free_bytes(self, path: str, /) -> int:
        """Return how many bytes this user can still write at a directory."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def lock(self, path: str, /) -> RealLock | None:
        """Try to lock a directory; None if another holder has the lock."""
        fd = open_fd(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as error:
            os.close(fd)
            raise add_path(error, path) from None
        return RealLock(fd)

    def start_thread(self, name: str, /) -> RealThread:
        """Start a thread for disk work."""
        return RealThread(name)


def open_fd(path: str, flags: int) -> int:
    """Open a descriptor that executed programs do not inherit."""
    if os.name != "posix":
        raise OSError(errno.ENOSYS, "files that survive a crash need a POSIX system", path)
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise add_path(error, path) from None


def write_all(fd: int, offset: int, parts: Sequence[Buffer]) -> int:
    """Write all parts at an offset. Returns the offset after them."""
    rest: list[Buffer] = [part for part in parts if len(part)]
    while rest:
        done = os.pwritev(fd, rest, offset)
        offset += done
        while rest and done >= memoryview(rest[0]).nbytes:
            done -= memoryview(rest.pop(0)).nbytes
        if done:
            rest[0] = memoryview(rest[0]).cast("B")[done:]
    return offset


def fill(fd: int, start: int, stop: int) -> None:
    """Reserve space, in one piece if the file system supports that, and write zeros there."""
    if stop <= start:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, start, stop - start)
        except OSError as error:
            if error.errno not in NO_FALLOCATE:
                raise
    for at in range(start, stop, len(ZEROS)):
        write_all(fd, at, [memoryview(ZEROS)[: stop - at]])


def sync_fd(fd: int, is_data_only: bool) -> None:
    """Make a file or directory durable."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync leaves the bytes in the drive's cache
    elif is_data_only:
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def add_path(error: OSError, path: str) -> OSError:
    """Return the error with its path, as `DiskFull` if the disk is full."""
    if isinstance(error, DiskFull | SyncFailed):
        return error
    if error.errno in FULL:
        return DiskFull(error.errno, error.strerror, path)
    if error.filename is None:
        error.filename = path
    return error


def sync_failed(error: OSError, path: str) -> SyncFailed:
    reason = f"sync failed ({error.strerror}): bytes written since the last good sync may be lost"
    return SyncFailed(error.errno, reason, path)
