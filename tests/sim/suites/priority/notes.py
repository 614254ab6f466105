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
from millstream.runtime.testing import Script, Simulation, current_host

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
        self.pauses: list[tuple[str, float, float]] = []  # hosts, with begin and end

    @property
    def now_s(self) -> float:
        """The time of the loop."""
        return self.simulation.loop.time()

    def note_pauses(self, script: Script) -> None:
        """Note when the script, which begins now, pauses hosts."""
        begun_s: dict[str, float] = {}
        for step in script:
            at_s = self.now_s + step.at_s
            if step.verb == "pause":
                begun_s[step.words[0]] = at_s
            elif step.verb == "resume" and step.words[0] in begun_s:
                self.pauses.append((step.words[0], begun_s.pop(step.words[0]), at_s))

    def measure_pauses(self, host: str, start_s: float) -> float:
        """Return the seconds since `start_s` in which a host was paused."""
        spans = [(begin_s, end_s) for name, begin_s, end_s in self.pauses if name == host]
        return sum(
            max(0.0, min(end_s, self.now_s) - max(begin_s, start_s)) for begin_s, end_s in spans
        )

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
        """Await a call; return None if it failed in a way that the faults excuse.

        The time in which the caller's host was paused does not count, nor does the time that the
        caller itself worked during the call (`own_s`, which includes pauses).
        """
        start_s = self.now_s
        self.figures["calls"] += 1
        try:
            return await call
        except MillstreamError as error:
            self.figures[type(error).__name__] += 1
            return None
        finally:
            host = current_host()
            paused_s = 0.0 if host is None or own_s() else self.measure_pauses(host.name, start_s)
            took_s = self.now_s - start_s - own_s() - paused_s
            if took_s > limit_s + LATE_S:
                self.on_violated(f"{what} took {took_s:.3f} s, its limit is {limit_s:g}")
