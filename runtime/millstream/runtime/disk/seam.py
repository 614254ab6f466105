"""The disk seam: everything that a storage layer may ask of a disk.

This module owns the Protocols `Disk`, `DiskFile`, `DiskThread` and `DirLock`, and the errors. The
format of files belongs to their users. SQLite files do not use this seam, because SQLite has a disk
layer of its own.

Paths are those of the operating system, with `/` between parts. In a simulation each machine has a
file tree of its own, and relative paths begin at its root.

There are two ways to call a disk:

- The methods of `Disk` and `DiskFile` block. Use them for reads from a warm cache and for rare
  operations.
- A `DiskThread` runs jobs that wait for the medium, one after the other, while the event loop
  continues. `flush` is for the write that a log waits for, and `run` is for all other jobs. The
  real implementation is a thread that wakes the loop once per job. The simulated one is a task in
  virtual time.

Invariants, on every disk:

- Bytes are durable after `datasync` or `sync`, not before. A crash may keep any sectors of the
  rest, in any order, and any size between the old and the new one.
- Names (created, renamed, unlinked) are durable after `sync_dir` of the directory, not before. A
  crash may keep any of the other changes. `rename` is atomic. `make_dir` is durable when it
  returns.
- After `SyncFailed`, no byte written since the last good sync may be trusted, even if it can be
  read. The system forgets bytes that it could not write, so a second sync would succeed and mean
  nothing. The file refuses every further write and sync. To continue, open a new file.
- A process that ends in any way releases its locks.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar

__all__ = [
    "JOBS_MAX",
    "Buffer",
    "DirLock",
    "Disk",
    "DiskFile",
    "DiskFull",
    "DiskThread",
    "SyncFailed",
    "parent_of",
]

P = ParamSpec("P")
T = TypeVar("T")

JOBS_MAX = 1_024
"""Jobs that may wait in one `DiskThread`. Further jobs raise `BlockingIOError`."""

Buffer = bytes | bytearray | memoryview


class DiskFull(OSError):
    """There is no room for a write: on the disk, in a quota, or in a limit of the process.

    Durable bytes stay durable. A part of the refused write may be in the file. Writing it again at
    the same place, once there is room, is safe. `filename` is the path.
    """


class SyncFailed(OSError):
    """A sync failed, so bytes written since the last good sync may be lost.

    The file refuses every further write and sync, because a second sync would mean nothing. Open a
    new file to continue. `filename` is the path.
    """


class DiskFile(Protocol):
    """An open file that can be read and written at any place.

    Bytes are durable after `datasync` or `sync`. A crash may keep any part of the rest, sector by
    sector. Methods raise OSError with the path in `filename`, and ValueError once the file is
    closed. Reads may run during a write. If two writes to one place run at the same time, their
    order is undefined.
    """

    @property
    def path(self) -> str:
        """The path with which the file was opened. A rename does not change it."""
        ...

    @property
    def size_bytes(self) -> int:
        """The size of the file in bytes."""
        ...

    @property
    def has_name(self) -> bool:
        """Whether the file still has a name.

        False after it was unlinked or replaced: nobody can find again the bytes that are written to
        it.
        """
        ...

    def read_at(self, offset: int, size_bytes: int, /) -> bytes:
        """Read bytes at an offset.

        Args:
            offset: Where to begin.
            size_bytes: How many bytes to read.

        Returns:
            The bytes. Fewer than `size_bytes` only at the end of the file.

        Raises:
            OSError: `EIO` if a sector cannot be read.
        """
        ...

    def write_at(self, offset: int, /, *parts: Buffer) -> None:
        """Write parts one after the other, beginning at an offset.

        A gap between the end of the file and the offset is filled with zeros.

        Args:
            offset: Where to begin.
            parts: The bytes.

        Raises:
            DiskFull: There is no room. A part may be written.
            SyncFailed: An earlier sync of this file has failed.
            OSError: Another error of the disk. A part may be written.
        """
        ...

    def preallocate(self, size_bytes: int, /) -> None:
        """Make the file at least this long, with zeros that are written and durable.

        A `datasync` of bytes that are then written below this size has no metadata to write. The
        call takes as long as writing so many bytes.

        Args:
            size_bytes: The least size of the file.

        Raises:
            DiskFull: There is no room. The room that was taken is given back.
            SyncFailed: This sync or an earlier one has failed.
        """
        ...

    def datasync(self) -> None:
        """Make all bytes durable, and the size that is needed to read them.

        Raises:
            SyncFailed: This sync or an earlier one has failed.
        """
        ...

    def sync(self) -> None:
        """Make all bytes durable, and all metadata of the file.

        Raises:
            SyncFailed: This sync or an earlier one has failed.
        """
        ...

    def close(self) -> None:
        """Close the file once the running calls have ended. It makes no bytes durable."""
        ...


class DiskThread(Protocol):
    """Does disk work while the event loop continues, one job after the other, in order.

    Call its methods on the loop that started it. A job is done even if nobody waits for it:
    cancelling its future does not cancel the job. At most 1,024 jobs wait. Methods raise
    BlockingIOError above that, and ValueError after `close`.
    """

    def flush(self, file: DiskFile, offset: int, parts: Sequence[Buffer], /) -> Future[None]:
        """Write parts at an offset, and make them durable by `datasync`.

        The parts must not change until the future is done. If a flush fails, the thread still runs
        the jobs that are queued behind it. So a log that queued two flushes could have the second
        one on disk without the first: it should give its next flush only when the last one has
        ended.

        Args:
            file: The file.
            offset: Where to begin.
            parts: The bytes.

        Returns:
            A future that is done when the bytes are durable. It raises the errors of `write_at` and
                `datasync`.
        """
        ...

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function that blocks on disks.

        Args:
            fn: The function.
            args: Its arguments by position.
            kwargs: Its arguments by name.

        Returns:
            A future with the result or error of the function.
        """
        ...

    def close(self) -> None:
        """Take no more jobs. The thread ends when the waiting jobs are done."""
        ...


