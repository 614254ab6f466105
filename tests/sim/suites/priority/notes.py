"""The notes of the suite's programs: accepted messages, leases and observed versions, with times.

Owns: `PriorityRun`, `Seen`, `Given`, `Batch`. Not: judgement (`judge`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.sim.suites.run.record import Run

from millstream.providers.priority import LeaseToken
from millstream.providers.priority.core.commands import Enqueue
from millstream.providers.priority.core.requests.sessions import Request
from millstream.runtime import MillstreamError
from millstream.runtime.testing import Simulation

__all__ = ["Given", "PriorityRun", "Seen"]

T = TypeVar("T")
LATE_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A program saw a message in this version, by a call from `start_s` to `end_s`. `step`: the
    change that the call itself made; empty if it made none."""

    queue: str
    id: str
    version: int
    start_s: float
    end_s: float
    step: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """A program received a lease."""

    queue: str
    id: str
    token: LeaseToken
    worker: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that were sent under a request id; any program may repeat the request. The answer
    shows the state when the messages were accepted, at `start_s` or later."""

    queue: str
    request: Request
    messages: tuple[Enqueue, ...]
    start_s: float


class PriorityRun(Run):
    """The notes of this suite."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.seen: list[Seen] = []
        self.given: list[Given] = []
        self.ids: list[tuple[str, str]] = []
        self.canceled: list[tuple[str, str]] = []
        self.batches: list[Batch] = []

    @property
    def now_s(self) -> float:
        """The time of the loop."""
        return self.simulation.loop.time()

    def saw(self, queue: str, id: str, version: int, start_s: float, step: str = "") -> None:
        """Note the version that a call showed; the call has just ended."""
        self.seen.append(Seen(queue, id, version, start_s, self.now_s, step))

    async def call(
        self,
        what: str,
        call: Coroutine[Any, Any, T],
        limit_s: float,
        own_s: Callable[[], float] = lambda: 0.0,
    ) -> T | None:
        """Await a call; return None if it failed in a way that the faults excuse. `own_s`: the time
        that the caller itself worked during the call, which may be paused with its silo."""
        start_s = self.now_s
        self.figures["calls"] += 1
        try:
            return await call
        except MillstreamError as error:
            self.figures[type(error).__name__] += 1
            return None
        finally:
            took_s = self.now_s - start_s - own_s()
            if took_s > limit_s + LATE_S:
                self.on_violated(f"{what} took {took_s:.3f} s, its limit is {limit_s:g}")
