"""The streamed results of the suite `calls`: which items were made, and which were received.

The suite's grains and programs report to `Pages`, which judges order, ends and back-pressure.
"""

from __future__ import annotations

from collections import Counter

from tests.sim.suites.run.record import Run

__all__ = ["BATCH_ITEMS", "Pages"]

BATCH_ITEMS = 4
AHEAD_MAX = 2 * BATCH_ITEMS + 1  # the batch that is read, the one that waits, and one more item


class Pages:
    """The streamed results of the accounts: which items were made, and which were received."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._made: dict[str, int] = {}
        self._received: Counter[str] = Counter()
        self._open: dict[str, str] = {}  # the silo of each generator that is open

    def on_opened(self, op: str, silo: str) -> None:
        """Note that a generator starts."""
        if op in self._made:
            self._run.on_violated(f"{op}: the generator is started twice")
        self._made[op], self._open[op] = 0, silo
        self._run.figures["generators"] += 1

    def on_made(self, op: str, number: int) -> None:
        """Judge an item that a generator yields."""
        self._made[op] = number + 1
        ahead = number + 1 - self._received[op]
        if ahead > AHEAD_MAX:
            self._run.on_violated(f"{op}: the generator is {ahead} items ahead of its consumer")

    def on_received(self, op: str, number: int) -> None:
        """Judge an item that arrives."""
        self._run.figures["items"] += 1
        if number != self._received[op]:
            self._run.on_violated(f"{op}: item {number} arrives in place of {self._received[op]}")
        self._received[op] = number + 1

    def on_complete(self, op: str, count: int) -> None:
        """Judge the end of a streamed result without an error."""
        self._run.figures["complete results"] += 1
        if self._received[op] != count:
            lost = f"{count - self._received[op]} of {count} items"
            self._run.on_violated(f"{op}: the streamed result ends without {lost}")

    def on_closed(self, op: str) -> None:
        """Note that a generator has ended."""
        self._open.pop(op, None)

    def check_closed(self, silos: list[str]) -> list[str]:
        """Check that no generator is open in the silos that run."""
        return [
            f"{op}: the generator is still open in {silo}"
            for op, silo in self._open.items()
            if silo in silos
        ]
