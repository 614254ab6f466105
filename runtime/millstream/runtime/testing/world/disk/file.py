"""Open files of a simulated disk.

This module owns `SimFile`. A file is unusable once the process that opened it, or the machine, has
crashed. A call does all its work at once, and its duration is added to a debt that is waited for
later (`Medium.take_owed_s`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from millstream.runtime.disk.seam import Buffer
from millstream.runtime.testing.world.host import current_host, is_alive

from .content import Content
from .medium import Medium, disk_full, refuse_dead, sync_failed

__all__ = ["SimFile"]


class SimFile:
    """A `DiskFile` of a `SimDisk`."""

    def __init__(
        self,
        path: str,
        medium: Medium,
        fits: Callable[[Content, int], int],
        has_name: Callable[[Content], bool],
        content: Content,
        can_write: bool,
    ) -> None:
        self.path = path
        self._medium = medium
        self._fits = fits
        self._has_name = has_name
        self._content = content
        self._can_write = can_write
        self._host = current_host()
        self._boot = medium.boot
        self._is_closed = False
        self._has_failed = False

    @property
    def size_bytes(self) -> int:
        self._use()
        return len(self._content.data)

    @property
    def has_name(self) -> bool:
        self._use()
        return self._has_name(self._content)

    def read_at(self, offset: int, size_bytes: int, /) -> bytes:
        self._use()
        self._refuse_negative(offset)
        content = self._content
        data = bytes(content.data[offset : offset + size_bytes])
        size = content.sector_bytes
        sectors = range(offset // size, -(-(offset + len(data)) // size))
        if any(sector in content.unreadable for sector in sectors):
            raise OSError(errno.EIO, "a sector cannot be read", self.path)
        return self._medium.as_read(data)

    def write_at(self, offset: int, /, *parts: Buffer) -> None:
        self._use_to_write()
        self._refuse_negative(offset)
        for part in parts:
            self._write(offset, bytes(part))
            offset += len(part)

    def _write(self, offset: int, data: bytes) -> None:
        self._medium.change(self.path)
        fits = self._fits(self._content, offset + len(data)) - offset
        if data and fits > 0:
            self._content.write(offset, data[:fits])
        if fits < len(data):
            raise disk_full(self.path)

    def preallocate(self, size_bytes: int, /) -> None:
        self._use_to_write()
        self._medium.change(self.path)
        if self._fits(self._content, size_bytes) < size_bytes:
            raise disk_full(self.path)
        self._content.extend(size_bytes)
        self.sync()

    def datasync(self) -> None:
        self._use()
        self._refuse_failed()
        content, medium = self._content, self._medium
        self._has_failed = True
        medium.sync(self.path, content.sync, lambda: content.fail_sync(medium.rng))
        self._has_failed = False

    def sync(self) -> None:
        self.datasync()

    def close(self) -> None:
        self._is_closed = True

    def _use(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self.path}: the file is closed")
        if self._boot != self._medium.boot or not is_alive(self._host):
            raise OSError(errno.EIO, "the host of this file has crashed", self.path)
        refuse_dead(self.path)

    def _refuse_negative(self, offset: int) -> None:
        if offset < 0:
            raise OSError(errno.EINVAL, f"offset {offset} is negative", self.path)

    def _use_to_write(self) -> None:
        self._use()
        if not self._can_write:
            raise OSError(errno.EBADF, "the file was opened for reading", self.path)
        self._refuse_failed()

    def _refuse_failed(self) -> None:
        if self._has_failed:
            raise sync_failed(self.path)
