"""What agents say in the log of what stands still, as something that is judged.

Owns: `StandingStill`. Invariants: a line that names no reason is a violation, whenever it comes;
any line is one that comes when all has been calm for long enough; the logger is as before at the
end.
"""

from __future__ import annotations

import logging
from types import TracebackType

from .record import Run

__all__ = ["StandingStill"]

AGENT_LOG = "millstream.agent"


class StandingStill(logging.Handler):
    """Listens while it is entered.

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
