"""Deadlines and the yield budget alone, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.runtime.extending import Budget
from millstream.runtime.turns.budget import TURNS_PER_LOOK_MAX, yield_once
from millstream.runtime.turns.deadlines import Deadlines, expire
from millstream.runtime.turns.request import Request

SWEEP_S = 0.25


class Clock:
    """A stand-in for the loop: the test sets its time and runs its timers."""

    def __init__(self) -> None:
        self.now_s = 8.0
        self.timers: list[float] = []
        self.cancelled = 0
        self.due: Callable[[], None] = lambda: None
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, after_s: float, run: Callable[[], None]) -> Any:
        self.timers.append(after_s)
        self.due = run
        return SimpleNamespace(cancel=self.cancel)

    def call_soon(self, run: Callable[[], None]) -> None:
        self.soon.append(run)

    def cancel(self) -> None:
        self.cancelled += 1

    def sweep(self, at_s: float) -> None:
        self.now_s = at_s
        self.due()


class Ends:
    """A task or future that counts its cancellations."""

    def __init__(self) -> None:
        self.count = 0

    def cancel(self) -> None:
        self.count += 1


def a_deadlines() -> tuple[Deadlines, Clock]:
    clock: Any = Clock()
    return Deadlines(clock, SWEEP_S), clock


def a_turn(deadline_s: float, parent: Request | None = None, task: Ends | None = None) -> Request:
    depth = 1 if parent is None else parent.depth + 1
    return Request(parent, task or Ends(), None, None, deadline_s, depth)


def ended(*requests: Request) -> list[int]:
    return [request.task.count for request in requests]


# --- watched entries -----------------------------------------------------------------------------


def test_nothing_is_armed_before_something_is_watched() -> None:
    deadlines, clock = a_deadlines()
    assert not deadlines.is_armed and not clock.timers
    request = a_turn(9.0)
    deadlines.add(request, 1.0)
    assert deadlines.is_armed and clock.timers == [SWEEP_S]
    deadlines.add(a_turn(9.0), 1.0)
    assert clock.timers == [SWEEP_S], "one timer for all"
    assert next(iter(deadlines.iter_watched())) is request


def test_requests_of_one_time_out_share_a_group_and_leave_it() -> None:
    deadlines, _ = a_deadlines()
    first, second = a_turn(9.0), a_turn(9.0)
    deadlines.add(first, 1.0)
    deadlines.add(second, 1.0)
    group = deadlines.groups[1.0]
    assert first.group is second.group is group and list(group) == [first, second]
    assert deadlines.groups[2.0] is not group
    deadlines.remove(first)
    deadlines.remove(first)
    assert first.group is None and list(deadlines.iter_watched()) == [second]


def test_requests_with_deadlines_of_their_own_share_a_slot_for_each_sweep() -> None:
    deadlines, _ = a_deadlines()
    early = deadlines.slot(9.0)
    assert deadlines.slot(9.2) is early and deadlines.slot(9.25) is not early
    assert deadlines.slot(math.inf) is not deadlines.slot(1e9)


# --- sweeps --------------------------------------------------------------------------------------


def test_a_sweep_ends_what_is_due_and_nothing_else() -> None:
    deadlines, clock = a_deadlines()
    due, later, other = a_turn(9.0), a_turn(9.5), a_turn(10.0)
    for request, timeout_s in ((due, 1.0), (later, 1.0), (other, 2.0)):
        deadlines.add(request, timeout_s)
    clock.sweep(8.99)
    assert ended(due, later, other) == [0, 0, 0]
    clock.sweep(9.0)
    assert ended(due, later, other) == [1, 0, 0] and due.expired and not later.expired
    clock.sweep(9.5)
    assert ended(due, later, other) == [1, 1, 0]
    assert clock.timers == [SWEEP_S] * 4


@pytest.mark.parametrize("deadline_s", [8.3, 9.0, 9.1, 9.24])
def test_a_deadline_of_its_own_is_kept_to_the_sweep(deadline_s: float) -> None:
    deadlines, clock = a_deadlines()
    request, for_ever = a_turn(deadline_s), a_turn(math.inf)
    deadlines.add(request, None)
    deadlines.add(for_ever, None)
    clock.sweep(deadline_s - 0.001)
    assert ended(request) == [0]
    clock.sweep(deadline_s)
    assert ended(request, for_ever) == [1, 0]
    request.done = True
    clock.sweep(99.0)
    assert ended(request, for_ever) == [1, 0]


def test_what_is_due_after_slots_that_were_swept_together_is_not_lost() -> None:
    deadlines, clock = a_deadlines()
    requests = [a_turn(8.5 + n / 10) for n in range(9)]
    for request in requests:
        deadlines.add(request, None)
    clock.sweep(9.05)
    assert ended(*requests) == [1, 1, 1, 1, 1, 1, 0, 0, 0]
    late = a_turn(8.6)
    deadlines.add(late, None)
    clock.sweep(9.26)
    assert ended(late, *requests[6:]) == [1, 1, 1, 0]


def test_sweeping_ends_when_nothing_is_watched_and_begins_anew() -> None:
    deadlines, clock = a_deadlines()
    request = a_turn(9.0)
    deadlines.add(request, None)
    deadlines.remove(request)
    clock.sweep(8.25)
    assert not deadlines.is_armed and clock.timers == [SWEEP_S]
    assert not deadlines._slots, "empty slots take memory too"
    deadlines.add(request, 1.0)
    assert deadlines.is_armed and clock.timers == [SWEEP_S] * 2
    clock.sweep(8.5)
    assert deadlines.is_armed and clock.timers == [SWEEP_S] * 3


def test_closed_deadlines_sweep_no_more() -> None:
    deadlines, clock = a_deadlines()
    deadlines.close()
    deadlines.add(a_turn(9.0), 1.0)
    assert not clock.timers and not clock.cancelled
    deadlines, clock = a_deadlines()
    deadlines.add(a_turn(9.0), 1.0)
    deadlines.close()
    assert clock.cancelled == 1


# --- the ends by a deadline -----------------------------------------------------------------------


def test_who_waits_is_ended_by_its_future_and_a_turn_by_its_task() -> None:
    waits, runs, neither = a_turn(1.0), a_turn(1.0), a_turn(1.0)
    waits.future, neither.task = Ends(), None
    expire([waits, runs, neither])
    assert (waits.future.count, waits.task.count, runs.task.count) == (1, 0, 1)
    assert waits.expired and runs.expired and not neither.expired


def test_what_is_done_or_was_ended_is_not_ended_again() -> None:
    done, expired = a_turn(1.0), a_turn(1.0)
    done.done = expired.expired = True
    expire([done, expired])
    assert ended(done, expired) == [0, 0] and not done.expired


def test_a_task_is_cancelled_once_for_its_outermost_turn() -> None:
    outer = a_turn(1.0)
    middle = a_turn(1.0, outer, outer.task)
    inner = a_turn(1.0, middle, outer.task)
    expire([inner, middle, outer])
    assert ended(outer) == [1]
    assert outer.expired and not middle.expired and not inner.expired


def test_a_turn_of_another_task_is_ended_beside_its_parent() -> None:
    outer = a_turn(1.0)
    child = a_turn(1.0, outer)
    expire([child, outer])
    assert ended(outer, child) == [1, 1]


def test_a_turn_whose_parent_has_ended_waits_for_nobody() -> None:
    outer = a_turn(1.0)
    child = a_turn(1.0, outer, outer.task)
    outer.expired = outer.done = True
    expire([child])
    assert child.expired and ended(child) == [1]


def test_a_turn_in_a_task_that_unwinds_is_watched_until_its_own_time_comes() -> None:
    deadlines, clock = a_deadlines()
    outer = a_turn(9.0)
    child = a_turn(9.0, outer, outer.task)
    deadlines.add(outer, None)
    deadlines.add(child, None)
    clock.sweep(9.0)
    assert ended(outer) == [1] and list(deadlines.iter_watched()) == [child]
    outer.done = True
    clock.sweep(9.5)
    assert ended(outer) == [2] and child.expired


# --- the budget ----------------------------------------------------------------------------------


def a_budget(slice_s: float = 0.1) -> tuple[Budget, Clock]:
    clock: Any = Clock()
    return Budget(clock, slice_s), clock


async def pause(budget: Budget) -> bool:
    """Pause, and return whether the pause yielded."""
    rounds = 0

    def goes_round() -> None:
        nonlocal rounds
        rounds += 1

    asyncio.get_running_loop().call_soon(goes_round)
    await budget.pause()
    return rounds > 0


async def test_every_turn_is_counted_and_the_last_of_them_looks_at_the_clock() -> None:
    budget, clock = a_budget()
    assert budget.left == TURNS_PER_LOOK_MAX
    for left in range(TURNS_PER_LOOK_MAX - 1, 0, -1):
        await budget.spend()
        assert budget.left == left and not clock.soon
    await budget.spend()
    assert budget.left == TURNS_PER_LOOK_MAX and len(clock.soon) == 1


async def test_a_run_yields_once_its_slice_is_over_and_not_before() -> None:
    budget, clock = a_budget()
    assert not await pause(budget)  # the loop has run since the last look, so a new run begins
    clock.now_s += 0.0625
    assert not await pause(budget)
    clock.now_s += 0.0625
    assert await pause(budget)
    assert len(clock.soon) == 1


async def test_a_run_begins_where_the_loop_went_round_last() -> None:
    budget, clock = a_budget()
    await budget.pause()
    clock.soon.pop()()
    clock.now_s += 1.0
    assert not await pause(budget)
    clock.now_s += 0.0625
    assert not await pause(budget)


async def test_a_slice_that_is_just_over_is_over() -> None:
    budget, clock = a_budget(slice_s=0.125)
    await budget.pause()
    clock.now_s += 0.125
    assert await pause(budget)


async def test_nobody_yields_while_the_loop_goes_round_by_itself() -> None:
    budget, clock = a_budget()
    for _ in range(3):
        clock.now_s += 1.0
        assert not await pause(budget)
        clock.soon.pop()()
    assert not clock.soon


@pytest.mark.parametrize(
    ("spent_s", "left"),
    [(0.0, 64), (0.05, 64), (0.1, 32), (0.8, 4), (3.2, 1), (99.0, 1)],
)
async def test_there_are_two_looks_in_a_slice_whatever_a_turn_costs(
    spent_s: float, left: int
) -> None:
    budget, clock = a_budget()
    await budget.pause()
    clock.now_s += spent_s
    await budget.pause()
    assert budget.left in (left, max(left - 1, 1))  # rounding of the clock
    size = budget.left
    for _ in range(size - 1):
        await budget.spend()
    assert budget.left == 1


async def test_what_a_turn_costs_is_taken_from_the_last_look() -> None:
    budget, clock = a_budget()
    await budget.pause()
    clock.now_s += 0.8
    await budget.pause()
    size = budget.left
    clock.now_s += 0.05  # half a slice for the same number of turns
    await budget.pause()
    assert budget.left in (size - 1, size)
    clock.soon.pop()()
    await budget.pause()
    assert budget.left in (size - 1, size), "a new run begins with what is known"


async def test_a_cancellation_from_before_is_raised_at_the_yield() -> None:
    done: list[str] = []

    async def runs() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await yield_once()
        done.append("went on")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(runs())
    assert not done


async def test_a_yield_lets_the_loop_go_round_once() -> None:
    task = asyncio.create_task(yield_once())
    await asyncio.sleep(0)
    assert not task.done()
    await asyncio.sleep(0)
    assert task.done()


async def test_a_cancellation_during_the_yield_is_raised_where_the_task_suspends_next() -> None:
    done: list[str] = []

    async def runs() -> None:
        await yield_once()
        done.append("kept")
        await asyncio.Event().wait()

    task = asyncio.create_task(runs())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["kept"] and task.cancelling() == 1
