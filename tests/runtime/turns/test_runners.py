"""Runners: work in tasks that are used again."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator

import pytest_asyncio
from tests.conditions import spin

from millstream.runtime.extending import Runners, Tasks

NOTE: contextvars.ContextVar[str] = contextvars.ContextVar("note", default="")


class Log:
    """Records the work that has run, and its tasks."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tasks: list[asyncio.Task[object] | None] = []

    async def note(self, line: str) -> None:
        self.lines.append(line)
        self.tasks.append(asyncio.current_task())


@pytest_asyncio.fixture
async def runners() -> AsyncIterator[Runners]:
    loop = asyncio.get_running_loop()
    made = Runners(Tasks(loop, contextvars.Context), loop)
    yield made
    await made.aclose()


async def test_pieces_begin_in_order_and_in_a_task_that_was_used_before(runners: Runners) -> None:
    log = Log()
    for line in "abc":
        runners.start(log.note(line))
    await spin(3)
    runners.start(log.note("d"))
    await spin(3)
    assert log.lines == ["a", "b", "c", "d"] and len(set(log.tasks)) == 1


async def test_a_piece_that_begins_finds_the_task_that_runs_it(runners: Runners) -> None:
    found: list[bool] = []

    async def look() -> None:
        found.append(runners.runner is asyncio.current_task())
        await asyncio.sleep(0)

    for _ in range(3):
        runners.start(look())
    await spin(6)
    assert found == [True] * 3


async def test_what_a_piece_gives_while_it_goes_on_begins_in_the_same_turn(
    runners: Runners,
) -> None:
    log = Log()

    async def give() -> None:
        asyncio.get_running_loop().call_soon(log.lines.append, "the next turn")
        runners.goes_on = True
        runners.start(log.note("a"))
        runners.goes_on = False

    runners.start(give())
    await spin(3)
    assert log.lines == ["a", "the next turn"]


async def test_of_many_pieces_that_suspend_ever_more_begin_in_a_turn(runners: Runners) -> None:
    begun: list[int] = []
    gate = asyncio.Event()

    async def wait(number: int) -> None:
        begun.append(number)
        await gate.wait()

    for _ in range(2):  # in the second round there are parked runners
        begun.clear()
        gate.clear()
        for number in range(60):
            runners.start(wait(number))
        counts = [0]
        while len(begun) < 60:
            await asyncio.sleep(0)
            if len(begun) > counts[-1]:
                counts.append(len(begun))
        assert begun == list(range(60))
        assert counts == [0, 1, 3, 7, 15, 31, 60]
        gate.set()
        await spin(5)


async def test_runners_are_not_woken_for_pieces_that_do_not_suspend(runners: Runners) -> None:
    log, gate = Log(), asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    for _ in range(3):
        runners.start(wait())
        for number in range(20):
            runners.start(log.note(f"{number}"))
        await spin(5)
    assert len(set(log.tasks)) <= 3 and len(log.lines) == 60
    gate.set()


async def test_a_piece_that_suspends_holds_up_no_other(runners: Runners) -> None:
    log, gate = Log(), asyncio.Event()

    async def wait() -> None:
        runners.goes_on = True
        runners.start(log.note("behind it"))
        runners.goes_on = False
        runners.share()
        await gate.wait()
        log.lines.append("waited")

    async def give() -> None:
        runners.goes_on = True
        runners.start(wait())
        runners.start(log.note("beside it"))
        runners.goes_on = False

    runners.start(give())
    await spin(5)
    assert log.lines == ["beside it", "behind it"]
    gate.set()
    await spin(3)
    assert log.lines == ["beside it", "behind it", "waited"]


async def test_a_piece_sees_no_variable_and_no_cancellation_of_another(runners: Runners) -> None:
    seen: list[tuple[str, int]] = []

    async def look() -> None:
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        seen.append((NOTE.get(), task.cancelling()))

    async def leave_a_variable() -> None:
        NOTE.set("left")

    async def leave_a_cancellation() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    for bad in (leave_a_variable, leave_a_cancellation):
        runners.start(bad())
        runners.start(look())
        await spin(6)
    assert seen == [("", 0), ("", 0)]


async def test_what_has_not_begun_never_does_once_they_are_told_to_end(runners: Runners) -> None:
    log, ended = Log(), []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waiting")

    runners.start(wait())
    await spin(3)
    runners.start(log.note("a"))
    await runners.aclose()
    runners.start(log.note("b"))
    await spin(3)
    assert ended == ["waiting"] and not log.lines


async def test_nobody_waits_for_a_piece_that_was_left(runners: Runners) -> None:
    gate, tasks = asyncio.Event(), list[asyncio.Task[object]]()

    async def never_ends() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                task.uncancel()

    runners.start(never_ends())
    await spin(3)
    runners.leave(tasks[0])
    await runners.aclose()
    gate.set()
    await spin(3)
    tasks[0].cancel()
