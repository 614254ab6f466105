"""The standing of bookies: which of them can be relied on. Pure: times come from the caller.

Owns: `BookieStanding`, `BookieStandings`. Invariants: a bookie is lost when, as this process saw
it, no silo has run it for `lost_bookie_after_s`. It is no longer lost as soon as a silo runs it.
For a bookie that was never seen, the time is counted from the first question about it. A bookie
with a damaged row is never lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

__all__ = ["BookieStanding", "BookieStandings"]


class BookieStanding(Enum):
    """Whether a bookie can be relied on."""

    HERE = "here"
    LEAVING = "leaving"  # it is here, and is being drained
    AWAY = "away"  # it may be back soon
    LOST = "lost"

    @property
    def is_needless(self) -> bool:
        """Whether the entries of the bookie must be on other bookies."""
        return self in {BookieStanding.LEAVING, BookieStanding.LOST}

    @property
    def answers(self) -> bool:
        """Whether a live silo runs the bookie."""
        return self in {BookieStanding.HERE, BookieStanding.LEAVING}


class BookieStandings:
    """The standings of bookies over time."""

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self._away_since_s: dict[str, float] = {}
        self._known: dict[str, BookieStanding] = {}
        self._now_s = 0.0

    def see(
        self,
        now_s: float,
        here: Collection[str],
        known: Collection[str],
        leaving: Collection[str],
        unreadable: Collection[str] = (),
    ) -> bool:
        """Record the bookies that run now, all with rows, those that are being drained, and those
        with damaged rows. Returns whether any standing has changed."""
        self._now_s = now_s
        named = {*self._known, *here, *known}
        for bookie in named:
            if bookie in here or bookie in unreadable:
                self._away_since_s.pop(bookie, None)
            else:
                self._away_since_s.setdefault(bookie, now_s)
        before = self._known
        self._known = {name: self._judge(name, here, leaving) for name in sorted(named)}
        return before != self._known

    def _judge(
        self, bookie: str, here: Collection[str], leaving: Collection[str]
    ) -> BookieStanding:
        if bookie in here:
            return BookieStanding.LEAVING if bookie in leaving else BookieStanding.HERE
        since_s = self._away_since_s.get(bookie, self._now_s)
        is_lost = self._now_s - since_s >= self._lost_after_s
        return BookieStanding.LOST if is_lost else BookieStanding.AWAY

    def of(self, bookie: str) -> BookieStanding:
        """Return the standing of a bookie, as of the last look."""
        if bookie not in self._known:  # it has no row, or none yet
            self._away_since_s.setdefault(bookie, self._now_s)
            self._known[bookie] = BookieStanding.AWAY
        return self._known[bookie]

    def all(self) -> Mapping[str, BookieStanding]:
        """Return all bookies that were ever seen."""
        return self._known
