"""The notes of one simulated run beside its history, and the access of its grains to them.

Owns: `Run` and `current_run`. Invariants: a process has one run at a time, because one loop runs at
a time. A violation that a grain finds is kept as text, and fails the run at its end.
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
    """A promise was broken in this run; the message lists the violations."""


class Run:
    """Notes of one run."""

    def __init__(self, simulation: Simulation) -> None:
        global _current
        self.simulation = simulation
        self.history = simulation.history
        self.figures: Counter[str] = Counter()
        self.violations: list[str] = []
        self.is_over = False  # afterwards there are no faults, and events are judged
        self.epochs: dict[str, int] = {}  # by queue: the epoch of the newest owner
        _current = self

    def on_violated(self, text: str) -> None:
        """Note a broken promise."""
        if len(self.violations) < VIOLATIONS_KEPT_MAX:
            self.violations.append(f"t={self.simulation.loop.time():.6f}: {text}")

    def on_acquired(self, queue: str, silo: str, epoch: int) -> None:
        """Note that a silo is the owner of a queue from here on."""
        self.epochs[queue] = max(epoch, self.epochs.get(queue, 0))
        self.history.record(QueueAcquired(queue, silo, epoch))

    def judge(self, *found: list[str]) -> None:
        """Raise Violated if there was a violation."""
        violations = [*self.violations, *(text for texts in found for text in texts)]
        if violations:
            shown = "\n  ".join(violations[:VIOLATIONS_SHOWN])
            raise Violated(f"{len(violations)} violations:\n  {shown}")


_current: Run | None = None


def current_run() -> Run:
    """Return the run that is being simulated."""
    assert _current is not None, "no simulated run has begun"
    return _current


class StandingStill(logging.Handler):
    """Judges log lines of agents about a standstill while this handler is entered.

    A line without a reason is a violation at any time. Any such line is a violation if it comes
    long after the last fault.

    Args:
        limit_s: the time after `calm` in which a line may still be due to earlier faults.
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
        """Note that there are no more faults."""
        self._calm_s = self._run.simulation.loop.time()

    def emit(self, record: logging.LogRecord) -> None:
        """Judge a log line of an agent."""
        text = record.getMessage()
        if "has made no progress" not in text:
            return
        self._run.figures["stood still"] += 1
        calm_s, now_s = self._calm_s, self._run.simulation.loop.time()
        is_late = calm_s is not None and now_s > calm_s + self._limit_s
        if is_late or record.levelno > logging.WARNING:
            self._run.on_violated(text)
