"""The faults of a simulated disk, and the time that its work takes.

This module owns `Medium`: room, time, ordered failures, and the power. Bytes are in `content`, and
names in `names`. Everything random comes from the seed. No fault happens that nobody has ordered.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from millstream.runtime.disk.seam import DiskFull, SyncFailed
from millstream.runtime.testing.world.env import Random
from millstream.runtime.testing.world.host import current_host

__all__ = ["CAPACITY_BYTES", "Medium", "disk_full", "refuse_dead", "sync_failed"]

CAPACITY_BYTES = 1 << 40
LATENCY_S = (0.0001, 0.002)
SECTORS_BYTES = (512, 4_096)


class Medium:
    """The part of a simulated disk that fails.

    Args:
        rng: Decides the sector size, how long a sync takes, and which data a crash leaves.
        sync_failure_chance: How often a sync fails, from 0 to 1.
    """

    def __init__(self, rng: Random, *, sync_failure_chance: float = 0.0) -> None:
        self.boot = 1
        self.rng = rng
        self.sector_bytes = rng.choice(SECTORS_BYTES)
        self.sync_failure_chance = sync_failure_chance
        self.capacity_bytes = CAPACITY_BYTES
        self._latency_s = LATENCY_S
        self._stall_s = 0.0
        self._owed_s = 0.0
        self._sync_failures = 0
        self._flips = 0
        self._changes_left = 0
        self._power_cut: Callable[[], None] | None = None

    # -- time

    def set_latency(self, low_s: float, high_s: float) -> None:
        """Set how long each sync takes from now on.

        Args:
            low_s: The shortest time in virtual seconds.
            high_s: The longest time in virtual seconds.
        """
        self._latency_s = (low_s, high_s)

    def stall(self, for_s: float) -> None:
        """Let the next sync take a long time. Later writes wait for it.

        Args:
            for_s: The time in virtual seconds.
        """
        self._stall_s = for_s

    def sync_s(self) -> float:
        """Return how long the sync that asks takes. It ends a stall."""
        stall_s, self._stall_s = self._stall_s, 0.0
        return stall_s or self.rng.uniform(*self._latency_s)

    def take_owed_s(self) -> float:
        """Return the time that syncs took since the last call.

        Blocking code cannot wait in virtual time, so its thread waits afterwards.
        """
        owed_s, self._owed_s = self._owed_s, 0.0
        return owed_s

    # -- failures

    def fail_sync(self, count: int = 1) -> None:
        """Let the next syncs of files or directories fail.

        Their data is dropped, as on Linux: a read may still return it, but a crash loses it.

        Args:
            count: How many syncs fail.
        """
        self._sync_failures += count

    def sync(self, path: str, kept: Callable[[], None], dropped: Callable[[], None]) -> None:
        """Sync: call one of the two functions. Raises SyncFailed."""
        self.change(path)
        self._owed_s += self.sync_s()
        if self._sync_failures == 0 and self.rng.random() >= self.sync_failure_chance:
            kept()
            return
        self._sync_failures = max(0, self._sync_failures - 1)
        dropped()
        raise sync_failed(path)

    def flip_reads(self, count: int = 1) -> None:
        """Let each of the next reads return one wrong bit. The disk itself has the right bit.

        Args:
            count: How many reads.
        """
        self._flips += count

    def as_read(self, data: bytes) -> bytes:
        """Return the result of a read of these bytes."""
        if self._flips == 0 or not data:
            return data
        self._flips -= 1
        wrong = bytearray(data)
        wrong[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return bytes(wrong)

    # -- power

    def cut_power_after(self, changes: int, crash: Callable[[], None]) -> None:
        """Cut the power after some more changes of the disk.

        So a crash can fall between two writes of one job, which a simulated loop runs without a
        pause. The code that makes the next change gets an OSError. `Simulation.cut_power_after`
        calls it with the machine's crash.

        Args:
            changes: How many changes still happen.
            crash: Called instead of the next change. It must crash this disk.
        """
        assert changes >= 0
        self._changes_left = changes
        self._power_cut = crash

    def keep_power(self) -> None:
        """Cancel a `cut_power_after` that has not happened yet."""
        self._power_cut = None

    def change(self, path: str) -> None:
        """Count a change that is about to happen. Raises OSError if the power is cut now."""
        refuse_dead(path)
        if self._power_cut is None:
            return
        if self._changes_left > 0:
            self._changes_left -= 1
            return
        self._power_cut()
        assert self._power_cut is None, "cut_power_after: crash() did not crash the disk"
        raise OSError(errno.EIO, "the power was cut", path)

    def lose_power(self) -> None:
        """Drop ordered faults, because the machine crashed. Latency and room stay."""
        self._power_cut = None
        self._stall_s = self._owed_s = 0.0
        self._sync_failures = self._flips = 0
        self.boot += 1


def refuse_dead(path: str) -> None:
    """Raise OSError for the rest of a callback whose host crashed in it."""
    host = current_host()
    if host is not None and not host.alive:
        raise OSError(errno.EIO, f"{host.name} has crashed", path)


def disk_full(path: str) -> DiskFull:
    return DiskFull(errno.ENOSPC, "no space left on device", path)


def sync_failed(path: str) -> SyncFailed:
    reason = "sync failed: bytes written since the last good sync may be lost"
    return SyncFailed(errno.EIO, reason, path)
