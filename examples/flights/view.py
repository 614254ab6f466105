"""The display while the job runs: a live table, or a line per 10 % if piped. It only draws."""

from __future__ import annotations

from typing import Any, TextIO

from .progress import Progress, lag_of

__all__ = ["LineView", "NoView", "TableView", "View"]


class View:
    """Shows samples; `close` leaves the last one on the screen."""

    def show(self, progress: Progress, elapsed_s: float, eta_s: float) -> None:
        """Draw a sample."""

    def close(self) -> None:
        """End drawing."""


class NoView(View):
    """Shows nothing (`--json`)."""


class LineView(View):
    """One plain line per 10 %."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._next = 10

    def show(self, progress: Progress, elapsed_s: float, eta_s: float) -> None:
        percent = int(progress.share * 100)
        if percent < self._next:
            return
        self._next = percent - percent % 10 + 10
        text = (
            f"{percent:3d} %  {count_shown(progress):>9,} of {progress.expected:,} events  "
            f"{elapsed_s:6.1f} s  {progress.delivered_per_s:>9,.0f}/s"
        )
        print(text, file=self._out, flush=True)


class TableView(View):
    """A live table on a terminal."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(refresh_per_second=4)
        self._live.start()

    def show(self, progress: Progress, elapsed_s: float, eta_s: float) -> None:
        self._live.update(draw(progress, elapsed_s, eta_s))

    def close(self) -> None:
        self._live.stop()


def count_shown(progress: Progress) -> int:
    """Return delivered events, without redeliveries after the crash of a silo."""
    return min(progress.delivered, progress.expected)


def draw(progress: Progress, elapsed_s: float, eta_s: float) -> Any:
    """Return the whole picture: progress, silos, queues."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    eta = "?" if eta_s == float("inf") else f"{eta_s:,.0f} s"
    head = Table.grid()
    head.add_row(
        f"{count_shown(progress):,} of {progress.expected:,} events delivered "
        f"({progress.delivered_per_s:,.0f}/s), {progress.read:,} read, "
        f"{elapsed_s:,.0f} s, {eta} left"
    )
    head.add_row(ProgressBar(total=1.0, completed=progress.share, width=60))
    return Group(head, silo_table(progress), queue_table(progress))


def silo_table(progress: Progress) -> Any:
    """Return one line per silo; its rate counts deliveries of its queues, to grains anywhere."""
    table = _table(("silo",), ("activations", "delivered/s", "queues"))
    for silo in progress.silos:
        rate = progress.silo_rates.get(silo.silo, 0.0)
        table.add_row(silo.name, f"{silo.activations:,}", f"{rate:,.0f}", str(len(silo.queues)))
    return table


def queue_table(progress: Progress) -> Any:
    """Return one line per queue; its depth has stored events and events in its owner's cache."""
    numbered = ("epoch", "depth", "delivered", "lag events", "lag s")
    table = _table(("queue", "owner"), numbered)
    rows = sorted(
        ((queue, silo.name) for silo in progress.silos for queue in silo.queues),
        key=lambda row: row[0].queue,
    )
    for queue, owner in rows:
        depth = queue.backlog + queue.cached
        numbers = (queue.epoch, depth, queue.delivered, lag_of(queue))
        table.add_row(queue.queue, owner, *(f"{n:,}" for n in numbers), f"{queue.lag_s:.1f}")
    return table


def _table(texts: tuple[str, ...], numbers: tuple[str, ...]) -> Any:
    from rich.table import Table

    table = Table()
    for title in texts:
        table.add_column(title)
    for title in numbers:
        table.add_column(title, justify="right")
    return table
