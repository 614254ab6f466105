"""Finding abandoned writers: page by page, within limits, in spite of silent writers."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import Context
from types import SimpleNamespace
from typing import Any

from millstream.runtime import CallTimeout, MemoryStateStore
from millstream.runtime.extending import Tasks
from millstream.runtime.testing import Simulation, run
from millstream.streams.staging.coordinator import OpenAttempt, WriterState
from millstream.streams.staging.finder import FIND_EVERY_S, ROWS_AT_ONCE, WAKES_MAX, Finder
from millstream.streams.staging.rows import StagedRows

WRITERS = 3 * ROWS_AT_ONCE


class Rig:
    """A finder over a store, in the first silo or another one."""

    def __init__(self, *, is_first: bool = True) -> None:
        self.rows = StagedRows(MemoryStateStore(), "default")
        self.woken: Counter[str] = Counter()
        self.out = self.out_max = 0
        self.silent: set[str] = set()
        loop = asyncio.get_running_loop()
        self.tasks = Tasks(loop, Context)
        rows = {name: SimpleNamespace(grain_types=["w"]) for name in ("a", "b")}
        services: Any = SimpleNamespace(
            members=SimpleNamespace(active=lambda: ["a", "b"], view=SimpleNamespace(row=rows.get)),
            address="a" if is_first else "b",
            clock=SimpleNamespace(now=loop.time),
            new_tasks=lambda: self.tasks,
        )
        self.finder = Finder(services, self.rows, "w", self.wake)

    async def wake(self, writer: str) -> None:
        self.woken[writer] += 1
        self.out += 1
        self.out_max = max(self.out, self.out_max)
        try:
            if writer in self.silent:
                await asyncio.sleep(10)
                raise CallTimeout("no answer")
            await asyncio.sleep(0.1)
        finally:
            self.out -= 1

    async def fill(self) -> None:
        """Store writers; every third one has nothing staged."""
        for number in range(WRITERS):
            state = WriterState(open={} if number % 3 == 0 else {"u": OpenAttempt(0, 0)})
            await self.rows.write(f"w{number:03}", state, None)

    async def look(self, rounds: int) -> None:
        self.finder.start()
        await asyncio.sleep((rounds + 0.5) * FIND_EVERY_S)
        await self.finder.stop()


def played(rounds: int, silent: int = 0, *, is_first: bool = True) -> Rig:
    async def main(simulation: Simulation) -> Rig:
        rig = Rig(is_first=is_first)
        await rig.fill()
        rig.silent = {f"w{number:03}" for number in range(silent)}
        await rig.look(rounds)
        return rig

    return run(main, 1).result


EXPECTED = {f"w{number:03}" for number in range(WRITERS) if number % 3}


def test_every_writer_with_something_staged_is_woken_and_no_other() -> None:
    rig = played(rounds=5)
    assert set(rig.woken) == EXPECTED
    assert rig.out_max <= WAKES_MAX


def test_writers_that_do_not_answer_keep_no_other_from_being_woken() -> None:
    rig = played(rounds=6, silent=WRITERS)
    assert set(rig.woken) == EXPECTED
    assert rig.out_max <= WAKES_MAX


def test_a_silo_that_is_not_the_first_wakes_nobody() -> None:
    assert not played(rounds=2, is_first=False).woken
