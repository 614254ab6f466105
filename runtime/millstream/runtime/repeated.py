"""Limits for warnings that other processes can cause as often as they like.

This module owns `LineBudget`, and `Repeated` for many subjects. It does not decide which events
deserve a warning. A budget lets at most `lines_max` lines through in `window_s` seconds, and the
next line says how many were left out. At most `SUBJECTS_MAX` subjects have a budget of their own;
all others share one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["SUBJECTS_MAX", "LineBudget", "Repeated"]

SUBJECTS_MAX = 64
"""Subjects of a repeated warning that have a budget of their own. All others share one budget."""
OTHERS = ""
LINES_MAX = 10
WINDOW_S = 60.0


class LineBudget:
    """A limit on log lines of one kind that a flood of events may cause.

    A window begins with the first line and lasts `window_s`. Within it, at most `lines_max` lines
    are written. The first line of the next window says how many were left out.

    ```python
    budget = LineBudget(lines_max=10, window_s=60)
    left_out = budget.take(clock.now())
    if left_out is not None:
        log.warning("a request was refused%s", left_out)
    ```

    Args:
        lines_max: Lines in one window.
        window_s: Length of a window, in seconds.

    Attributes:
        ends_s: The end of the current window, by the caller's clock.
    """

    __slots__ = ("_left_out", "_lines", "_lines_max", "_window_s", "ends_s")

    def __init__(self, lines_max: int = LINES_MAX, window_s: float = WINDOW_S) -> None:
        self._lines_max = lines_max
        self._window_s = window_s
        self._lines = 0
        self._left_out = 0
        self.ends_s = 0.0

    def take(self, now_s: float) -> str | None:
        """Ask to write one line.

        Args:
            now_s: The time by a monotonic clock, in seconds.

        Returns:
            The text to append to the line, which is empty if no line was left out before it. None
                if the line must not be written.
        """
        if now_s >= self.ends_s:
            self.ends_s, self._lines = now_s + self._window_s, 0
        if self._lines >= self._lines_max:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return f" (similar lines left out: {left_out})" if left_out else ""


class Repeated:
    """A warning that a flood may cause, at most once per `every_s` for each subject.

    Each line has the count of lines that were left out. `now` is the clock, in seconds.
    """

    __slots__ = ("_budgets", "_every_s", "_log", "_now")

    def __init__(self, log: logging.Logger, now: Callable[[], float], every_s: float) -> None:
        self._log = log
        self._now = now
        self._every_s = every_s
        self._budgets: dict[str, LineBudget] = {}

    def note(self, text: str, about: str = OTHERS) -> None:
        """Log the warning, unless its subject had one less than `every_s` ago.

        `about` is the subject, such as a peer. Each subject has lines of its own.
        """
        now_s = self._now()
        left_out = self._budget_of(about, now_s).take(now_s)
        if left_out is not None:
            self._log.warning("%s%s", text, left_out)

    def _budget_of(self, about: str, now_s: float) -> LineBudget:
        """Return the budget of a subject, or the shared one if too many subjects have one."""
        if about not in self._budgets and len(self._budgets) >= SUBJECTS_MAX:
            self._budgets = {one: it for one, it in self._budgets.items() if it.ends_s > now_s}
            if len(self._budgets) >= SUBJECTS_MAX:
                about = OTHERS
        return self._budgets.setdefault(about, LineBudget(1, self._every_s))
