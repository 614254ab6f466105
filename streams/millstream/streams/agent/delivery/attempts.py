"""Saying what fails again and again: each time a line, a flood of them a few lines and a count.

Owns: `LineBudget`, `AttemptLog`. Invariants: at most `LINES_MAX` lines are written in `WINDOW_S`;
the first line after that says how many were left out.
"""

from __future__ import annotations

import logging

from millstream.runtime.extending import shown
from millstream.streams.contracts.token import Token

from .steps import Failure
from .subscriber import Subscriber

__all__ = ["AttemptLog", "LineBudget"]

log = logging.getLogger("millstream.delivery")

LINES_MAX = 10
WINDOW_S = 60.0


class LineBudget:
    """Lets so many lines of one kind through."""

    __slots__ = ("_left_out", "_lines", "_window_ends_s")

    def __init__(self) -> None:
        self._window_ends_s = 0.0
        self._lines = 0
        self._left_out = 0

    def take(self, now_s: float) -> str | None:
        """What to append to the line that may be written now; None: write none."""
        if now_s >= self._window_ends_s:
            self._window_ends_s, self._lines = now_s + WINDOW_S, 0
        if self._lines >= LINES_MAX:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return f" ({left_out} lines like this were left out)" if left_out else ""


class AttemptLog:
    """The failed attempts of the deliveries of one queue."""

    def __init__(self, silo: str, queue: str) -> None:
        self._silo = silo
        self._queue = queue
        self._lines = LineBudget()

    def failed(
        self,
        subscriber: Subscriber,
        token: Token | None,
        attempts: int,
        failure: Failure,
        now_s: float,
    ) -> None:
        """A handler raised, took too long, or its grain could not start."""
        left_out = self._lines.take(now_s)
        if left_out is None:
            return
        log.warning(
            "%s/%s.%s failed at %s of %s, attempt %d of %d (%s): %s%s",
            subscriber.grain_type,
            shown(subscriber.grain_key),
            subscriber.handler,
            token,
            shown(str(subscriber.stream)),
            attempts,
            subscriber.options.retries + 1,
            failure.kind.value,
            failure.text.partition("\n")[0],
            left_out,
            extra={
                "silo": self._silo,
                "grain": subscriber.grain_type,
                "key": subscriber.grain_key,
                "queue": self._queue,
                "stream": str(subscriber.stream),
                "subscription": subscriber.id,
            },
        )
