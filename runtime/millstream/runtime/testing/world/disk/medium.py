"""What can go wrong with a disk, and what it costs.

Owns: `Medium`: room, time, failures that were ordered, and the power. Not: bytes (`content`) and
names (`names`). Invariants: whatever is chance comes from the seed; nothing goes wrong that nobody
asked for.
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
        rng: decides the sector size, how long a sync takes, and what a crash leaves.
        sync_failure_chance: how often a sync fails, 0..1.
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
        """How long a sync takes from now on, at least and at most."""
        self._latency_s = (low_s, high_s)

    def stall(self, for_s: float) -> None:
        """Let the next sync take so long; what is written meanwhile waits behind it."""
        self._stall_s = for_s

    def sync_s(self) -> float:
        """How long the sync takes that asks; a stall is over then."""
        stall_s, self._stall_s = self._stall_s, 0.0
        return stall_s or self.rng.uniform(*self._latency_s)

    def take_owed_s(self) -> float:
        """What syncs have cost since it was asked last: code that blocks cannot wait in virtual
        time, so its thread does afterwards."""
        owed_s, self._owed_s = self._owed_s, 0.0
        return owed_s

    # -- failures

    def fail_sync(self, count: int = 1) -> None:
        """Let the next `count` syncs of a file or directory fail, and drop what they should have
        written, as Linux does."""
        self._sync_failures += count

    def sync(self, path: str, kept: Callable[[], None], dropped: Callable[[], None]) -> None:
        """A sync: calls one of the two. Raises SyncFailed."""
        self.change(path)
        self._owed_s += self.sync_s()
        if self._sync_failures == 0 and self.rng.random() >= self.sync_failure_chance:
            kept()
            return
        self._sync_failures = max(0, self._sync_failures - 1)
        dropped()
        raise sync_failed(path)

    def flip_reads(self, count: int = 1) -> None:
        """Let the next `count` reads give one wrong bit each; the medium has the right one."""
        self._flips += count

    def as_read(self, data: bytes) -> bytes:
        """What a read gives of what is there."""
        if self._flips == 0 or not data:
            return data
        self._flips -= 1
        wrong = bytearray(data)
        wrong[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return bytes(wrong)

    # -- power

    def cut_power_after(self, changes: int, crash: Callable[[], None]) -> None:
        """Let the disk take `changes` more changes, and call `crash` instead of the next one.

        So a crash can fall between two writes of one job, which a simulated loop runs in one go.
        `crash` must crash this disk; the code that wanted the change gets an OSError.
        """
        assert changes >= 0
        self._changes_left = changes
        self._power_cut = crash

    def keep_power(self) -> None:
        """Take back `cut_power_after`."""
        self._power_cut = None

    def change(self, path: str) -> None:
        """Something is about to change the disk. Raises OSError when the power goes now."""
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
        """What was ordered before a crash is over; latency and room stay."""
        self._power_cut = None
        self._stall_s = self._owed_s = 0.0
        self._sync_failures = self._flips = 0
        self.boot += 1


def refuse_dead(path: str) -> None:
    """The rest of a callback whose host crashed in it reaches no disk."""
    host = current_host()
    if host is not None and not host.alive:
        raise OSError(errno.EIO, f"{host.name} has crashed", path)


def disk_full(path: str) -> DiskFull:
    return DiskFull(errno.ENOSPC, "no space left on device", path)


def sync_failed(path: str) -> SyncFailed:
    reason = "sync failed: what was written since the last good one may be lost"
    return SyncFailed(errno.EIO, reason, path)
