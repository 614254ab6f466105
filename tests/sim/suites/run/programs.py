"""The programs of users of a simulated cluster: one beside each silo, and some in a client.

Owns: starting the programs, and starting them again when their host restarts. Not: the work of a
program (the suites). Invariant: a program ends with its host or with the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from millstream.runtime import MillstreamError
from millstream.runtime.testing import Host, Random, SimCluster, Simulation

__all__ = ["Program", "Programs", "again_and_again"]

CLIENT_RETRY_S = 1.0


class Program(Protocol):
    """A program. `handle` returns a silo or a client, or None while there is none."""

    async def work(self, handle: Callable[[], Any], /) -> None: ...


class Running(Protocol):
    """A run and its end."""

    is_over: bool


async def again_and_again(
    run: Running,
    rng: Random,
    pause_s: float,
    handle: Callable[[], Any],
    act: Callable[[Any], Awaitable[None]],
) -> None:
    """Act on the result of `handle` until the run is over, with pauses of at most `pause_s`."""
    while not run.is_over:
        await asyncio.sleep(rng.uniform(0.0, pause_s))
        runtime = handle()
        if runtime is not None:
            await act(runtime)


class Programs:
    """The programs of a run. `make(host, name)` makes the program of a host; `client_names`: the
    names of the client's programs."""

    def __init__(
        self,
        simulation: Simulation,
        cluster: SimCluster,
        make: Callable[[Host, str], Program],
        client_names: tuple[str, ...],
    ) -> None:
        self._simulation = simulation
        self._cluster = cluster
        self._make = make
        self._client_names = client_names
        self.is_over = False

    def start(self) -> None:
        """Start all programs."""
        for name in self._cluster.names:
            self._start_beside(name)
        self._simulation.spawn(self._simulation.host("client"), self._be_client())

    def boot(self, name: str) -> None:
        """Boot a silo that crashed, and the program beside it."""
        self._cluster.boot(name)
        self._start_beside(name)

    def join(self) -> None:
        """Boot a silo on one more host, and a program beside it."""
        self._start_beside(self._cluster.add_silo())

    def _start_beside(self, name: str) -> None:
        host = self._simulation.host(name)
        program = self._make(host, name)
        self._simulation.spawn(host, program.work(lambda: self._cluster.silo(name)))

    async def _be_client(self) -> None:
        """Connect, again if no gateway answered, and run the client's programs."""
        host = self._simulation.host("client")
        while not self.is_over:
            try:
                async with self._cluster.client(host) as client:
                    programs = [self._make(host, name) for name in self._client_names]
                    await asyncio.gather(*(one.work(lambda: client) for one in programs))
            except MillstreamError:
                await asyncio.sleep(CLIENT_RETRY_S)
