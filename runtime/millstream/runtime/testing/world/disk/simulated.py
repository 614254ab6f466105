"""The disk of one simulated machine.

Owns: `SimDisk`, its locks, and damage to what is on it. What a crash leaves is said in `content`
and `names`, what else can be ordered to go wrong in `medium`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.runtime.testing.world.env import Random
from millstream.runtime.testing.world.host import Host, current_host, is_alive

from .content import Content
from .file import SimFile
from .medium import CAPACITY_BYTES, Medium, refuse_dead
from .names import Names, clean
from .thread import SimThread

__all__ = ["SimDisk"]


class SimLock:
    """A locked directory; free again when its process or machine has crashed."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._boot = medium.boot
        self._host: Host | None = current_host()
        self._is_released = False

    @property
    def is_held(self) -> bool:
        has_crashed = self._boot != self._medium.boot or not is_alive(self._host)
        return not self._is_released and not has_crashed

    def release(self) -> None:
        self._is_released = True


class SimDisk(Medium):
    """The `Disk` of a simulated machine; outlives its crashes. What can go wrong are methods, too.

    Args:
        rng: decides the sector size, how long a sync takes, and what a crash leaves.
        sync_failure_chance: how often a sync fails, 0..1.
    """

    def __init__(self, rng: Random, *, sync_failure_chance: float = 0.0) -> None:
        super().__init__(rng, sync_failure_chance=sync_failure_chance)
        self._names = Names()
        self._locks: dict[str, SimLock] = {}

    # -- the seam

    def open(self, path: str, /, *, can_write: bool = True) -> SimFile:
        refuse_dead(path)
        return self._open_file(path, self._names.find(clean(path)), can_write)

    def create(self, path: str, /) -> SimFile:
        self.change(path)
        content = Content(self.sector_bytes)
        self._names.create(clean(path), content)
        return self._open_file(path, content, can_write=True)

    def _open_file(self, path: str, content: Content, can_write: bool) -> SimFile:
        return SimFile(path, self, self._fits, self._names.has, content, can_write)

    def rename(self, source: str, target: str, /) -> None:
        self._names.find(clean(source))
        self.change(source)
        self._names.rename(clean(source), clean(target))

    def unlink(self, path: str, /) -> None:
        self._names.find(clean(path))
        self.change(path)
        self._names.unlink(clean(path))

    def make_dir(self, path: str, /) -> None:
        self.change(path)
        self._names.make_dir(clean(path))

    def list(self, path: str, /) -> Sequence[str]:
        refuse_dead(path)
        return self._names.inside(clean(path))

    def sync_dir(self, path: str, /) -> None:
        directory = clean(path)
        self._names.refuse_missing(directory)
        self.sync(
            path,
            lambda: self._names.sync(directory),
            lambda: self._names.fail_sync(directory, self.rng),
        )

    def free_bytes(self, path: str, /) -> int:
        refuse_dead(path)
        self._names.refuse_missing(clean(path))
        return max(0, self.capacity_bytes - self.used_bytes)

    def lock(self, path: str, /) -> SimLock | None:
        refuse_dead(path)
        directory = clean(path)
        self._names.refuse_missing(directory)
        held = self._locks.get(directory)
        if held is not None and held.is_held:
            return None
        lock = self._locks[directory] = SimLock(self)
        return lock

    def start_thread(self, name: str, /) -> SimThread:
        return SimThread(name, self)

    # -- room

    @property
    def used_bytes(self) -> int:
        """The sizes of all files together."""
        return sum(len(content.data) for content in self._names.contents())

    def fill_up(self, free_bytes: int = 0) -> None:
        """Leave room for so many bytes more; a write beyond it raises DiskFull half-way."""
        self.capacity_bytes = self.used_bytes + free_bytes

    def make_room(self) -> None:
        """Take back `fill_up`."""
        self.capacity_bytes = CAPACITY_BYTES

    def _fits(self, content: Content, size_bytes: int) -> int:
        """How long a file may become that wants to be so long."""
        size = len(content.data)
        if size_bytes <= size:
            return size_bytes
        return min(size_bytes, size + max(0, self.capacity_bytes - self.used_bytes))

    # -- damage

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Damage a byte for good, synced or not."""
        self._names.find(clean(path)).flip_bit(offset, bit)

    def make_unreadable(self, path: str, offset: int) -> None:
        """Let reads of the sector at an offset fail, until all of it is written again."""
        self._names.find(clean(path)).unreadable.add(offset // self.sector_bytes)

    def damage(
        self, directory: str = "/", *, is_unreadable: bool = False
    ) -> tuple[str, int] | None:
        """Flip a bit anywhere, or make its sector unreadable; where, or None if all is empty."""
        found = self._names.below(clean(directory))
        files = [(path, len(one.data)) for path, one in sorted(found.items()) if one.data]
        if not files:
            return None
        path, size = self.rng.choice(files)
        offset = self.rng.randrange(size)
        if is_unreadable:
            self.make_unreadable(path, offset)
        else:
            self.flip_bit(path, offset, self.rng.randrange(8))
        return path, offset

    def copy_of(self, directory: str) -> Mapping[str, bytes]:
        """The files below a directory as programs see them now, for `restore`."""
        return {path: bytes(one.data) for path, one in self._names.below(clean(directory)).items()}

    def restore(self, directory: str, copy: Mapping[str, bytes]) -> None:
        """Put an older copy in place of what is below a directory; `{}` empties it.

        It is durable at once. Who has a file open still has that one.
        """
        files = {path: Content(self.sector_bytes, data) for path, data in copy.items()}
        self._names.replace_below(clean(directory), files)

    # -- life

    def crash(self) -> None:
        """The machine loses its power: forget what the seed wants forgotten; files and locks that
        are open are dead from now on."""
        self.lose_power()
        self._names.crash(self.rng)

    def check(self) -> None:
        """Every file is consistent."""
        self._names.check()
