"""The time of a queue while its machine's clock is wrong, and after the correction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority import LeaseLost, QueueSettings, State
from millstream.providers.priority.store.clock import TOLERANCE_MS, QueueClock

DAY_S = 86_400.0
TEN_YEARS_S = 3_653 * DAY_S
STEP_MAX_MS = 366 * 86_400_000
START_MS = 1_700_000_000_000
LEASE = QueueSettings(lease_ms=60_000)


def readings(clock: QueueClock, walls: Sequence[int]) -> list[int]:
    """Read the queue's time once a second."""
    return [clock.read(wall_ms, at * 1_000) for at, wall_ms in enumerate(walls, 1)]


# -- the clock alone


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(-(10**12), 10**12)), max_size=30),
    st.sampled_from([0, START_MS]),
)
@settings(max_examples=examples(300))
def test_the_time_of_a_queue_rises_at_least_at_the_rate_of_real_time(
    steps: list[tuple[int, int]], stored_ms: int
) -> None:
    clock, wall_ms, monotonic_ms = QueueClock(stored_ms, 0, START_MS, 0, STEP_MAX_MS), START_MS, 0
    begun_ms = before_ms = clock.read(wall_ms, monotonic_ms)
    for passed_ms, step_ms in steps:
        wall_ms, monotonic_ms = wall_ms + passed_ms + step_ms, monotonic_ms + passed_ms
        now_ms = clock.read(wall_ms, monotonic_ms)
        assert now_ms >= before_ms
        assert now_ms - begun_ms >= monotonic_ms - TOLERANCE_MS * (len(steps) + 1)
        assert now_ms - before_ms <= passed_ms + STEP_MAX_MS
        assert clock.apart_ms in (0, now_ms - wall_ms)
        before_ms = now_ms


def test_a_clock_that_runs_right_is_followed_exactly() -> None:
    walls = [START_MS + at * 1_000 for at in range(9)]
    assert readings(QueueClock(START_MS - 5, 0, START_MS, 0, STEP_MAX_MS), walls) == walls


def test_a_step_is_followed_up_to_the_limit_and_no_further() -> None:
    for step_ms, is_followed in ((STEP_MAX_MS, True), (STEP_MAX_MS + 1, False)):
        clock = QueueClock(START_MS, 0, START_MS, 0, STEP_MAX_MS)
        wall_ms = START_MS + 7 + step_ms
        assert clock.read(wall_ms, 7) == (wall_ms if is_followed else START_MS + 7)
        assert (clock.step_ms, clock.apart_ms) == ((step_ms, 0) if is_followed else (0, -step_ms))


def test_a_clock_that_is_a_little_behind_is_waited_for_and_one_that_is_far_behind_is_not() -> None:
    clock = QueueClock(START_MS, 0, START_MS, 0, STEP_MAX_MS)
    assert clock.read(START_MS - TOLERANCE_MS, 0) == START_MS
    assert clock.read(START_MS - TOLERANCE_MS + 1, 1) == START_MS, "it stands still"
    assert (clock.apart_ms, clock.step_ms) == (0, 0)
    assert clock.read(START_MS - 2 * TOLERANCE_MS, 5) == START_MS + 4
    assert clock.apart_ms == 2 * TOLERANCE_MS + 4


def test_an_opened_clock_has_read_both_clocks_and_keeps_what_it_found() -> None:
    clock = QueueClock(START_MS, 0, START_MS - 9_000, 50, STEP_MAX_MS)
    assert (clock.apart_ms, clock.step_ms) == (9_000, 0)
    assert clock.read(START_MS - 9_000 + 10, 60) == START_MS + 10
    assert clock.read(START_MS - 9_000 + 10, 55) == START_MS + 10, "no clock goes back"
    assert clock.read(START_MS + 20_000, 60) == START_MS + 20_000
    assert (clock.apart_ms, clock.step_ms) == (0, 20_000 - 10 - 5)
    assert clock.read(START_MS + 20_000, 60) == START_MS + 20_000
    assert (clock.apart_ms, clock.step_ms) == (0, 0)
    clock.read(START_MS, 60)
    assert (clock.apart_ms, clock.step_ms) == (20_000, 0)
    clock.reset(START_MS - 5, 61)
    assert clock.apart_ms == 0
    assert clock.read(START_MS - 5, 61) == START_MS - 5
    assert clock.read(START_MS + 5, 61) == START_MS + 5


def test_a_queue_whose_time_is_a_millisecond_after_the_epoch_is_not_new() -> None:
    assert QueueClock(1, 0, 1_000, 0, 10).read(1_000, 0) == 1


def test_a_new_queue_takes_the_time_of_its_machine_whatever_it_is() -> None:
    assert QueueClock(0, 0, START_MS, 5, 1).read(START_MS, 5) == START_MS


@pytest.mark.parametrize("ahead_ms", [-5_000, 5_000, STEP_MAX_MS])
def test_time_without_an_owner_counts_while_both_are_apart(ahead_ms: int) -> None:
    clock = QueueClock(START_MS + ahead_ms, ahead_ms, START_MS + 700, 0, 1)
    assert clock.read(START_MS + 700, 0) == START_MS + ahead_ms, "more time than may be followed"
    clock = QueueClock(START_MS + ahead_ms, ahead_ms, START_MS + 700, 0, STEP_MAX_MS)
    assert clock.read(START_MS + 700, 0) == START_MS + 700 + max(ahead_ms, 0)


