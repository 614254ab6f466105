"""The disk seam: the file writes that must survive a crash, and the real implementation.

Owns: `Disk`, `DiskFile`, `RealDisk`. The simulator implements the same Protocols
(`testing.world.disk`). Not: the form of what is written; SQLite files (they have a disk layer of
their own).
Invariants: a file only grows, or is truncated; bytes are durable after `fsync`, not before, and a
crash may keep any part of the rest; names (made, renamed, removed) and truncation are durable when
the call returns. After `fsync` raised, nothing appended since the last good one may be trusted,
whatever a later `fsync` says. Calls block: use them from an executor, one thread per file at a
time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Protocol

__all__ = ["Disk", "DiskFile", "RealDisk"]


class DiskFile(Protocol):
    """An open file. Every method raises OSError when the disk does not do it."""

    @property
    def size_bytes(self) -> int: ...
    def append(self, data: bytes, /) -> int:
        """Write at the end; returns the offset of the first byte.

        After an OSError a part may be there.
        """
        ...

    def read(self, offset: int, size_bytes: int, /) -> bytes:
        """Up to `size_bytes` from `offset`; shorter only at the end of the file."""
        ...

    def fsync(self) -> None: ...
    def truncate(self, size_bytes: int, /) -> None: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """A tree of files. Paths are relative, with `/` between parts. Raises OSError."""

    def open(self, path: str, /) -> DiskFile:
        """Open for reading and appending; make it, and the folders above it, when missing."""
        ...

    def read(self, path: str, /) -> bytes:
        """The whole file; raises FileNotFoundError."""
        ...

    def rename(self, source: str, target: str, /) -> None:
        """Atomic; replaces the target. fsync the content before."""
        ...

    def remove(self, path: str, /) -> None: ...
    def list(self, folder: str, /) -> Sequence[str]:
        """Paths of all files below a folder, sorted; nothing for a folder that is not there."""
        ...


class RealFile:
    """An operating-system file as a `DiskFile`."""

    __slots__ = ("_file",)

    def __init__(self, path: Path) -> None:
        self._file = FileIO(path, "a+")

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def append(self, data: bytes, /) -> int:
        offset, rest = self.size_bytes, memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        return offset

    def read(self, offset: int, size_bytes: int, /) -> bytes:
        self._file.seek(offset)
        parts: list[bytes] = []
        while size_bytes > 0 and (part := self._file.read(size_bytes)):
            parts.append(part)
            size_bytes -= len(part)
        return b"".join(parts)

    def fsync(self) -> None:
        os.fsync(self._file.fileno())

    def truncate(self, size_bytes: int, /) -> None:
        self._file.truncate(size_bytes)
        self.fsync()

    def close(self) -> None:
        self._file.close()


class RealDisk:
    """Files below a root folder, which is made when missing."""

    __slots__ = ("_root",)

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._root.mkdir(parents=True, exist_ok=True)

    def open(self, path: str, /) -> RealFile:
        full = self._root / path
        if full.exists():
            return RealFile(full)
        missing = [folder for folder in full.parents if not folder.exists()]
        full.parent.mkdir(parents=True, exist_ok=True)
        file = RealFile(full)
        fsync_folders([full.parent, *(folder.parent for folder in missing)])
        return file

    def read(self, path: str, /) -> bytes:
        return (self._root / path).read_bytes()

    def rename(self, source: str, target: str, /) -> None:
        old, new = self._root / source, self._root / target
        new.parent.mkdir(parents=True, exist_ok=True)
        os.replace(old, new)
        fsync_folders([new.parent, old.parent])

    def remove(self, path: str, /) -> None:
        full = self._root / path
        full.unlink()
        fsync_folders([full.parent])

    def list(self, folder: str, /) -> Sequence[str]:
        found = (self._root / folder).rglob("*")
        return sorted(path.relative_to(self._root).as_posix() for path in found if path.is_file())


def fsync_folders(folders: Sequence[Path]) -> None:
    """Make the names in the folders durable, each once; Windows needs and knows no such call."""
    if os.name == "nt":
        return
    for folder in dict.fromkeys(folders):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
