"""The disk of one simulated machine.

This module owns `SimDisk`, its locks, and damage to its files. The modules `content` and `names`
decide which data a crash leaves. The module `medium` has the other faults.
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
    """A locked directory. It is free again when its process or machine has crashed."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._boot = medium.boot
        self._host: Host | None = current_host()
        self._is_released = False

    @property
    def is_held(self) -> bool:
        """Whether the lock is held."""
        has_crashed = self._boot != self._medium.boot or not is_alive(self._host)
        return not self._is_released and not has_crashed

    def release(self) -> None:
        """Release the lock."""
        self._is_released = True


class SimDisk(Medium):
    """The `Disk` of a simulated machine. It loses unsynced data in a crash, and fails as a test
    orders.

    `Simulation.disk(host)` returns it. It outlives the crashes of its machine. After a crash it has
    everything that was synced. The seed decides the rest: each unsynced sector has any of its
    versions, a file has any size between its old and its new one, and each name change without
    `sync_dir` may have happened or not.

    Args:
        rng: Decides the sector size (512 or 4,096 bytes), how long a sync takes, and which data a
            crash leaves.
        sync_failure_chance: How often a sync fails, from 0 to 1.

    Attributes:
        sync_failure_chance: As the argument.
        capacity_bytes: The size of the disk.
    """

    def __init__(self, rng: Random, *, sync_failure_chance: float = 0.0) -> None:
        super().__init__(rng, sync_failure_chance=sync_failure_chance)
        self._names = Names()
        self._locks: dict[str, SimLock] = {}

    # -- `Disk`

    def open(self, path: str, /, *, can_write: bool = True) -> SimFile:
        """Open an existing file. Raises FileNotFoundError, IsADirectoryError."""
        refuse_dead(path)
        return self._open_file(path, self._names.find(clean(path)), can_write)

    def create(self, path: str, /) -> SimFile:
        """Create an empty file. Raises FileExistsError, FileNotFoundError."""
        self.change(path)
        content = Content(self.sector_bytes)
        self._names.create(clean(path), content)
        return self._open_file(path, content, can_write=True)

    def _open_file(self, path: str, content: Content, can_write: bool) -> SimFile:
        return SimFile(path, self, self._fits, self._names.has, content, can_write)

    def rename(self, source: str, target: str, /) -> None:
        """Give a file another name, atomically."""
        self._names.find(clean(source))
        self.change(source)
        self._names.rename(clean(source), clean(target))

    def unlink(self, path: str, /) -> None:
        """Remove the name of a file. Raises FileNotFoundError."""
        self._names.find(clean(path))
        self.change(path)
        self._names.unlink(clean(path))

    def make_dir(self, path: str, /) -> None:
        """Create a directory, and missing directories above it, durably."""
        self.change(path)
        self._names.make_dir(clean(path))

    def list(self, path: str, /) -> Sequence[str]:
        """Return the names in a directory, sorted. Raises FileNotFoundError."""
        refuse_dead(path)
        return self._names.inside(clean(path))

    def sync_dir(self, path: str, /) -> None:
        """Make the names in a directory durable. Raises SyncFailed, FileNotFoundError."""
        directory = clean(path)
        self._names.refuse_missing(directory)
        self.sync(
            path,
            lambda: self._names.sync(directory),
            lambda: self._names.fail_sync(directory, self.rng),
        )

    def free_bytes(self, path: str, /) -> int:
        """Return how many bytes can still be written. Raises FileNotFoundError."""
        refuse_dead(path)
        self._names.refuse_missing(clean(path))
        return max(0, self.capacity_bytes - self.used_bytes)

    def lock(self, path: str, /) -> SimLock | None:
        """Try to lock a directory; None if another holder has the lock. Raises
        FileNotFoundError.
        """
        refuse_dead(path)
        directory = clean(path)
        self._names.refuse_missing(directory)
        held = self._locks.get(directory)
        if held is not None and held.is_held:
            return None
        lock = self._locks[directory] = SimLock(self)
        return lock

    def start_thread(self, name: str, /) -> SimThread:
        """Start a simulated thread for disk work."""
        return SimThread(name, self)

    # -- room

    @property
    def used_bytes(self) -> int:
        """The total size of all files."""
        return sum(len(content.data) for content in self._names.contents())

    def fill_up(self, free_bytes: int = 0) -> None:
        """Leave only some free room. A write beyond it raises DiskFull halfway.

        Args:
            free_bytes: The free room.
        """
        self.capacity_bytes = self.used_bytes + free_bytes

    def make_room(self) -> None:
        """Take back `fill_up`."""
        self.capacity_bytes = CAPACITY_BYTES

    def _fits(self, content: Content, size_bytes: int) -> int:
        """Return how long a file can become that should have this size."""
        size = len(content.data)
        if size_bytes <= size:
            return size_bytes
        return min(size_bytes, size + max(0, self.capacity_bytes - self.used_bytes))

    # -- damage

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Change one bit of a file permanently, synced or not.

        Args:
            path: The file.
            offset: The byte.
            bit: The bit, from 0 to 7.
        """
        self._names.find(clean(path)).flip_bit(offset, bit)

    def make_unreadable(self, path: str, offset: int) -> None:
        """Let reads of a sector fail with EIO until the whole sector is written again.

        Args:
            path: The file.
            offset: A byte of the sector.
        """
        self._names.find(clean(path)).unreadable.add(offset // self.sector_bytes)

    def damage(
        self, directory: str = "/", *, is_unreadable: bool = False
    ) -> tuple[str, int] | None:
        """Flip a bit at a random place, or make a random sector unreadable.

        Args:
            directory: Only files below this directory.
            is_unreadable: True makes a sector unreadable.

        Returns:
            Path and offset. None if there are no bytes to damage.
        """
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
        """Return the files below a directory as programs see them now, for `restore`.

        Args:
            directory: The directory.

        Returns:
            The contents by path.
        """
        return {path: bytes(one.data) for path, one in self._names.below(clean(directory)).items()}

    def restore(self, directory: str, copy: Mapping[str, bytes]) -> None:
        """Replace everything below a directory by an older copy.

        The replacement is durable at once. Open handles still refer to the old files.

        Args:
            directory: The directory.
            copy: The contents by path. `{}` empties the directory.
        """
        files = {path: Content(self.sector_bytes, data) for path, data in copy.items()}
        self._names.replace_below(clean(directory), files)

    # -- life

    def crash(self) -> None:
        """Cut the power of the machine: lose unsynced data, as the seed decides.

        Open files and locks are unusable from now on. `Simulation.crash` and `Simulation.cut_power`
        call it.
        """
        self.lose_power()
        self._names.crash(self.rng)

    def check(self) -> None:
        """Assert that every file is consistent."""
        self._names.check()
