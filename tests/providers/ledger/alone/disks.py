"""A machine with a simulated disk for each directory. A disk can be away."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from millstream.runtime.extending import DirLock, DiskFile, DiskThread
from millstream.runtime.testing import SimDisk, make_random

__all__ = ["Disks"]


class Disks:
    """The `Disk` of the machine. The beginning of a path selects the simulated disk.

    `away` holds the names of the disks that do not answer, and `all` the disks by name.
    """

    def __init__(self, *names: str) -> None:
        self.all = {name: SimDisk(make_random(at + 1)) for at, name in enumerate(names)}
        self.away: set[str] = set()

    def _of(self, path: str) -> SimDisk:
        name = next(one for one in self.all if path == one or path.startswith(f"{one}/"))
        if name in self.away:
            raise OSError(errno.EIO, "Input/output error", path)
        return self.all[name]

    def open(self, path: str, /, *, can_write: bool = True) -> DiskFile:
        return self._of(path).open(path, can_write=can_write)

    def create(self, path: str, /) -> DiskFile:
        return self._of(path).create(path)

    def rename(self, source: str, target: str, /) -> None:
        self._of(source).rename(source, target)

    def unlink(self, path: str, /) -> None:
        self._of(path).unlink(path)

    def make_dir(self, path: str, /) -> None:
        self._of(path).make_dir(path)

    def list(self, path: str, /) -> Sequence[str]:
        return self._of(path).list(path)

    def sync_dir(self, path: str, /) -> None:
        self._of(path).sync_dir(path)

    def free_bytes(self, path: str, /) -> int:
        return self._of(path).free_bytes(path)

    def lock(self, path: str, /) -> DirLock | None:
        return self._of(path).lock(path)

    def start_thread(self, name: str, /) -> DiskThread:
        return next(iter(self.all.values())).start_thread(name)
