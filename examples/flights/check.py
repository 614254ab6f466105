"""Compares the counts of the grains with an independent count over the same file.

This module owns the expected figures (a plain loop; Spark's are in `publish_spark`), the questions
to the grains, and the comparison. Every figure of every airport and plane is compared. The plain
loop reads the file by itself, and shares no code with the publishers.
"""

from __future__ import annotations

import asyncio
import csv
import io
import zipfile
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from millstream.runtime import CallTimeout, Client, ClusterError

from .data import MEMBER, data_file
from .grains import Airport, AirportTally, Plane, PlaneTally

__all__ = [
    "ARRIVALS_MIN",
    "LEGS_MIN",
    "Figures",
    "Ranking",
    "compare",
    "count_here",
    "figures_of_grains",
    "missing_and_duplicated",
    "worst",
]

ASKED_AT_ONCE = 64
TRIES_MAX = 20
RETRY_S = 0.5
ARRIVALS_MIN = 50
LEGS_MIN = 20

T = TypeVar("T")
Ranking = list[tuple[str, float]]


@dataclass
class Figures:
    """Tallies by airport code and by tail number."""

    airports: dict[str, AirportTally] = field(default_factory=dict)
    planes: dict[str, PlaneTally] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """The number of events in these figures."""
        at_airports = sum(tally.departures + tally.arrivals for tally in self.airports.values())
        return at_airports + sum(tally.legs for tally in self.planes.values())


def count_here(rows_max: int | None) -> Figures:
    """Count the expected figures with a plain loop over the file."""
    airports: dict[str, AirportTally] = defaultdict(AirportTally)
    planes: dict[str, PlaneTally] = defaultdict(PlaneTally)
    with zipfile.ZipFile(data_file()) as archive, archive.open(MEMBER) as raw:
        lines = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        at = {name: column for column, name in enumerate(next(lines))}
        columns = ("origin", "dest", "tailnum", "dep_time", "arr_time", "dep_delay", "arr_delay")
        chosen = [at[name] for name in columns]
        for line in islice(lines, rows_max):
            cells = ("" if line[column] == "NA" else line[column] for column in chosen)
            origin, dest, tail, dep_time, arr_time, dep, arr = cells
            dep_delay, arr_delay = (round(float(cell or 0)) for cell in (dep, arr))
            if dep_time:
                airports[origin].departures += 1
                airports[origin].dep_delay += dep_delay
            if arr_time:
                airports[dest].arrivals += 1
                airports[dest].arr_delay += arr_delay
            if tail:
                planes[tail].legs += 1
                planes[tail].dep_delay += dep_delay
                planes[tail].arr_delay += arr_delay
    return Figures(dict(airports), dict(planes))


async def figures_of_grains(client: Client, expected: Figures) -> Figures:
    """Ask every airport and plane that should have counted events."""
    limit = asyncio.Semaphore(ASKED_AT_ONCE)
    found = Figures()

    async def ask_airport(code: str) -> None:
        async with limit:
            found.airports[code] = await _answer(client.grain(Airport, code).totals)

    async def ask_plane(tail: str) -> None:
        async with limit:
            found.planes[tail] = await _answer(client.grain(Plane, tail).totals)

    await asyncio.gather(*map(ask_airport, expected.airports), *map(ask_plane, expected.planes))
    return found


async def _answer(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until a silo answers, because a silo may just have crashed. Asking changes nothing."""
    for _ in range(TRIES_MAX - 1):
        try:
            return await ask()
        except (ClusterError, CallTimeout):
            await asyncio.sleep(RETRY_S)
    return await ask()


def compare(expected: Figures, found: Figures) -> list[str]:
    """Return every difference, as text."""
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
    """Return the number of events that were counted too seldom, and too often."""
    missing = duplicated = 0
    for wanted, got in _counts(expected, found):
        missing += max(0, wanted - got)
        duplicated += max(0, got - wanted)
    return missing, duplicated


def _counts(expected: Figures, found: Figures) -> list[tuple[int, int]]:
    pairs = []
    for code in {*expected.airports, *found.airports}:
        wanted = expected.airports.get(code, AirportTally())
        got = found.airports.get(code, AirportTally())
        pairs += [(wanted.departures, got.departures), (wanted.arrivals, got.arrivals)]
    for tail in {*expected.planes, *found.planes}:
        legs = expected.planes.get(tail, PlaneTally()).legs
        pairs.append((legs, found.planes.get(tail, PlaneTally()).legs))
    return pairs


def worst(found: Figures, count: int = 10) -> tuple[Ranking, Ranking]:
    """Return airports (50 arrivals or more) and planes (20 legs or more) by mean arrival delay."""
    airports = [
        (code, tally.arr_delay / tally.arrivals)
        for code, tally in found.airports.items()
        if tally.arrivals >= ARRIVALS_MIN
    ]
    planes = [
        (tail, tally.arr_delay / tally.legs)
        for tail, tally in found.planes.items()
        if tally.legs >= LEGS_MIN
    ]
    return _first(airports, count), _first(planes, count)


def _first(entries: Ranking, count: int) -> Ranking:
    return sorted(entries, key=lambda entry: (-entry[1], entry[0]))[:count]
