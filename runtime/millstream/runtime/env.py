"""The only reader of wall time, chance and ids, and the maker of contexts for new tasks.

Invariants: waiting uses the event loop's clock, never this module; wall time is for stamps that
are stored; nothing else in Millstream imports `time`, `random`, `uuid` or `os.urandom`.
"""

from __future__ import annotations

import os
import random
import time
from contextvars import Context


class Env:
    """Wall time, chance and ids of one silo or client; the simulator passes its own."""

    __slots__ = ("_rng",)

    def __init__(self, seed: int | None = None) -> None:
        self._rng = random.Random(int.from_bytes(os.urandom(16), "big") if seed is None else seed)

    def wall_s(self) -> float:
        """Seconds since 1970, for stored stamps."""
        return time.time()

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return self._rng.uniform(low, high)

    def choice(self, count: int) -> int:
        """An index in 0..count-1."""
        return self._rng.randrange(count)

    def new_context(self) -> Context:
        """An empty context, for tasks and timers that belong to no caller."""
        return Context()

    def random_bytes(self, count: int) -> bytes:
        """Bytes that nobody can guess, for secrets and nonces."""
        return os.urandom(count)

    def new_id(self) -> int:
        """A random 63-bit id."""
        return self._rng.getrandbits(63)
