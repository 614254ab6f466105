"""Warnings that others can cause as often as they like, as few lines of the log.

Owns: `Repeated`. Not: what is worth a warning. Invariant: however many subjects there are, at most
`SUBJECTS_MAX` + 1 lines are written in `every_s`, and as many subjects are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["SUBJECTS_MAX", "Repeated"]

SUBJECTS_MAX = 64
"""Subjects of a repeated warning that are told apart at once; the others share one."""
OTHERS = ""


class Repeated:
    """A warning that a flood may cause: a line every `every_s` at most for each subject, with the
    count of those since the last one.

    Args:
        now: the clock, in seconds.
    """

    __slots__ = ("_count", "_every_s", "_log", "_next_at", "_now")

    def __init__(self, log: logging.Logger, now: Callable[[], float], every_s: float) -> None:
        self._log = log
        self._now = now
        self._every_s = every_s
        self._next_at: dict[str, float] = {}
        self._count: dict[str, int] = {}

    def note(self, text: str, about: str = OTHERS) -> None:
        """It happened again.

        Args:
            about: the subject, such as a peer; each has lines of its own.
        """
        now = self._now()
        if about not in self._next_at:
            about = self._admit(about, now)
        count = self._count.get(about, 0) + 1
        if now < self._next_at.get(about, now):
            self._count[about] = count
            return
        self._next_at[about] = now + self._every_s
        self._count.pop(about, None)
        if count > 1:
            text = f"{text} ({count} since the last such line)"
        self._log.warning("%s", text)

    def _admit(self, about: str, now: float) -> str:
        """The subject, if there is room for it once those are forgotten that may speak again."""
        if len(self._next_at) >= SUBJECTS_MAX:
            self._next_at = {one: at for one, at in self._next_at.items() if at > now}
            self._count = {one: n for one, n in self._count.items() if one in self._next_at}
        return about if len(self._next_at) < SUBJECTS_MAX else OTHERS
