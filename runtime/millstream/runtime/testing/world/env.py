"""Chance and the wall clocks of a simulation.

Owns: `SimEnv` and `make_random`, the only source of chance in the simulator. Invariants: equal
seeds give equal sequences in every process and on every Python; each user of chance has a generator
of its own, so that what one draws does not shift what another gets.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from contextvars import Context
from random import Random

from millstream.runtime.env import Env

from .host import Host

__all__ = ["WALL_START_S", "Random", "SimEnv", "make_random"]

WALL_START_S = 1_700_000_000.0


def make_random(*name: object) -> Random:
    """A generator that depends on the text of `name` only; text seeds ignore PYTHONHASHSEED."""
    return Random("/".join(str(part) for part in name))


class SimEnv(Env):
    """What one host has of its own: the loop's virtual clock plus a skew, seeded chance and ids,
    and contexts that end with it."""

    __slots__ = ("_host", "_loop", "_skew_s")

    def __init__(self, seed: int, loop: AbstractEventLoop, host: Host, skew_s: float = 0.0) -> None:
        super().__init__(seed)
        self._host = host
        self._loop = loop
        self._skew_s = skew_s

    def wall_s(self) -> float:
        return WALL_START_S + self._loop.time() + self._skew_s

    def random_bytes(self, count: int) -> bytes:
        return self._rng.randbytes(count)

    def new_context(self) -> Context:
        return self._host.context()
