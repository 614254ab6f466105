"""Work of a queue that makes no progress: for how long, and when to report it. Pure.

Owns `PieceOfWork`, which has a place, and `Standstills`, which notices an unchanged place. The
source of the work knows the reason, and `watch` logs it.

Invariants: work is reported after `limit_s` at one place. The report repeats each time the wait has
doubled, and at the latest after `AGAIN_S`. If reported work moves again, that is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import msgspec

__all__ = ["AGAIN_S", "PieceOfWork", "Standstill", "Standstills"]

AGAIN_S = 3600.0
"""A standstill is reported again after this many seconds at the latest."""

Subject = tuple[str, str]


class PieceOfWork(msgspec.Struct, frozen=True):
    """One piece of work.

    - `stream`: empty: the whole queue.
    - `subscription`: empty: all of the stream.
    - `place`: a value that changes when the work makes progress.
    - `reason`: the reason for waiting, from the present state; empty: no reason is known, which is
      a fault of Millstream.
    - `dump`: the state, for a report of such a fault.
    """

    stream: str
    subscription: str
    place: Hashable
    reason: Callable[[], str]
    dump: Callable[[], str]


class Standstill(msgspec.Struct, frozen=True):
    """A report that `work` has been at one place for `still_s` seconds.

    None means that the work moves again.
    """

    stream: str
    subscription: str
    still_s: float
    work: PieceOfWork | None = None


class Place(msgspec.Struct):
    """The place of a piece of work, since when it is there, and the time of the next report."""

    at: Hashable
    since_s: float
    due_s: float
    has_told: bool = False


class Standstills:
    """The places of the work of one queue, at each look."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._places: dict[Subject, Place] = {}

    def still_s(self, stream: str, subscription: str, now_s: float) -> float:
        """Return the seconds that the work has been at one place, or 0 if there is no work."""
        place = self._places.get((stream, subscription))
        return 0.0 if place is None else now_s - place.since_s

    def look(self, work: Iterable[PieceOfWork], now_s: float) -> list[Standstill]:
        """Record all present work; returns the reports."""
        told: list[Standstill] = []
        before, self._places = self._places, {}
        for one in work:
            subject = (one.stream, one.subscription)
            place = before.pop(subject, None)
            if place is None or place.at != one.place:
                if place is not None:
                    told += self._find_overdue(subject, place, now_s)
                place = Place(one.place, now_s, now_s + self._limit_s)
            elif now_s >= place.due_s:
                still_s = now_s - place.since_s
                place.has_told, place.due_s = True, now_s + min(still_s, AGAIN_S)
                told.append(Standstill(*subject, still_s, one))
            self._places[subject] = place
        for subject, place in before.items():
            told += self._find_overdue(subject, place, now_s)
        return told

    def _find_overdue(self, subject: Subject, place: Place, now_s: float) -> list[Standstill]:
        return [Standstill(*subject, now_s - place.since_s)] if place.has_told else []
