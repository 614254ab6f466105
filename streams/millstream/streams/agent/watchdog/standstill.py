"""Work of a queue that does not go on: for how long, and when to say so.

Owns: `PieceOfWork`, with the place that it has reached; `Standstills`, which notices that a place
has not changed. Not: why it has not (whoever gives the work says that), nor the log (`watch`).
Pure. Invariants: work is told of after `limit_s` at one place, then each time the wait has doubled,
after `AGAIN_S` at the latest; what was told of is told of once more when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import msgspec

__all__ = ["AGAIN_S", "PieceOfWork", "Standstill", "Standstills"]

AGAIN_S = 3600.0
"""A standstill is told of again after this long at the latest."""

Subject = tuple[str, str]


class PieceOfWork(msgspec.Struct, frozen=True):
    """One piece of work.

    `stream`: empty: the whole queue. `subscription`: empty: all of the stream. `place`: what
    changes when it goes on. `reason`: what it waits for, from its state now; empty: nothing is
    known that it could wait for, which is a fault of ours. `dump`: its state, for that case.
    """

    stream: str
    subscription: str
    place: Hashable
    reason: Callable[[], str]
    dump: Callable[[], str]


class Standstill(msgspec.Struct, frozen=True):
    """One thing to tell: `work` is at one place for `still_s`; None: it goes on after that."""

    stream: str
    subscription: str
    still_s: float
    work: PieceOfWork | None = None


class Place(msgspec.Struct):
    """The place of a piece of work, since when it is there, and when that is to be told."""

    at: Hashable
    since_s: float
    due_s: float
    has_told: bool = False


class Standstills:
    """The work of one queue, as it was seen at each look."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._places: dict[Subject, Place] = {}

    def still_s(self, stream: str, subscription: str, now_s: float) -> float:
        """For how long it is at one place, as far as was seen; 0: it has no work."""
        place = self._places.get((stream, subscription))
        return 0.0 if place is None else now_s - place.since_s

    def look(self, work: Iterable[PieceOfWork], now_s: float) -> list[Standstill]:
        """All the work that there is now; returns what is to be told."""
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
