"""What programs of the suite saw: what was accepted, who was given what, and when.

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
    """Somebody saw a message in this version, by a call from `start_s` to `end_s`. `step`: what
    the call did itself; empty: nothing."""

    queue: str
    id: str
    version: int
    start_s: float
    end_s: float
    step: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """A program was given a lease."""

    queue: str
    id: str
    token: LeaseToken
    worker: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that were sent under a request id, which any program may repeat; the answer is as
    of the time when they were taken, at `start_s` or later."""

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
        """The loop's time."""
        return self.simulation.loop.time()

    def saw(self, queue: str, id: str, version: int, start_s: float, step: str = "") -> None:
        """Note a message as a call showed it, which has just ended."""
        self.seen.append(Seen(queue, id, version, start_s, self.now_s, step))

    async def call(
        self,
        what: str,
        call: Coroutine[Any, Any, T],
        limit_s: float,
        own_s: Callable[[], float] = lambda: 0.0,
    ) -> T | None:
        """Await a call; None if it failed in a way that troubles excuse. `own_s`: how long the
        caller itself worked meanwhile, which may stand still with its silo."""
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