class DirLock(Protocol):
    """The lock of a directory, held until it is released or the process ends."""

    def release(self) -> None:
        """Release the lock. Repeated calls do nothing."""
        ...


class Disk(Protocol):
    """The files and directories of one machine, durable under the rules of this seam.

    A silo gives its parts a disk as `SiloServices.disk`, and a queue adapter gets one as
    `AdapterHost.disk`. In a simulation it is the disk of the simulated machine, so crashes, full
    disks and failing syncs can be tested. SQLite files do not use this seam.

    Bytes are durable after `DiskFile.datasync` or `sync`, and names after `sync_dir` of their
    directory. A crash may keep any of the rest, sector by sector and name by name. Paths are those
    of the operating system. Calls block; give work that waits for the medium to a `DiskThread`.
    Methods raise OSError with the path in `filename`.
    """

    def open(self, path: str, /, *, can_write: bool = True) -> DiskFile:
        """Open an existing file.

        Args:
            path: The path.
            can_write: False opens it for reading only.

        Raises:
            FileNotFoundError: There is no such file.
        """
        ...

    def create(self, path: str, /) -> DiskFile:
        """Create an empty file that only this user may read and write (mode 0600).

        Args:
            path: The path.

        Raises:
            FileExistsError: The name is taken.
        """
        ...

    def rename(self, source: str, target: str, /) -> None:
        """Give a file another name, atomically. A file with that name is replaced.

        The new name is durable after `sync_dir` of its directory.

        Args:
            source: The present path.
            target: The new path.
        """
        ...

    def unlink(self, path: str, /) -> None:
        """Remove the name of a file. Open handles of it stay usable.

        Args:
            path: The path.

        Raises:
            FileNotFoundError: There is no such file.
        """
        ...

    def make_dir(self, path: str, /) -> None:
        """Create a directory, and missing directories above it, for this user alone (mode 0700).

        They are durable when the call returns. An existing directory stays as it is.

        Args:
            path: The path.
        """
        ...

    def list(self, path: str, /) -> Sequence[str]:
        """Return the names in a directory, sorted.

        Args:
            path: The directory.

        Raises:
            FileNotFoundError: There is no such directory.
        """
        ...

    def sync_dir(self, path: str, /) -> None:
        """Make the names in a directory durable.

        Args:
            path: The directory.

        Raises:
            SyncFailed: The sync failed.
        """
        ...

    def free_bytes(self, path: str, /) -> int:
        """Return how many bytes can still be written at a directory.

        Args:
            path: The directory.

        Raises:
            FileNotFoundError: There is no such directory.
        """
        ...

    def lock(self, path: str, /) -> DirLock | None:
        """Try to lock a directory. Never waits.

        Args:
            path: The directory.

        Returns:
            The lock, or None if another holder has it, in this process or another one.

        Raises:
            FileNotFoundError: There is no such directory.
        """
        ...

    def start_thread(self, name: str, /) -> DiskThread:
        """Start a thread for disk work. Call it on an event loop.

        Args:
            name: The name in lists of threads.
        """
        ...


def parent_of(path: str) -> str:
    """Return the directory of a path; `.` for a name without a directory."""
    above, _, name = path.rstrip("/").rpartition("/")
    return above or ("/" if path.startswith("/") and name else ".")
