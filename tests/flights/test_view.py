"""The progress view of the flights job."""

from __future__ import annotations

import io

from examples.flights.progress import Progress
from examples.flights.view import LineView, draw
from rich.console import Console

from millstream.streams import QueueStats, SiloStats


def sampled() -> Progress:
    """Two silos; queue-0 lags by 47 events and 1.5 s, queue-1 is done."""
    behind = QueueStats("queue-0", 3, 7, 40, 100, 60, 0, 0, 5, 2, 1.5, True)
    done = QueueStats("queue-1", 1, 0, 0, 90, 90, 0, 0, 5, 0, 0.0, True)
    progress = Progress(600)
    silos = [
        SiloStats("127.0.0.1:7001@1", "silo-0", 1234, [behind]),
        SiloStats("127.0.0.1:7002@1", "silo-1", 17, [done]),
    ]
    progress.sample(silos, 1.0)
    return progress


def picture(progress: Progress, elapsed_s: float, eta_s: float) -> str:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(draw(progress, elapsed_s, eta_s))
    return console.export_text()


def row_of(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if name in line)
    return [cell.strip() for cell in line.strip("│ ").split("│")]


def test_the_table_tells_each_silo_and_each_queue() -> None:
    text = picture(sampled(), 12.0, 36.0)
    assert row_of(text, "silo-1")[:2] == ["silo-1", "17"]
    assert "1,234" in row_of(text, "silo-0")
    assert row_of(text, "queue-0") == ["queue-0", "silo-0", "3", "47", "60", "47", "1.5"]
    assert row_of(text, "queue-1") == ["queue-1", "silo-1", "1", "0", "90", "0", "0.0"]


def test_the_head_tells_progress_and_the_time_left() -> None:
    assert "150 of 600 events delivered" in picture(sampled(), 12.0, 36.0)
    assert "12 s, 36 s left" in picture(sampled(), 12.0, 36.0)
    assert "? left" in picture(Progress(600), 0.0, float("inf"))


def test_a_pipe_gets_one_line_per_ten_percent() -> None:
    out = io.StringIO()
    view, progress = LineView(out), sampled()  # 25 %
    for _ in range(3):
        view.show(progress, 2.0, 6.0)
    view.close()
    [line] = out.getvalue().splitlines()
    assert line.split()[:2] == ["25", "%"]
    assert "150 of 600 events" in line
