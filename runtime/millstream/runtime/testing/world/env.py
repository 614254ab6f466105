"""The random numbers and wall clocks of a simulation.

This module owns `SimEnv` and `make_random`, the only source of chance in the simulator. Equal seeds
give equal sequences in every process and on every Python. Each user of chance has a generator of
its own, so its draws do not change the numbers of another user.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from contextvars import Context
from random import Random

from millstream.runtime.env import Env
from millstream.runtime.machine import Usage

from .host import Host

__all__ = ["WALL_START_S", "Random", "SimEnv", "make_random"]

WALL_START_S = 1_700_000_000.0


def make_random(*name: object) -> Random:
    """Make a generator that depends only on the text of its name.

    Use it for chance in a test: `make_random(seed, "orders")`. The result does not depend on
    PYTHONHASHSEED.

    Args:
        name: The parts of the name, such as the seed and the user of the generator.
    """
    return Random("/".join(str(part) for part in name))


class SimEnv(Env):
    """The `Env` of a simulated host, as `Simulation.env` gives it.

    Its wall clock is the virtual clock plus a skew. Its random numbers and ids come from a seed.
    Its contexts belong to the host, so their tasks end with it.

    Args:
        seed: The seed.
        loop: The simulated loop.
        host: The host.
        skew_s: The difference of the wall clock from the true time, in seconds.
    """

    __slots__ = ("_cpu", "_cpu_from_s", "_cpu_s", "_host", "_loop", "_memory", "_skew_s")

    def __init__(self, seed: int, loop: AbstractEventLoop, host: Host, skew_s: float = 0.0) -> None:
        super().__init__(seed)
        self._host = host
        self._loop = loop
        self._skew_s = skew_s
        self._cpu, self._cpu_s, self._cpu_from_s = 0.0, 0.0, loop.time()
        self._memory: tuple[int, int, int] | None = None

    def wall_s(self) -> float:
        """Return the wall time of the host, in seconds since 1970."""
        return WALL_START_S + self._loop.time() + self._skew_s

    def step_clock(self, by_s: float) -> None:
        """Set the wall clock of the host. Clocks for waiting are not changed.

        Args:
            by_s: By how much, in seconds; negative: back.
        """
        self._skew_s += by_s

    def simulate_usage(self, cpu: float, memory: tuple[int, int, int] | None = None) -> None:
        """Set the resources that the host uses from now on. At first it uses no processor time, and
        its memory is not known.

        Args:
            cpu: The used share of one core.
            memory: The used, available and total memory in bytes. None: not known.
        """
        self._cpu_s, self._cpu_from_s = self._count_cpu_s(), self._loop.time()
        self._cpu, self._memory = cpu, memory

    def _count_cpu_s(self) -> float:
        return self._cpu_s + self._cpu * (self._loop.time() - self._cpu_from_s)

    def measure(self) -> Usage:
        """Return the simulated resources of the host."""
        used, available, total = self._memory or (None, None, None)
        return Usage(
            cpu_s=self._count_cpu_s(),
            memory_used=used,
            memory_available=available,
            memory_total=total,
        )

    def random_bytes(self, count: int) -> bytes:
        """Return random bytes from the seed."""
        return self._rng.randbytes(count)

    def new_context(self) -> Context:
        """Return an empty context on the host."""
        return self._host.context()
