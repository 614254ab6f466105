"""The result of the job, as text and as JSON.

This module owns `Report`. `is_equal` is true only if every figure is correct.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .check import (
    ARRIVALS_MIN,
    LEGS_MIN,
    Figures,
    Ranking,
    compare,
    missing_and_duplicated,
    worst,
)

__all__ = ["Report", "Troubles", "judge"]

DIFFERENCES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Troubles:
    """The kills, and their effect on the cluster.

    `back_max_s`: longest time from a kill to the silo's return, 0 without returns. `still_max_s`:
    longest time in which no event moved. `ensemble_changes`: how often the writer of a ledger
    continued with other bookies.
    """

    kills: int
    back_max_s: float
    still_max_s: float
    ensemble_changes: int

    def as_json(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "kills": self.kills,
            "back_max_s": round(self.back_max_s, 3),
            "still_max_s": round(self.still_max_s, 3),
            "ensemble_changes": self.ensemble_changes,
        }

    def line(self) -> str:
        """Return a line for people."""
        text = f"{self.kills} silos killed" if self.kills != 1 else "1 silo killed"
        if self.back_max_s:
            text += f" and started again, which took at most {self.back_max_s:.1f} s"
        text += f"; longest time without progress {self.still_max_s:.1f} s"
        if self.ensemble_changes:
            text += f"; {self.ensemble_changes} ensemble changes"
        return text


@dataclass(frozen=True, slots=True)
class Report:
    """The result. `seconds`: from the first publish to the last delivery."""

    published: int
    delivered: int
    missing: int
    duplicated: int
    seconds: float
    airports: int
    planes: int
    worst_airports: Ranking
    worst_planes: Ranking
    differences: list[str]
    troubles: Troubles | None = None

    @property
    def is_equal(self) -> bool:
        """Is every figure correct?"""
        return not self.differences and not self.missing and not self.duplicated

    @property
    def events_per_s(self) -> float:
        """Delivered events per second."""
        return self.delivered / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, object]:
        """Return plain values."""
        return {
            "equal": self.is_equal,
            "published": self.published,
            "delivered": self.delivered,
            "missing": self.missing,
            "duplicated": self.duplicated,
            "seconds": round(self.seconds, 3),
            "events_per_s": round(self.events_per_s),
            "airports": self.airports,
            "planes": self.planes,
            "worst_airports": self.worst_airports,
            "worst_planes": self.worst_planes,
            "differences": self.differences,
            **({} if self.troubles is None else self.troubles.as_json()),
        }

    def lines(self) -> Iterator[str]:
        """Yield lines for people; the verdict is the last line."""
        airports = f"airports by mean arrival delay ({ARRIVALS_MIN} arrivals or more)"
        planes = f"planes by mean arrival delay ({LEGS_MIN} legs or more)"
        for title, ranking in ((airports, self.worst_airports), (planes, self.worst_planes)):
            yield f"\nworst {title}" + ("" if ranking else ": none")
            yield from (f"  {key:<8} {mean:7.1f} min" for key, mean in ranking)
        yield ""
        yield from (f"DIFFERENT: {text}" for text in self.differences[:DIFFERENCES_SHOWN])
        if len(self.differences) > DIFFERENCES_SHOWN:
            yield f"... and {len(self.differences) - DIFFERENCES_SHOWN:,} more differences"
        if self.troubles is not None:
            yield self.troubles.line()
        yield self._verdict()

    def _verdict(self) -> str:
        verdict = "all figures are equal" if self.is_equal else "FIGURES DIFFER"
        return (
            f"{self.published:,} events published, {self.delivered:,} delivered, "
            f"{self.missing:,} missing, {self.duplicated:,} duplicated, {self.seconds:.1f} s, "
            f"{self.events_per_s:,.0f} events/s: {verdict} ({self.airports} airports, "
            f"{self.planes:,} planes)"
        )


def judge(
    expected: Figures,
    found: Figures,
    published: int,
    seconds: float,
    other: list[str],
    troubles: Troubles | None = None,
) -> Report:
    """Compare every figure; `other` has differences found elsewhere."""
    missing, duplicated = missing_and_duplicated(expected, found)
    differences = [*other, *compare(expected, found)]
    if published != expected.events:
        differences.insert(
            0, f"{published:,} events published, but the file has {expected.events:,}"
        )
    airports, planes = worst(found)
    return Report(
        published,
        found.events,
        missing,
        duplicated,
        seconds,
        len(found.airports),
        len(found.planes),
        airports,
        planes,
        differences,
        troubles,
    )
