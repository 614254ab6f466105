"""What one simulated run notes beside its history, and how its grains reach it.

Owns: `Run` and `current_run`. Invariants: one run at a time in a process, as one loop runs at a
time; what a grain finds wrong is kept as text and fails the run at its end.
"""

from __future__ import annotations

from collections import Counter

from millstream.runtime.testing import QueueAcquired, Simulation

__all__ = ["Run", "Violated", "current_run"]

VIOLATIONS_SHOWN = 10
VIOLATIONS_KEPT_MAX = 1_000


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
