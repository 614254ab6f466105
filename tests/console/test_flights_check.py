"""The demo's own check must be able to fail."""

from __future__ import annotations

from copy import deepcopy

import pytest

from millstream.console.flights.check import (
    Figures,
    compare,
    count_here,
    missing_and_duplicated,
    worst,
)
from millstream.console.flights.data import read_flights, row_of
from millstream.console.flights.grains import AirportTally, PlaneTally
from millstream.console.main import main

LINE = {
    "carrier": "UA",
    "tailnum": "N1",
    "origin": "EWR",
    "dest": "IAH",
    "dep_time": "517.0",
    "arr_time": "830.0",
    "dep_delay": "2.0",
    "arr_delay": "11.0",
}


@pytest.fixture(scope="module")
def figures() -> Figures:
    return count_here(2000)


def test_the_first_flights_are_counted_as_the_file_has_them() -> None:
    rows = list(read_flights(3))
    assert [row.flight.dest for row in rows] == ["IAH", "IAH", "MIA"]
    assert count_here(1) == Figures(
        {"EWR": AirportTally(1, 2, 0, 0), "IAH": AirportTally(0, 0, 1, 11)},
        {"N14228": PlaneTally(1, 2, 11)},
    )


def test_a_cancelled_flight_is_neither_departure_nor_arrival() -> None:
    row = row_of({**LINE, "dep_time": "NA", "arr_time": "", "dep_delay": "NA", "arr_delay": ""})
    assert (row.departed, row.arrived, row.flight.dep_delay) == (False, False, None)


def test_equal_figures_have_no_difference(figures: Figures) -> None:
    assert compare(figures, deepcopy(figures)) == []
    assert missing_and_duplicated(figures, deepcopy(figures)) == (0, 0)


def test_a_missing_and_a_doubled_event_are_found(figures: Figures) -> None:
    found = deepcopy(figures)
    found.airports["EWR"].departures -= 1
    tail = next(iter(found.planes))
    found.planes[tail].legs += 2
    assert missing_and_duplicated(figures, found) == (1, 2)
    assert len(compare(figures, found)) == 2


def test_a_wrong_sum_is_found_though_the_counts_are_right(figures: Figures) -> None:
    found = deepcopy(figures)
    found.airports["EWR"].dep_delay += 1
    assert missing_and_duplicated(figures, found) == (0, 0)
    assert [text.split(":")[0] for text in compare(figures, found)] == ["airport EWR"]


def test_the_worst_come_first(figures: Figures) -> None:
    airports, _ = worst(figures)
    means = [mean for _, mean in airports]
    assert means == sorted(means, reverse=True)


def test_kill_without_processes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "flights", "--kill", "--local"]) == 2
    assert "--kill needs silo processes" in capsys.readouterr().err
