"""What one simulated run notes beside its history, and how its grains reach it.

Owns: `Run` and `current_run`. Invariants: one run at a time in a process, as one loop runs at a
time; what a grain finds wrong is kept as text and fails the run at its end.
"""

from __future__ import annotations

import logging
from collections import Counter
from types import TracebackType

from millstream.runtime.testing import QueueAcquired, Simulation

__all__ = ["Run", "StandingStill", "Violated", "current_run"]

VIOLATIONS_SHOWN = 10
VIOLATIONS_KEPT_MAX = 1_000
AGENT_LOG = "millstream.agent"


class Violated(AssertionError):
    """A promise was broken in this run; the message lists how."""


class Run:
    """Notes of one run."""

    def __init__(self, simulation: Simulation) -> None:
        global _current
        self.simulation = simulation
        self.history = simulation.history
        self.figures: Counter[str] = Counter()
        self.violations: list[str] = []
        self.is_over = False  # what comes from here on is judged, and nothing goes wrong any more
        self.epochs: dict[str, int] = {}  # by queue, of whoever took it last
        _current = self

    def on_violated(self, text: str) -> None:
        """Note a broken promise."""
        if len(self.violations) < VIOLATIONS_KEPT_MAX:
            self.violations.append(f"t={self.simulation.loop.time():.6f}: {text}")

    def on_acquired(self, queue: str, silo: str, epoch: int) -> None:
        """Note that a silo reads a queue from here on."""
        self.epochs[queue] = max(epoch, self.epochs.get(queue, 0))
        self.history.record(QueueAcquired(queue, silo, epoch))

    def judge(self, *found: list[str]) -> None:
        """Fail if anything was violated: raises Violated."""
        violations = [*self.violations, *(text for texts in found for text in texts)]
        if violations:
            shown = "\n  ".join(violations[:VIOLATIONS_SHOWN])
            raise Violated(f"{len(violations)} violations:\n  {shown}")


_current: Run | None = None


def current_run() -> Run:
    """The run that is being simulated."""
    assert _current is not None, "no simulated run has begun"
    return _current


class StandingStill(logging.Handler):
    """Judges the log lines of agents about a standstill; listens while it is entered.

    A line that names no reason is a violation, whenever it comes; any line is one that comes when
    all has been calm for long enough.

    Args:
        limit_s: how long after `calm` a line is taken for a thing of the past.
    """

    def __init__(self, run: Run, limit_s: float) -> None:
        super().__init__(logging.WARNING)
        self._run = run
        self._limit_s = limit_s
        self._calm_s: float | None = None
        self._log = logging.getLogger(AGENT_LOG)
        self._before = (self._log.level, self._log.propagate)

    def __enter__(self) -> StandingStill:
        self._log.addHandler(self)
        self._log.setLevel(logging.WARNING)
        self._log.propagate = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._log.removeHandler(self)
        level, self._log.propagate = self._before
        self._log.setLevel(level)

    def calm(self) -> None:
        """Nothing goes wrong from here on."""
        self._calm_s = self._run.simulation.loop.time()

    def emit(self, record: logging.LogRecord) -> None:
        """Judge a line of an agent."""
        text = record.getMessage()
        if "has not moved" not in text:
            return
        self._run.figures["stood still"] += 1
        calm_s, now_s = self._calm_s, self._run.simulation.loop.time()
        is_late = calm_s is not None and now_s > calm_s + self._limit_s
        if is_late or record.levelno > logging.WARNING:
            self._run.on_violated(text)
