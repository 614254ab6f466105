"""Legs of flights of 2013, from the file that `python -m examples.flights` reads.

This module selects the legs, and converts them to messages. Each leg has its own id and a tail
number. `departs_ms` is its scheduled departure in Unix milliseconds.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import date, datetime
from typing import NamedTuple

from examples.flights.data import read_lines

from millstream.providers.priority import NewMessage

__all__ = ["TAIL", "Leg", "minutes_of", "read_legs"]

TAIL = "tail"
FIRST_DAY = date(2013, 1, 1)
MISSING = ("", "NA")


class Leg(NamedTuple):
    """One flight of one plane. `minutes`: in the air; 0 if it was cancelled or diverted."""

    id: str
    tail: str
    departs_ms: int
    minutes: int

    def message(self) -> NewMessage:
        """Return the leg as a message; the deadline is the scheduled departure."""
        payload = json.dumps({"minutes": self.minutes}).encode()
        return NewMessage(payload, self.departs_ms, self.id, {TAIL: self.tail})


def minutes_of(payload: bytes) -> int:
    """Return the minutes in the air of a leg's message."""
    return int(json.loads(payload)["minutes"])


def read_legs(days: int, planes: int) -> tuple[list[Leg], int]:
    """Return the legs of the busiest planes in the first days of 2013.

    The second value is the number of flights of these days that are left out, because they have no
    tail number.
    """
    lines = [line for line in read_lines() if day_of(line) < days]
    legs = [leg_of(line) for line in lines if line["tailnum"] not in MISSING]
    busiest = dict(Counter(leg.tail for leg in legs).most_common(planes))
    return [leg for leg in legs if leg.tail in busiest], len(lines) - len(legs)


def day_of(line: dict[str, str]) -> int:
    """Return the day of the year, from 0."""
    return (date(int(line["year"]), int(line["month"]), int(line["day"])) - FIRST_DAY).days


def leg_of(line: dict[str, str]) -> Leg:
    """Convert a line of the file; `time_hour` is the scheduled hour in UTC."""
    hour, minute = datetime.fromisoformat(line["time_hour"]), int(line["minute"])
    departs = hour.replace(minute=minute)
    flight = f"{line['carrier']}{line['flight']}"
    id = f"{departs:%Y-%m-%dT%H:%MZ} {flight} {line['origin']}-{line['dest']}"
    in_air = line["air_time"]
    minutes = 0 if in_air in MISSING else int(float(in_air))
    return Leg(id, line["tailnum"], int(departs.timestamp()) * 1000, minutes)
