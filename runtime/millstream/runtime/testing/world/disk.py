"""A disk in memory that forgets, on a crash, what a real one may forget.

Owns: `SimDisk` (implements `disk.Disk`). Invariants: bytes below a file's last good `fsync` survive
every crash; what a crash leaves of the rest is decided by the seed: nothing, all, a torn first
part, or the full length with sectors of zeros. After a failed `fsync` the bytes that it should have
written are in danger for good. A file opened before a crash is dead after it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .env import Random
from .host import current_host

__all__ = ["SimDisk", "SimFile"]

SECTOR_BYTES = 512


@dataclass(slots=True)
class Content:
    """What a name leads to: the visible bytes, and which of them would survive."""

    data: bytearray = field(default_factory=bytearray)
    synced_bytes: int = 0  # what an fsync was told is durable, above it everything is at risk
    doomed: list[tuple[int, int]] = field(default_factory=list)  # ranges of failed fsyncs

    def after_crash(self, rng: Random) -> Content:
        """A copy as it is found after a crash."""
        data = bytearray(self.data)
        for start, stop in self.doomed:
            zero_sectors(data, start, min(stop, len(data)), rng)
        outcome = rng.choice(("lost", "kept", "torn", "zeros"))
        if outcome == "lost":
            del data[self.synced_bytes :]
        elif outcome == "torn":
            del data[rng.randint(self.synced_bytes, len(data)) :]
        elif outcome == "zeros":
            zero_sectors(data, self.synced_bytes, len(data), rng)
        return Content(data, len(data))

    def check(self) -> None:
        """Ranges lie inside the file."""
        assert 0 <= self.synced_bytes <= len(self.data)
        assert all(0 <= start <= stop <= len(self.data) for start, stop in self.doomed)


def zero_sectors(data: bytearray, start: int, stop: int, rng: Random) -> None:
    """Overwrite each sector of a range with zeros, or leave it, by chance."""
    for at in range(start, stop, SECTOR_BYTES):
        if rng.random() < 0.5:
            size = min(SECTOR_BYTES, stop - at)
            data[at : at + size] = bytes(size)


class SimFile:
    """An open file of a `SimDisk`."""

    def __init__(self, disk: SimDisk, path: str, content: Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._boot = disk.boot
        self._is_open = True

    @property
    def size_bytes(self) -> int:
        return len(self._content.data)

    def append(self, data: bytes, /) -> int:
        self._use()
        offset = len(self._content.data)
        self._content.data += data
        return offset

    def read(self, offset: int, size_bytes: int, /) -> bytes:
        self._use(is_change=False)
        return bytes(self._content.data[offset : offset + size_bytes])

    def fsync(self) -> None:
        self._use()
        content = self._content
        if self._disk.fsync_fails():
            content.doomed.append((content.synced_bytes, len(content.data)))
            raise OSError(errno.EIO, "fsync failed", self._path)
        content.synced_bytes = len(content.data)

    def truncate(self, size_bytes: int, /) -> None:
        self._use()
        content = self._content
        if size_bytes > len(content.data):
            content.data += bytes(size_bytes - len(content.data))
        del content.data[size_bytes:]
        content.doomed = [(a, min(b, size_bytes)) for a, b in content.doomed if a < size_bytes]
        content.synced_bytes = size_bytes

    def close(self) -> None:
        self._is_open = False

    def _use(self, is_change: bool = True) -> None:
        if not self._is_open:
            raise ValueError(f"{self._path}: the file is closed")
        if self._boot != self._disk.boot:
            raise OSError(errno.EIO, "the host of this file has crashed", self._path)
        refuse_dead(self._path)
        if is_change:
            self._disk.change()


class SimDisk:
    """The disk of one host name; outlives its crashes.

    Args:
        rng: decides what a crash leaves, and which fsync fails.
        fsync_failure_chance: how often `fsync` raises EIO, 0..1.
    """

    def __init__(self, rng: Random, *, fsync_failure_chance: float = 0.0) -> None:
        self.boot = 1
        self.fsync_failure_chance = fsync_failure_chance
        self._rng = rng
        self._files: dict[str, Content] = {}
        self._fsync_failures = 0
        self._changes_left = 0
        self._power_cut: Callable[[], None] | None = None

    def open(self, path: str, /) -> SimFile:
        path = clean(path)
        refuse_dead(path)
        if path not in self._files:
            self.change()
            self._files[path] = Content()
        return SimFile(self, path, self._files[path])

    def read(self, path: str, /) -> bytes:
        return bytes(self._find(path).data)

    def rename(self, source: str, target: str, /) -> None:
        self._find(source)
        self.change()
        self._files[clean(target)] = self._files.pop(clean(source))

    def remove(self, path: str, /) -> None:
        self._find(path)
        self.change()
        del self._files[clean(path)]

    def list(self, folder: str, /) -> Sequence[str]:
        prefix = "" if clean(folder) == "" else clean(folder) + "/"
        return sorted(path for path in self._files if path.startswith(prefix))

    def _find(self, path: str) -> Content:
        refuse_dead(path)
        content = self._files.get(clean(path))
        if content is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return content

    # What can go wrong.

    def fail_fsync(self, count: int = 1) -> None:
        """Let the next `count` calls of `fsync` raise."""
        self._fsync_failures += count

    def fsync_fails(self) -> bool:
        """Whether the fsync that asks fails; asked once per call."""
        if self._fsync_failures > 0:
            self._fsync_failures -= 1
            return True
        return self._rng.random() < self.fsync_failure_chance

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Damage a byte for good, synced or not."""
        self._find(path).data[offset] ^= 1 << bit

    def cut_power_after(self, changes: int, crash: Callable[[], None]) -> None:
        """Let the disk take `changes` more changes, and call `crash` instead of the next one.

        So a crash can fall between two writes of one executor job, which a simulated loop runs in
        one go. `crash` must crash this disk; the code that wanted the change gets an OSError.
        """
        assert changes >= 0
        self._changes_left = changes
        self._power_cut = crash

    def keep_power(self) -> None:
        """Take back `cut_power_after`."""
        self._power_cut = None

    def change(self) -> None:
        """Something is about to change the disk. Raises OSError when the power goes now."""
        if self._power_cut is None:
            return
        if self._changes_left > 0:
            self._changes_left -= 1
            return
        self._power_cut()
        assert self._power_cut is None, "cut_power_after: crash() did not crash the disk"
        raise OSError(errno.EIO, "the power was cut")

    def crash(self) -> None:
        """Forget what the seed wants forgotten; open files are dead from now on."""
        files = self._files.items()
        self._files = {path: content.after_crash(self._rng) for path, content in files}
        self._power_cut = None
        self.boot += 1

    def check(self) -> None:
        """Every file is consistent."""
        for content in self._files.values():
            content.check()


def refuse_dead(path: str) -> None:
    """The rest of a callback whose host crashed in it reaches no disk."""
    host = current_host()
    if host is not None and not host.alive:
        raise OSError(errno.EIO, f"{host.name} has crashed", path)


def clean(path: str) -> str:
    """A path without empty and `.` parts; raises ValueError when it leads out of the disk."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or path.startswith("/"):
        raise ValueError(f"{path!r} leads out of the disk: write a relative path without ..")
    return "/".join(parts)
