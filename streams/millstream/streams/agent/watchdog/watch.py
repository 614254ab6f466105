"""Logs the standstills of a queue, with their reasons.

Owns `Watch`, which chooses the time of a look and writes the lines. `standstill` finds standstills,
and the source of the work knows the reason.

Invariants: a reason is computed when it is logged. A look that fails is logged, and the watch
continues. A flood of lines becomes a few lines and a count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from millstream.runtime.extending import Clock, LineBudget, show_text

from .standstill import PieceOfWork, Standstill, Standstills

__all__ = ["Watch", "keep_watch"]

log = logging.getLogger("millstream.agent")

LOOKS_PER_LIMIT = 4
LOOKED_AT_ONCE = 1_000
"""Pieces of work that are looked at before other tasks may run."""


class Watch:
    """Watches the work of one agent.

    Args:
        ask_backlog: asks the provider for the unread backlog, if it can tell; the answer is there
            at the next look.
        work: yields all present work; if a piece changes meanwhile, either state may appear.
        limit_s: seconds that a piece of work may stay at one place (`StreamOptions.standstill_s`).
        where: names provider and queue.
        extra: fields of each line of the log.
    """

    def __init__(
        self,
        ask_backlog: Callable[[], None],
        work: Callable[[], Iterable[PieceOfWork]],
        limit_s: float,
        clock: Clock,
        *,
        where: str,
        extra: Mapping[str, object],
    ) -> None:
        self._ask_backlog, self._work = ask_backlog, work
        self._clock = clock
        self._where = where
        self._extra = dict(extra)
        self._lines = LineBudget()
        self.standstills = Standstills(limit_s)

    async def look(self) -> None:
        """Look once, and log standstills. An unexpected error is logged."""
        try:
            await self._look()
        except Exception:
            log.exception("%s: the check for standstills failed", self._where, extra=self._extra)

    async def _look(self) -> None:
        self._ask_backlog()
        seen: list[PieceOfWork] = []
        for number, one in enumerate(self._work(), 1):
            seen.append(one)
            if number % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        for told in self.standstills.look(seen, self._clock.now()):
            self._tell(told)

    def _tell(self, told: Standstill) -> None:
        left_out = self._lines.take(self._clock.now())
        if left_out is None:
            return
        name = f"{self._where}: {subject_of(told)}"
        if told.work is None:
            text = "%s makes progress again, after a standstill of %.0f s%s"
            log.warning(text, name, told.still_s, left_out, extra=self._extra)
        elif reason := told.work.reason():
            text = "%s has made no progress for %.0f s: %s%s"
            log.warning(text, name, told.still_s, reason, left_out, extra=self._extra)
        else:
            text = (
                "%s has made no progress for %.0f s, and the reason is unknown. This is a fault "
                "of Millstream: please report it with this state: %s%s"
            )
            log.error(text, name, told.still_s, told.work.dump(), left_out, extra=self._extra)


async def keep_watch(watches: Callable[[], Iterable[Watch]], limit_s: float) -> None:
    """Look at all queues of a provider regularly, until the task is cancelled.

    `limit_s` is `StreamOptions.standstill_s`. One task serves all queues, so a queue without work
    costs no timer.
    """
    while True:
        await asyncio.sleep(limit_s / LOOKS_PER_LIMIT)
        for number, watch in enumerate(watches(), 1):
            await watch.look()
            if number % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)


def subject_of(told: Standstill) -> str:
    """Return the subject of a log line, in words."""
    if not told.stream:
        return "reading"
    if not told.subscription:
        return f"stream {show_text(told.stream)}"
    return f"subscription {show_text(told.subscription)} of {show_text(told.stream)}"
