"""What a storage layer may ask of a disk.

Owns: the Protocols `Disk`, `DiskFile`, `DiskThread`, `DirLock`, and the errors. Not: the form of
what is written; SQLite files, which have a disk layer of their own.

Paths are those of the operating system, with `/` between parts; in a simulation each machine has a
tree of its own, and relative paths begin at its root.
Two ways to call: `Disk` and `DiskFile` block until it is done, which is right for reads from a warm
cache and for what happens rarely. What waits for the medium goes to a `DiskThread`, which does one
job after the other beside the loop: `flush` for the write that the log waits for, `run` for all
else. The real one is a thread that wakes the loop once per job; the simulated one is a task in
virtual time.

Invariants, on every disk:
- Bytes are durable after `datasync` or `sync`, not before. A crash may keep any sectors of the
  rest, in any order, and any size between the old one and the new one.
- Names (created, renamed, unlinked) are durable after `sync_dir` of the directory, not before; a
  crash may keep any of the rest. `rename` is atomic. `make_dir` is durable when it returns.
- After `SyncFailed` nothing written since the last good sync may be trusted, whatever is read: the
  system forgets what it could not write, so that a second sync would succeed and mean nothing. The
  file refuses every further write and sync; who wants to go on opens a new file.
- A process that ends, however it does, releases its locks.
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
"""Jobs that may wait in one `DiskThread`; who gives it more gets `BlockingIOError`."""

Buffer = bytes | bytearray | memoryview


class DiskFull(OSError):
    """There is no room for a write, by the disk, a quota or a limit of the process.

    What was durable still is. A part of the refused write may be there; writing it again at the
    same place, once there is room, is safe. `filename` says where.
    """


class SyncFailed(OSError):
    """A sync failed, now or earlier: what was written since the last good one may be lost.

    It cannot be tried again. `filename` says where.
    """


class DiskFile(Protocol):
    """An open file, readable and writable at any place.

    Methods raise OSError with the path in `filename`, and ValueError once it is closed. Reads may
    run beside a write; of two writes at once to one place nobody knows which comes last.
    """

    @property
    def path(self) -> str:
        """As it was opened; a rename does not change it."""
        ...

    @property
    def size_bytes(self) -> int: ...
    @property
    def has_name(self) -> bool:
        """False once it was unlinked or replaced: nobody will find again what is written here."""
        ...

    def read_at(self, offset: int, size_bytes: int, /) -> bytes:
        """Up to `size_bytes` from `offset`; shorter only at the end of the file.

        Raises OSError: EIO for a sector that cannot be read.
        """
        ...

    def write_at(self, offset: int, /, *parts: Buffer) -> None:
        """Write the parts one after the other; what lies between the end and `offset` is zeros.

        Raises DiskFull, SyncFailed, OSError; then a part of it may be there.
        """
        ...

    def preallocate(self, size_bytes: int, /) -> None:
        """Make the file at least so long, by zeros that are written and durable.

        A `datasync` of what is then written below that size has no metadata to write. Takes as
        long as writing so many bytes does. Raises DiskFull, having given the room back; SyncFailed.
        """
        ...

    def datasync(self) -> None:
        """Make all bytes durable, and the size that is needed to read them. Raises SyncFailed."""
        ...

    def sync(self) -> None:
        """`datasync`, and the rest of the file's metadata. Raises SyncFailed."""
        ...

    def close(self) -> None:
        """Let go of the file, once the calls under way have ended; makes nothing durable."""
        ...


class DiskThread(Protocol):
    """Does disk work beside the loop, one job after the other in the order they were given.

    Methods are called on the loop that started it. A job is done even if nobody waits for it any
    more: cancelling its future takes nothing back. Raises BlockingIOError when `JOBS_MAX` wait,
    ValueError when it is closed.
    """

    def flush(self, file: DiskFile, offset: int, parts: Sequence[Buffer], /) -> Future[None]:
        """Write the parts at `offset`, and `datasync`; ends when they are durable.

        The parts must not change until then. The future raises what both calls raise; jobs that
        wait behind it are done all the same, so give a log its next flush when the last has ended.
        """
        ...

    def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call a function that blocks on disks; its result or error is the future's."""
        ...

    def close(self) -> None:
        """Take no more jobs; those that it has are done, then it ends."""
        ...


class DirLock(Protocol):
    """A directory that nobody else has, until it is released or the process ends."""

    def release(self) -> None:
        """Let go of it; again is harmless."""
        ...


class Disk(Protocol):
    """Files and directories. Methods raise OSError with the path in `filename`."""

    def open(self, path: str, /, *, can_write: bool = True) -> DiskFile:
        """Open a file that exists. Raises FileNotFoundError."""
        ...

    def create(self, path: str, /) -> DiskFile:
        """Make an empty file, which only this user may read (0600). Raises FileExistsError."""
        ...

    def rename(self, source: str, target: str, /) -> None:
        """Give a file another name; replaces a file of that name. Sync the target's directory."""
        ...

    def unlink(self, path: str, /) -> None:
        """Remove a file; who has it open keeps it. Raises FileNotFoundError."""
        ...

    def make_dir(self, path: str, /) -> None:
        """Make a directory, and those above it, where they are missing, for this user alone (0700).

        Durable when it returns. One that exists stays as it is.
        """
        ...

    def list(self, path: str, /) -> Sequence[str]:
        """The names in a directory, sorted. Raises FileNotFoundError."""
        ...

    def sync_dir(self, path: str, /) -> None:
        """Make the names in a directory durable. Raises SyncFailed."""
        ...

    def free_bytes(self, path: str, /) -> int:
        """What may still be written where a directory is. Raises FileNotFoundError."""
        ...

    def lock(self, path: str, /) -> DirLock | None:
        """Have a directory alone; None while somebody else does, in this process or another.

        Never waits. Raises FileNotFoundError.
        """
        ...

    def start_thread(self, name: str, /) -> DiskThread:
        """Start a thread for disk work; `name` is shown in lists of threads. Call it on a loop."""
        ...


def parent_of(path: str) -> str:
    """The directory that a path's last name is in; `.` for a lone name."""
    above, _, name = path.rstrip("/").rpartition("/")
    return above or ("/" if path.startswith("/") and name else ".")
