"""Faults of a queue's adapter, and missing events, as the agent finds them.

Owns `QueueFindings`, which counts and logs them. `reading` reacts to them. Invariant: each finding
is counted and logged once, but a flood of faults becomes a few lines and a count.
"""

from __future__ import annotations

import logging

from millstream.runtime.extending import Clock, LineBudget, show_text
from millstream.streams.contracts.token import Token

from .cache.cursor import Cursor
from .queue_epoch import QueueEpoch
from .reading.steps import GapFound

__all__ = ["QueueFindings"]

log = logging.getLogger("millstream.agent")


class QueueFindings:
    """The findings of one agent."""

    def __init__(self, epoch: QueueEpoch, clock: Clock) -> None:
        self._where, self._extra = epoch.where, epoch.extra
        self._clock = clock
        self._lines = LineBudget()
        self.fault_count = 0  # faults of the adapter
        self.last_fault = ""
        self.gap_count = 0

    def at_fault(self, text: str) -> None:
        """Count a fault: the adapter broke its contract, or raised an error."""
        self.fault_count += 1
        self.last_fault = text
        left_out = self._lines.take(self._clock.now())
        if left_out is not None:
            log.warning("%s%s", text, left_out, extra=self._extra)

    def on_lost(self, gap: GapFound) -> None:
        """Count a gap that the receiver found in the queue."""
        self.gap_count += 1
        log.error(
            "%s: events after %s are lost; reading continues at %s",
            self._where,
            "the beginning" if gap.after is None else gap.after,
            "the oldest stored event" if gap.first is None else gap.first,
            extra=self._extra,
        )

    def on_gone(self, behind: Cursor, wanted: Token, first: Token) -> None:
        """Count a gap of a lagging subscription: the provider no longer has the events that it
        needs."""
        self.gap_count += 1
        text = (
            "%s: events of %s from %s to before %s are lost; subscription %s continues after them"
        )
        names = show_text(str(behind.key[0])), wanted, first, show_text(behind.key[1])
        log.error(text, self._where, *names, extra=self._extra)

    def begins_ahead(self, behind: Cursor, start: Token, last: Token | None) -> None:
        """Log that a subscription should begin at a token that the queue has not reached."""
        text = (
            "%s: subscription %s should begin at %s, but the queue ends at %s; the subscription "
            "begins with the next event"
        )
        log.warning(text, self._where, show_text(behind.key[1]), start, last, extra=self._extra)
