"""Who owns which queue, in a small file that the processes of one machine share.

An owner asks it for every answer that needs no commit: such an answer would otherwise go out of the
memory of an owner that another process has followed. It is asked through the kernel's cache of the
file, which all processes see at once; it is never made durable, as nobody asks for what it had
before the processes began.
Owns: `Owners`. Invariants:
- a new owner's epoch is there before it answers anything: it is set within the transaction that
  raises the epoch, so under the write lock of the queues' file;
- in a forked child nobody owns anything.
"""

from __future__ import annotations

import os
from pathlib import Path
from weakref import WeakSet

__all__ = ["Owners"]

WIDTH_BYTES = 8


class Owners:
    """The epochs of the owners of one file's queues, by the queues' numbers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_open = False
        self._reading = self._writing = -1
        _all.add(self)

    def _open(self) -> None:
        self._reading = os.open(self._path, os.O_RDONLY | os.O_CREAT, 0o600)
        self._writing = os.open(self._path, os.O_WRONLY)  # it has a position, of one thread alone
        self._is_open = True

    def set(self, number: int, epoch: int) -> None:
        """Say who owns a queue from now on; in the thread that has the file's write lock. Raises
        OSError."""
        if not self._is_open:
            self._open()
        here, named = os.fstat(self._writing), os.stat(self._path)
        if (here.st_dev, here.st_ino) != (named.st_dev, named.st_ino):
            raise FileNotFoundError(2, "was replaced while it is in use", str(self._path))
        os.lseek(self._writing, number * WIDTH_BYTES, os.SEEK_SET)
        os.write(self._writing, epoch.to_bytes(WIDTH_BYTES, "little"))

    def is_owner(self, number: int, epoch: int) -> bool:
        """Nobody has come after the owner of this epoch."""
        if not self._is_open:
            return False
        found = os.pread(self._reading, WIDTH_BYTES, number * WIDTH_BYTES)
        return int.from_bytes(found, "little") == epoch

    def close(self) -> None:
        """Nobody is an owner from now on."""
        if self._is_open:
            self._is_open = False
            os.close(self._reading)
            os.close(self._writing)

    def disown(self) -> None:
        """In a forked child: what the parent has is not the child's."""
        self._is_open = False


_all: WeakSet[Owners] = WeakSet()


def _disown_all() -> None:
    for owners in _all:
        owners.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
