"""Wall time, chance and ids of one process, and the empty contexts of new tasks.

This is the only module that reads the wall clock and makes random numbers: nothing else in
Millstream imports `time`, `random`, `uuid` or `os.urandom`. So a simulation controls both by
passing another `Env`. Wall time is for stamps that are stored. Code that waits uses the clock of
the event loop.
"""

from __future__ import annotations

import os
import random
import time
from contextvars import Context
from mmap import PAGESIZE

from .machine import Usage, find_usage


def processors() -> int:
    """Return the number of processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


READ_BYTES_MAX = 16_384
"""The longest part of a file of the operating system that is read."""


def read_text(path: str) -> str:
    """Return the beginning of a file, or an empty text if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(READ_BYTES_MAX).decode("ascii", "replace")
    except OSError:
        return ""


class Env:
    """The wall clock, random numbers and ids of one silo or client.

    Pass an `Env` to `Silo`, `LocalCluster` or `Client` to control them. A simulation passes its
    own.

    Args:
        seed: Seed of the random numbers. None: a seed from the operating system. The seed does not
            affect `random_bytes`.
    """

    __slots__ = ("_rng",)

    def __init__(self, seed: int | None = None) -> None:
        self._rng = random.Random(int.from_bytes(os.urandom(16), "big") if seed is None else seed)

    def wall_s(self) -> float:
        """Return the wall time, in seconds since 1970, for stamps that are stored."""
        return time.time()

    def uniform(self, low: float, high: float) -> float:
        """Return a random number in [low, high).

        Args:
            low: The least number.
            high: The bound above it.
        """
        return self._rng.uniform(low, high)

    def choice(self, count: int) -> int:
        """Return a random index.

        Args:
            count: The index is from 0 to `count - 1`.
        """
        return self._rng.randrange(count)

    def measure(self) -> Usage:
        """Return the processor time and memory of this process, for placement by load.

        Takes less than a millisecond. Memory is known on Linux only.
        """
        return find_usage(read_text, time.process_time(), PAGESIZE)

    def new_context(self) -> Context:
        """Return an empty context, for a task or timer that belongs to no caller."""
        return Context()

    def random_bytes(self, count: int) -> bytes:
        """Return random bytes of the operating system, for secrets and nonces.

        Args:
            count: How many bytes.
        """
        return os.urandom(count)

    def new_id(self) -> int:
        """Return a random id of 63 bits."""
        return self._rng.getrandbits(63)
