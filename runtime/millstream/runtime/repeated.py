"""Warnings that others can cause as often as they like, as few lines of the log.

Owns: `LineBudget`, and `Repeated` over many subjects. Not: what is worth a warning. Invariants: a
budget lets at most `lines_max` lines through in `window_s`, and the next line says how many were
left out; however many subjects there are, `SUBJECTS_MAX` + 1 are told apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["SUBJECTS_MAX", "LineBudget", "Repeated"]

SUBJECTS_MAX = 64
"""Subjects of a repeated warning that are told apart at once; the others share one."""
OTHERS = ""
LINES_MAX = 10
WINDOW_S = 60.0


class LineBudget:
    """Lets so many lines of one kind through: `lines_max` from the first one on, for `window_s`."""

    __slots__ = ("_left_out", "_lines", "_lines_max", "_window_s", "ends_s")

    def __init__(self, lines_max: int = LINES_MAX, window_s: float = WINDOW_S) -> None:
        self._lines_max = lines_max
        self._window_s = window_s
        self._lines = 0
        self._left_out = 0
        self.ends_s = 0.0  # when as many lines may be written again

    def take(self, now_s: float) -> str | None:
        """What to append to the line that may be written now; None: write none."""
        if now_s >= self.ends_s:
            self.ends_s, self._lines = now_s + self._window_s, 0
        if self._lines >= self._lines_max:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return f" (left out: {left_out} like this)" if left_out else ""


class Repeated:
    """A warning that a flood may cause: a line every `every_s` at most for each subject, with the
    count of those that were left out.

    Args:
        now: the clock, in seconds.
    """

    __slots__ = ("_budgets", "_every_s", "_log", "_now")

    def __init__(self, log: logging.Logger, now: Callable[[], float], every_s: float) -> None:
        self._log = log
        self._now = now
        self._every_s = every_s
        self._budgets: dict[str, LineBudget] = {}

    def note(self, text: str, about: str = OTHERS) -> None:
        """It happened again.

        Args:
            about: the subject, such as a peer; each has lines of its own.
        """
        now_s = self._now()
        left_out = self._budget_of(about, now_s).take(now_s)
        if left_out is not None:
            self._log.warning("%s%s", text, left_out)

    def _budget_of(self, about: str, now_s: float) -> LineBudget:
        """That of the subject, if there is room for it beside those that may not speak now."""
        if about not in self._budgets and len(self._budgets) >= SUBJECTS_MAX:
            self._budgets = {one: it for one, it in self._budgets.items() if it.ends_s > now_s}
            if len(self._budgets) >= SUBJECTS_MAX:
                about = OTHERS
        return self._budgets.setdefault(about, LineBudget(1, self._every_s))
