from __future__ import annotations

import asyncio
from collections import deque

import hypothesis.strategies as st
import pytest
from hypothesis import given

from millstream.providers.memory.gate import CapacityGate
from millstream.runtime import ConfigError, Overloaded, QueueUnavailable


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def wait_for(gate: CapacityGate, count: int) -> asyncio.Task[None]:
    """Start a task that acquires, and let it begin."""
    task = asyncio.create_task(gate.acquire(count))
    await settle()
    return task


async def full_gate(capacity: int = 3) -> CapacityGate:
    gate = CapacityGate(capacity)
    await gate.acquire(capacity)
    return gate


async def test_gate_admits_whole_requests_in_order() -> None:
    gate = await full_gate()
    a, b = await wait_for(gate, 3), await wait_for(gate, 1)
    gate.release(1)
    await settle()
    assert not a.done() and not b.done()
    gate.release(2)
    await settle()
    assert a.done() and not b.done()
    gate.release(1)
    await settle()
    assert b.done()
    gate.check()


async def test_gate_lets_the_next_proceed_when_the_head_is_cancelled() -> None:
    gate = await full_gate()
    a, b = await wait_for(gate, 3), await wait_for(gate, 1)
    gate.release(1)
    await settle()
    a.cancel()
    await settle()
    assert a.cancelled() and b.done() and not b.cancelled()
    assert (gate.free, gate.waiting) == (0, 0)


async def test_gate_takes_back_what_it_gave_to_a_task_that_is_cancelled_before_it_runs() -> None:
    gate = await full_gate()
    a, b = await wait_for(gate, 3), await wait_for(gate, 1)
    gate.release(3)
    a.cancel()
    await settle()
    assert a.cancelled() and b.done()
    assert gate.free == 2


async def test_gate_keeps_the_order_when_one_in_the_middle_is_cancelled() -> None:
    gate = await full_gate()
    a, b, c = [await wait_for(gate, 1) for _ in range(3)]
    b.cancel()
    await settle()
    gate.release(1)
    await settle()
    assert a.done() and not c.done()
    gate.release(1)
    await settle()
    assert c.done()


async def test_who_gives_up_in_the_middle_is_counted_no_more() -> None:
    gate = await full_gate()
    tasks = [await wait_for(gate, count) for count in (3, 2, 1)]
    tasks[1].cancel()
    await settle()
    assert gate.waiting == 2
    gate.release(3)
    await tasks[0]
    gate.release(3)
    await tasks[2]
    assert (gate.waiting, gate.free) == (0, 2)


async def test_the_check_of_the_invariants_sees_one_who_waits_beside_free_room() -> None:
    gate = await full_gate()
    waits = await wait_for(gate, 2)
    gate.check()
    gate._free = 2
    with pytest.raises(AssertionError):
        gate.check()
    waits.cancel()


async def test_try_acquire_does_not_pass_one_who_waits() -> None:
    gate = await full_gate()
    waiting = await wait_for(gate, 3)
    gate.release(1)
    assert not gate.try_acquire(1)
    gate.release(2)
    await waiting
    gate.release(3)
    assert gate.try_acquire(3)
    assert not gate.try_acquire(1)


async def test_acquire_of_nothing_succeeds_though_others_wait() -> None:
    gate = await full_gate()
    waiting = await wait_for(gate, 1)
    await gate.acquire(0)
    assert gate.try_acquire(0)
    gate.release(1)
    await waiting


@pytest.mark.parametrize("count", [-1, 4])
async def test_gate_refuses_a_request_that_can_never_be_met(count: int) -> None:
    gate = CapacityGate(3)
    with pytest.raises(ValueError, match="capacity is 3"):
        await gate.acquire(count)
    with pytest.raises(ValueError, match="capacity is 3"):
        gate.try_acquire(count)
    assert gate.free == 3


@pytest.mark.parametrize("count", [-1, 2])
async def test_gate_refuses_a_release_of_more_than_is_taken(count: int) -> None:
    gate = CapacityGate(3)
    await gate.acquire(1)
    with pytest.raises(ValueError, match="1 units are taken"):
        gate.release(count)
    assert gate.free == 2


def test_gate_refuses_a_capacity_below_one() -> None:
    with pytest.raises(ConfigError):
        CapacityGate(0)


async def test_gate_refuses_more_waiters_than_waiters_max() -> None:
    gate = CapacityGate(1, waiters_max=2)
    await gate.acquire()
    first, second = await wait_for(gate, 1), await wait_for(gate, 1)
    with pytest.raises(Overloaded, match="waiters_max is 2"):
        await gate.acquire()
    first.cancel()
    await settle()
    third = await wait_for(gate, 1)
    gate.release()
    await second
    gate.release()
    await third


async def test_close_fails_those_who_wait_and_those_who_come() -> None:
    gate = await full_gate()
    waiting = [await wait_for(gate, 1) for _ in range(2)]
    gate.close("queue q is moving")
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [QueueUnavailable] * 2
    with pytest.raises(QueueUnavailable, match="queue q is moving"):
        await gate.acquire(0)
    gate.release(3)
    assert (gate.free, gate.waiting) == (3, 0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["acquire", "release", "cancel"]), st.integers(0, 4)), max_size=40
)


class GateModel:
    """The model of a gate: it admits the first waiting caller as soon as its count fits."""

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self.waiters: deque[tuple[int, int]] = deque()
        self.admitted: list[int] = []

    def admit(self) -> None:
        while self.waiters and self.waiters[0][1] <= self.free:
            name, count = self.waiters.popleft()
            self.free -= count
            self.admitted.append(name)


async def follow(steps: list[tuple[str, int]]) -> None:
    gate, model = CapacityGate(4), GateModel(4)
    tasks: list[asyncio.Task[None]] = []
    for step, number in steps:
        if step == "acquire":
            model.waiters.append((len(tasks), max(number, 1)))
            tasks.append(asyncio.create_task(gate.acquire(max(number, 1))))
        elif step == "release":
            count = min(number, 4 - model.free)
            model.free += count
            gate.release(count)
        elif model.waiters:
            name, _ = model.waiters[number % len(model.waiters)]
            model.waiters.remove(model.waiters[number % len(model.waiters)])
            tasks[name].cancel()
        await settle()
        model.admit()
        gate.check()
        done = [name for name, task in enumerate(tasks) if task.done() and not task.cancelled()]
        assert done == sorted(model.admitted)
        assert (gate.free, gate.waiting) == (model.free, len(model.waiters))
    for task in tasks:
        task.cancel()
    await settle()
    assert gate.waiting == 0
    assert gate.free == model.free


@given(STEPS)
def test_gate_behaves_as_a_line_of_requests(steps: list[tuple[str, int]]) -> None:
    asyncio.run(follow(steps))
