"""The demo's own check can fail."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
from examples.flights.__main__ import main
from examples.flights.check import (
    Figures,
    compare,
    count_here,
    missing_and_duplicated,
    worst,
)
from examples.flights.data import read_flights
from examples.flights.grains import AirportTally, PlaneTally
from examples.flights.publish_csv import ROUTES
from examples.flights.report import judge


@pytest.fixture(scope="module")
def figures() -> Figures:
    return count_here(2000)


def test_the_first_flights_are_counted_as_the_file_has_them() -> None:
    assert count_here(1) == Figures(
        {"EWR": AirportTally(1, 2, 0, 0), "IAH": AirportTally(0, 0, 1, 11)},
        {"N14228": PlaneTally(1, 2, 11)},
    )


def test_the_count_has_as_many_events_as_are_published(figures: Figures) -> None:
    rows = list(read_flights(2000))
    published = sum(key_of(row) is not None for row in rows for _, key_of in ROUTES)
    assert figures.events == published


def test_equal_figures_have_no_difference(figures: Figures) -> None:
    report = judge(figures, deepcopy(figures), figures.events, 1.0, [])
    assert report.is_equal and (report.missing, report.duplicated) == (0, 0)
    assert list(report.lines())[-1].startswith("5,9")
    assert "all figures are equal" in list(report.lines())[-1]


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
    report = judge(figures, found, figures.events, 1.0, [])
    assert not report.is_equal and "FIGURES DIFFER" in list(report.lines())[-1]


def test_a_plane_that_nobody_expects_and_one_that_is_gone_are_found(figures: Figures) -> None:
    found = deepcopy(figures)
    tail, tally = found.planes.popitem()
    found.planes["N0"] = PlaneTally(3, 0, 0)
    assert missing_and_duplicated(figures, found) == (tally.legs, 3)
    assert {text.split(":")[0] for text in compare(figures, found)} == {"plane N0", f"plane {tail}"}


def test_too_few_published_events_are_a_difference(figures: Figures) -> None:
    report = judge(figures, figures, figures.events - 1, 1.0, [])
    assert not report.is_equal
    assert report.differences == [
        f"{figures.events - 1:,} events published, but the file has {figures.events:,}"
    ]


def test_the_worst_come_first(figures: Figures) -> None:
    airports, _ = worst(figures)
    means = [mean for _, mean in airports]
    assert means == sorted(means, reverse=True) and len(means) == 10


def test_kill_without_processes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kill", "--local"]) == 2
    assert "--kill needs silo processes" in capsys.readouterr().err


def test_a_work_directory_with_something_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state-0.db").touch()
    assert main(["--source", "csv", "--work", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "is not empty" in captured.err and not captured.out


@pytest.mark.parametrize("work", ["/proc/x", "file", "file/below"])
def test_a_work_directory_that_cannot_be_made_is_refused(
    work: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / work)  # an absolute path is not changed
    assert main(["--source", "csv", "--work", path]) == 1
    captured = capsys.readouterr()
    assert f"--work {path} cannot be used as a directory: " in captured.err and not captured.out


def test_help_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "flights" in capsys.readouterr().out
