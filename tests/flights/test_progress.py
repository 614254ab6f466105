"""Progress is a sum over agents, and the view shows it."""

from __future__ import annotations

import io

import pytest
from examples.flights.progress import Progress
from examples.flights.view import LineView, draw

from millstream.streams import QueueStats, SiloStats


def queue(name: str, epoch: int, read: int, delivered: int) -> QueueStats:
    return QueueStats(name, epoch, 0, read - delivered, read, delivered, 0, 0, 1, 0, 2.0, True)


def silo(name: str, *queues: QueueStats) -> SiloStats:
    return SiloStats(f"127.0.0.1:1@{name}", name, 7, list(queues))


def test_a_queue_that_moves_keeps_what_its_first_owner_delivered() -> None:
    progress = Progress(expected=100)
    progress.sample([silo("a", queue("q0", 1, 60, 40))], 1.0)
    progress.sample([silo("a"), silo("b", queue("q0", 2, 10, 10))], 2.0)
    assert (progress.delivered, progress.read, progress.share) == (50, 70, 0.5)
    assert progress.silo_rates[silo("b").silo] == 10.0


def test_nothing_that_was_counted_is_lost_when_a_silo_does_not_answer() -> None:
    progress = Progress(expected=100)
    progress.sample([silo("a", queue("q0", 1, 60, 40))], 1.0)
    progress.sample([], 2.0)
    assert progress.delivered == 40


def test_it_is_stuck_since_the_last_event_moved() -> None:
    progress = Progress(expected=100)
    assert progress.find_stuck_s(50.0) == 0
    progress.sample([silo("a", queue("q0", 1, 60, 40))], 50.0)
    progress.sample([silo("a", queue("q0", 1, 61, 40))], 60.0)
    progress.sample([silo("a", queue("q0", 1, 61, 40))], 75.0)
    assert progress.find_stuck_s(80.0) == 20.0


def test_the_queue_that_lags_is_named_with_its_owner() -> None:
    progress = Progress(expected=100)
    progress.sample([silo("a", queue("q0", 1, 60, 60), queue("q1", 1, 60, 40))], 1.0)
    assert progress.lagging() == "q1 of a (20 events, 2 s)"


def test_the_time_left_follows_from_the_share() -> None:
    progress = Progress(expected=100)
    assert progress.eta_s(1.0) == float("inf")
    progress.sample([silo("a", queue("q0", 1, 60, 25))], 1.0)
    assert progress.eta_s(2.0) == pytest.approx(6.0)


def test_a_line_is_printed_per_ten_percent() -> None:
    out, progress = io.StringIO(), Progress(expected=100)
    view = LineView(out)
    for delivered in (5, 11, 12, 19, 35, 100):
        progress.sample([silo("a", queue("q0", 1, 100, delivered))], float(delivered))
        view.show(progress, 1.0, 1.0)
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["11", "35", "100"]


def test_the_table_names_silos_queues_and_what_is_left() -> None:
    rich = pytest.importorskip("rich.console", reason="Rich is not installed (extra `demo`)")
    progress = Progress(expected=200)
    progress.sample([silo("silo-0", queue("queue-3", 4, 1060, 40))], 1.0)
    console = rich.Console(file=io.StringIO(), width=100)
    console.print(draw(progress, 2.0, progress.eta_s(2.0)))
    text = console.file.getvalue()
    assert "40 of 200 events delivered" in text and "8 s left" in text
    row = next(line for line in text.splitlines() if "queue-3" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "queue-3",
        "silo-0",
        "4",
        "1,020",
        "40",
        "1,020",
        "2.0",
    ]
