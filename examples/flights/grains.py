"""The grains of the example: airports and planes, each with a tally stored with its position."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.runtime import Grain, read_only, state
from millstream.streams import Event, subscribe

from .data import ARRIVALS, DEPARTURES, TAILS, Flight

__all__ = ["Airport", "AirportTally", "Plane", "PlaneTally"]


@dataclass
class AirportTally:
    """Flights and delay minutes at one airport."""

    departures: int = 0
    dep_delay: int = 0
    arrivals: int = 0
    arr_delay: int = 0


@dataclass
class PlaneTally:
    """Legs and delay minutes of one plane."""

    legs: int = 0
    dep_delay: int = 0
    arr_delay: int = 0


class Airport(Grain):
    """One grain per airport code, activated by the first event of a stream with its key."""

    tally = state(AirportTally)

    @subscribe(DEPARTURES, commit_with=tally)
    async def on_departure(self, event: Event[Flight]) -> None:
        """Count a departure."""
        self.tally.value.departures += 1
        self.tally.value.dep_delay += event.item.dep_delay or 0

    @subscribe(ARRIVALS, commit_with=tally)
    async def on_arrival(self, event: Event[Flight]) -> None:
        """Count an arrival."""
        self.tally.value.arrivals += 1
        self.tally.value.arr_delay += event.item.arr_delay or 0

    @read_only
    async def totals(self) -> AirportTally:
        """Return the present tally."""
        return self.tally.value


class Plane(Grain):
    """One grain per tail number."""

    tally = state(PlaneTally)

    @subscribe(TAILS, commit_with=tally)
    async def on_leg(self, event: Event[Flight]) -> None:
        """Count a leg, also a cancelled one."""
        self.tally.value.legs += 1
        self.tally.value.dep_delay += event.item.dep_delay or 0
        self.tally.value.arr_delay += event.item.arr_delay or 0

    @read_only
    async def totals(self) -> PlaneTally:
        """Return the present tally."""
        return self.tally.value