def test_time_without_an_owner_counts_up_to_the_limit_and_no_further() -> None:
    ahead_ms = 5_000
    for passed_ms, is_counted in ((STEP_MAX_MS, True), (STEP_MAX_MS + 1, False)):
        wall_ms = START_MS - ahead_ms + passed_ms
        clock = QueueClock(START_MS, ahead_ms, wall_ms, 0, STEP_MAX_MS)
        assert clock.read(wall_ms, 0) == wall_ms + (ahead_ms if is_counted else 0)
        assert clock.apart_ms == (ahead_ms if is_counted else 0)


# -- a wrong clock in a cluster


async def lease_of(rig: Rig) -> None:
    """Enqueue and lease one message as a program that then does nothing more."""
    queue = rig.queue()
    await queue.create(LEASE)
    await queue.enqueue(b"film", id="film", priority=1)
    assert await queue.dequeue(worker="w")


@pytest.mark.parametrize("step_s", [TEN_YEARS_S, 100 * DAY_S, 3_600.0])
def test_leases_end_in_time_after_one_operation_at_a_wrong_clock(step_s: float) -> None:
    async def main(rig: Rig) -> None:
        await rig.on("client", lease_of(rig))
        rig.step(step_s)
        await rig.on("client", rig.queue().enqueue(b"", id="other", priority=2))
        rig.step(-step_s)
        await asyncio.sleep(61.0)
        depth = await rig.on("client", rig.queue().depth())
        assert depth[State.RUNNING] == 0 and depth[State.PENDING] == 2

    in_cluster(main)


def test_a_step_that_is_not_followed_ends_no_lease_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(rig: Rig) -> None:
        await rig.on("client", lease_of(rig))
        rig.step(TEN_YEARS_S)
        depth = await rig.on("client", rig.queue().depth())
        assert depth[State.RUNNING] == 1
        [reading] = await rig.on("client", rig.queue().clocks())
        assert TEN_YEARS_S - 9 < (reading.machine_ms - reading.queue_ms) / 1_000 <= TEN_YEARS_S

    with caplog.at_level(logging.INFO, "millstream.priority"):
        in_cluster(main, is_operator=True)
    [told] = [
        one.getMessage() for one in caplog.records if "this machine's clock" in one.getMessage()
    ]
    assert "'q'" in told and "behind" in told and "pq clock QUEUE --reset" in told


def test_a_queue_that_was_ahead_as_it_was_stored_goes_on_and_a_reset_brings_it_back() -> None:
    async def main(rig: Rig) -> None:
        rig.step(TEN_YEARS_S)
        await rig.on("client", lease_of(rig))
        owner = rig.owner_of()
        rig.step(-TEN_YEARS_S)
        await rig.cluster.stop_silo(owner)
        queue = rig.queue()
        await asyncio.sleep(55.0)
        assert (await rig.on("client", queue.depth()))[State.RUNNING] == 1
        [reading] = await rig.on("client", queue.clocks())
        assert TEN_YEARS_S - 99 < (reading.queue_ms - reading.machine_ms) / 1_000
        [reading] = await rig.on("client", queue.reset_clocks())
        assert reading.queue_ms == reading.machine_ms
        view = await rig.on("client", queue.get("film"))
        assert 0 < view.due_ms - reading.queue_ms <= 60_000
        await asyncio.sleep(61.0)
        assert (await rig.on("client", queue.depth()))[State.RUNNING] == 0
        assert (await rig.on("client", queue.clocks()))[0].queue_ms < reading.queue_ms + 99_000

    in_cluster(main, is_operator=True)


def test_a_queue_that_nobody_owns_is_woken_though_its_time_is_ahead() -> None:
    async def main(rig: Rig) -> None:
        rig.step(TEN_YEARS_S)
        queue = rig.queue()
        await rig.on("client", lease_of(rig))
        rig.step(-TEN_YEARS_S)
        await rig.on("client", queue.enqueue(b"", id="other", priority=9))
        await rig.cluster.stop_silo(rig.owner_of())
        await asyncio.sleep(70.0)  # no program uses the queue
        assert rig.stored()["film"].state == State.PENDING

    in_cluster(main)


def test_a_deleted_queue_leaves_its_time_behind_and_keeps_its_tokens() -> None:
    async def main(rig: Rig) -> None:
        rig.step(TEN_YEARS_S)
        queue = rig.queue()
        await rig.on("client", queue.create(LEASE))
        await rig.on("client", queue.enqueue(b"", id="film", priority=1))
        [first] = await rig.on("client", queue.dequeue(worker="w"))
        rig.step(-TEN_YEARS_S)
        await rig.on("client", queue.delete())
        await rig.on("client", lease_of(rig))
        [reading] = await rig.on("client", queue.clocks())
        assert abs(reading.queue_ms - reading.machine_ms) < 1_000
        token = (await rig.on("client", queue.get("film"))).token
        assert token is not None and token > first.token
        with pytest.raises(LeaseLost):
            await rig.on("client", first.complete())

    in_cluster(main, is_operator=True)
