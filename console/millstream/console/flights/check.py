"""Comparing what the grains counted with an independent count over the same file.

Owns: the expected figures (a plain loop; Spark's are in `publish_spark`), asking the grains, and
the comparison. Invariant: every airport and every plane is compared, in every figure.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import astuple, dataclass, field

from millstream.runtime import Client

from .data import read_flights
from .grains import Airport, AirportTally, Plane, PlaneTally

__all__ = ["Figures", "compare", "count_here", "figures_of_grains"]

ASKED_AT_ONCE = 64
Ranking = list[tuple[str, float]]


@dataclass
class Figures:
    """Tallies by airport code and by tail number."""

    airports: dict[str, AirportTally] = field(default_factory=dict)
    planes: dict[str, PlaneTally] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """Events that these figures are made of."""
        at_airports = sum(tally.departures + tally.arrivals for tally in self.airports.values())
        return at_airports + sum(tally.legs for tally in self.planes.values())


def count_here(rows_max: int | None) -> Figures:
    """The expected figures, by a plain loop over the file."""
    airports: dict[str, AirportTally] = defaultdict(AirportTally)
    planes: dict[str, PlaneTally] = defaultdict(PlaneTally)
    for row in read_flights(rows_max):
        flight = row.flight
        if row.departed:
            airports[flight.origin].departures += 1
            airports[flight.origin].dep_delay += flight.dep_delay or 0
        if row.arrived:
            airports[flight.dest].arrivals += 1
            airports[flight.dest].arr_delay += flight.arr_delay or 0
        if flight.tailnum is not None:
            planes[flight.tailnum].legs += 1
            planes[flight.tailnum].dep_delay += flight.dep_delay or 0
            planes[flight.tailnum].arr_delay += flight.arr_delay or 0
    return Figures(dict(airports), dict(planes))


async def figures_of_grains(client: Client, expected: Figures) -> Figures:
    """Ask every airport and plane that should have counted something."""
    limit = asyncio.Semaphore(ASKED_AT_ONCE)
    found = Figures()

    async def ask_airport(code: str) -> None:
        async with limit:
            found.airports[code] = await client.grain(Airport, code).totals()

    async def ask_plane(tail: str) -> None:
        async with limit:
            found.planes[tail] = await client.grain(Plane, tail).totals()

    await asyncio.gather(*map(ask_airport, expected.airports), *map(ask_plane, expected.planes))
    return found


def compare(expected: Figures, found: Figures) -> list[str]:
    """Every difference, as text."""
    differences = []
    for kind, wanted, got in (
        ("airport", expected.airports, found.airports),
        ("plane", expected.planes, found.planes),
    ):
        for key in sorted({*wanted, *got}):
            if wanted.get(key) != got.get(key):
                differences.append(f"{kind} {key}: expected {wanted.get(key)}, got {got.get(key)}")
    return differences


def missing_and_duplicated(expected: Figures, found: Figures) -> tuple[int, int]:
    """Events that were counted too seldom, and too often."""
    missing = duplicated = 0
    for wanted, got in _counts(expected, found):
        missing += max(0, wanted - got)
        duplicated += max(0, got - wanted)
    return missing, duplicated


def _counts(expected: Figures, found: Figures) -> list[tuple[int, int]]:
    pairs = []
    for code, airport in expected.airports.items():
        got = found.airports.get(code, AirportTally())
        pairs.append((airport.departures, got.departures))
        pairs.append((airport.arrivals, got.arrivals))
    for tail, plane in expected.planes.items():
        pairs.append((plane.legs, found.planes.get(tail, PlaneTally()).legs))
    return pairs


def worst(
    found: Figures, count: int = 10
) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Airports (50 arrivals or more) and planes (20 legs or more) by mean arrival delay."""
    airports = [
        (code, tally.arr_delay / tally.arrivals)
        for code, tally in found.airports.items()
        if tally.arrivals >= 50
    ]
    planes = [
        (tail, tally.arr_delay / tally.legs)
        for tail, tally in found.planes.items()
        if tally.legs >= 20
    ]
    key = lambda entry: -entry[1]  # noqa: E731
    return sorted(airports, key=key)[:count], sorted(planes, key=key)[:count]


def as_lists(figures: Figures) -> dict[str, dict[str, list[int]]]:
    """Plain values, for JSON."""
    return {
        "airports": {code: list(astuple(tally)) for code, tally in figures.airports.items()},
        "planes": {tail: list(astuple(tally)) for tail, tally in figures.planes.items()},
    }
