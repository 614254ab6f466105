"""Durable jobs in a cluster: due times, attempts, results, cancellation, crashes and limits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.providers.priority.job_world import (
    Basket,
    Order,
    OrderCalls,
    SoldOut,
    World,
    in_world,
)

from millstream.providers.priority import (
    MessageNotFound,
    PriorityQueueFull,
    PriorityQueueNotFound,
    PriorityQueues,
    State,
    priority_queue,
)
from millstream.providers.priority.jobs import (
    JOB_ATTEMPT_HEADER,
    JOB_ID_HEADER,
    Job,
    JobCancelled,
    JobFailed,
    JobOptions,
    JobResultTooLarge,
    JobRetry,
    Jobs,
    JobsOf,
    JobState,
    JobTimeout,
    JobUnknown,
    job_of,
    schedule,
)
from millstream.runtime import (
    CallFilters,
    CallTimeout,
    ConfigError,
    Contract,
    Grain,
    GrainCall,
    NotInCluster,
    Observer,
    Overloaded,
    Proceed,
    Silo,
    SiloUnavailable,
    grain,
    is_reference,
    with_options,
)
from millstream.runtime.testing import grain_of

LEASE_S = 6.0
SHORT = JobOptions(lease_s=LEASE_S)
SLACK_S = 0.2


# -- due times


def test_a_job_runs_when_its_delay_is_over_and_returns_the_result() -> None:
    async def main(world: World) -> None:
        start_s = world.now_s
        job = await world.after(30.0)
        status = await job.status()
        assert (status.state, status.attempts) == (JobState.SCHEDULED, 0)
        assert await job.result() == 10
        (ran,) = world.notes.ran
        assert 30.0 <= ran.at_s - start_s < 30.0 + SLACK_S
        status = await job.status()
        assert (status.state, status.attempts, status.error) == (JobState.SUCCEEDED, 1, "")

    in_world(main)


def test_a_job_runs_at_its_datetime_by_the_clock_of_the_queue() -> None:
    async def main(world: World) -> None:
        now_s = world.simulation.env(world.simulation.host("queues")).wall_s()
        due = datetime.fromtimestamp(now_s, UTC) + timedelta(seconds=20)
        job = await schedule(world.client, due, world.order().charge, 5)
        start_s = world.now_s
        assert await job.result() == 10
        assert 20.0 - 1.0 < world.notes.ran[0].at_s - start_s < 20.0 + 1.0  # the clocks differ
        found = (await job.status()).due
        assert found is not None and abs(found - due) < timedelta(milliseconds=1)

    in_world(main)


@pytest.mark.parametrize("due", [datetime(1969, 1, 1, tzinfo=UTC), timedelta(0)])
def test_a_job_whose_time_has_passed_runs_at_once(due: Any) -> None:
    async def main(world: World) -> None:
        await asyncio.sleep(1.0)
        job = await schedule(world.client, due, world.order().charge, 5)
        start_s = world.now_s
        await job.result()
        assert world.notes.ran[0].at_s - start_s < SLACK_S

    in_world(main)


def test_a_due_time_is_rounded_up_to_a_millisecond_and_has_any_zone() -> None:
    async def main(world: World) -> None:
        there = datetime(2033, 10, 1, 12, 0, 0, 1, tzinfo=timezone(timedelta(hours=5)))
        whole = datetime(2033, 10, 1, 7, tzinfo=UTC)
        for due, ms in ((there, 1), (whole, 0), (whole + timedelta(microseconds=999), 1)):
            job = await schedule(world.client, due, world.order().charge, 5)
            assert (await job.status()).due == whole + timedelta(milliseconds=ms)
        start_s = world.now_s
        late = await schedule(world.client, timedelta(microseconds=700_001), world.order().forget)
        await late.result()
        found = await world.queue().get(late.id)
        assert found.priority - found.created_ms == 701 and world.now_s - start_s > 0.701

    in_world(main)


def test_jobs_run_in_the_order_of_their_due_times() -> None:
    async def main(world: World) -> None:
        jobs = [await world.after(delay_s, int(delay_s)) for delay_s in (9.0, 3.0, 6.0)]
        for job in jobs:
            await job.result()
        assert [ran.value for ran in world.notes.ran] == [3, 6, 9]

    in_world(main)


def test_of_late_jobs_the_one_that_was_due_first_runs_first() -> None:
    async def main(world: World) -> None:
        row = await world.queue().settings()
        await world.queue().configure(replace(row.settings, dequeue_blocked=True))
        jobs = [await world.after(delay_s, int(delay_s)) for delay_s in (3.0, 1.0, 2.0)]
        await asyncio.sleep(10.0)
        assert not world.notes.ran
        await world.queue().configure(row.settings)
        for job in jobs:
            await job.result()
        assert [ran.value for ran in world.notes.ran] == [1, 2, 3]

    in_world(main, silos=1, options=JobOptions(running_max=1))


# -- the call


def test_a_job_has_arguments_by_name_headers_and_its_id() -> None:
    async def main(world: World) -> None:
        order = with_options(world.order(), headers={"a": "1"}, flowing_headers={"trace": "17"})
        job = await schedule(world.client, timedelta(0), order.charge, 5, wait_s=0.5, note="x")
        assert await job.result() == 10
        headers = {JOB_ID_HEADER: job.id, JOB_ATTEMPT_HEADER: "1", "a": "1", "trace": "17"}
        assert world.notes.ran[0].headers == headers

    in_world(main)


def test_a_result_may_be_a_reference_or_nothing() -> None:
    async def main(world: World) -> None:
        partner = await schedule(world.client, timedelta(0), world.order().partner)
        found = await partner.result()
        assert is_reference(found) and str(found) == "Order/tea's partner"
        assert await found.charge(1) == 2
        nothing = await schedule(world.client, timedelta(0), world.order().forget)
        assert repr(await asyncio.gather(nothing.result())) == "[None]"
        with pytest.raises(MessageNotFound):
            await world.queue("job/results").get(nothing.id)  # None needs no message

    in_world(main)


def test_call_filters_see_the_call_of_a_job() -> None:
    seen: list[str] = []

    async def incoming(call: GrainCall, proceed: Proceed) -> object:
        seen.append(f"in {call.grain_id}.{call.method} {call.headers.get(JOB_ATTEMPT_HEADER)}")
        return await proceed()

    async def outgoing(call: GrainCall, proceed: Proceed) -> object:
        seen.append(f"out {call.grain_id}.{call.method} {call.headers.get(JOB_ATTEMPT_HEADER)}")
        return await proceed()

    async def main(world: World) -> None:
        await (await world.after(1.0)).result()

    in_world(main, filters=CallFilters(incoming=[incoming], outgoing=[outgoing]))
    assert seen == ["out Order/tea.charge 1", "in Order/tea.charge 1"]


def test_a_grain_schedules_a_job_and_another_program_waits_for_it() -> None:
    async def main(world: World) -> None:
        id = await world.order().plan(3.0)
        assert await job_of(world.client, id, world.order("any").charge).result() == 14
        assert world.notes.ran[0].headers[JOB_ID_HEADER] == id

        async def in_a_silo(silo: Silo) -> int:
            return await job_of(silo, id, silo.grain(Order, "x").charge).result()

        assert await world.on("silo-0", in_a_silo(world.silo("silo-0"))) == 14

    in_world(main)


def test_the_deadline_of_the_reference_applies_to_each_attempt() -> None:
    async def main(world: World) -> None:
        order = with_options(world.order(), timeout=0.5)
        job = await schedule(world.client, timedelta(0), order.charge, 5, 30.0)
        with pytest.raises(CallTimeout):
            await job.result()
        first, second = world.notes.ran
        assert second.at_s - first.at_s == pytest.approx(0.5 + 2.0, abs=SLACK_S)
        assert not world.notes.ended
        hanging = await schedule(world.client, timedelta(0), world.order("b").hang)
        with pytest.raises(CallTimeout):
            await hanging.result(10.0)

    in_world(main, retry=JobRetry(attempts=2))


# -- attempts


def test_a_method_that_fails_runs_again_after_2_4_8_and_16_seconds() -> None:
    async def main(world: World) -> None:
        world.notes.errors = [SoldOut(f"attempt {n}") for n in range(1, 6)]
        job = await world.after(1.0)
        await asyncio.sleep(2.0)
        status = await job.status()
        assert (status.state, status.attempts) == (JobState.SCHEDULED, 1)
        assert status.error.endswith("SoldOut: attempt 1")
        with pytest.raises(SoldOut, match="attempt 5") as found:
            await job.result()
        assert "in charge" in str(found.value.__notes__)
        assert "runner.py" not in str(found.value.__notes__)
        times_s = [ran.at_s for ran in world.notes.ran]
        waits_s = [b - a for a, b in pairwise(times_s)]
        assert waits_s == pytest.approx([2.0, 4.0, 8.0, 16.0], abs=SLACK_S)
        attempts = [ran.headers[JOB_ATTEMPT_HEADER] for ran in world.notes.ran]
        assert attempts == ["1", "2", "3", "4", "5"]
        assert {ran.headers[JOB_ID_HEADER] for ran in world.notes.ran} == {job.id}
        status = await job.status()
        assert (status.state, status.attempts) == (JobState.FAILED, 5)
        assert status.error.endswith("SoldOut: attempt 5")
        await asyncio.sleep(120.0)
        assert len(world.notes.ran) == 5

    in_world(main)


def test_a_method_that_succeeds_at_last_has_succeeded() -> None:
    async def main(world: World) -> None:
        world.notes.errors = [SoldOut("x"), SoldOut("y")]
        job = await world.after(1.0)
        assert await job.result() == 10
        status = await job.status()
        assert (status.state, status.attempts, status.error) == (JobState.SUCCEEDED, 3, "")

    in_world(main)


@pytest.mark.parametrize(
    "error",
    [Overloaded("busy", "x", 1), SiloUnavailable("gone", may_have_run=False), NotInCluster("x")],
    ids=lambda one: type(one).__name__,
)
def test_a_refused_call_is_no_attempt(error: Exception) -> None:
    async def main(world: World) -> None:
        world.notes.errors = [error] * 4
        job = await world.after(1.0)
        await asyncio.sleep(4.0)
        status = await job.status()
        assert (status.state, status.attempts) == (JobState.SCHEDULED, 0)
        assert await job.result() == 10
        assert (await job.status()).attempts == 1
        times_s = [ran.at_s for ran in world.notes.ran]
        assert times_s[-1] - times_s[0] == pytest.approx(4 * 3.0, abs=SLACK_S)
        assert {ran.headers[JOB_ATTEMPT_HEADER] for ran in world.notes.ran} == {"1"}

    in_world(main, retry=JobRetry(attempts=2, refused_delay_s=3.0))


def test_a_job_that_is_refused_for_too_long_fails() -> None:
    async def main(world: World) -> None:
        world.notes.errors = [Overloaded("busy", "x", 1)] * 100
        job = await world.after(1.0)
        with pytest.raises(Overloaded):
            await job.result(120.0)
        assert 30.0 < world.notes.ran[-1].at_s - world.notes.ran[0].at_s < 40.0

    in_world(main, retry=JobRetry(attempts=2, refused_delay_s=3.0, refused_for_s=30.0))


# -- the handle


def test_a_cancelled_job_does_not_run() -> None:
    async def main(world: World) -> None:
        job = await world.after(5.0)
        assert await job.cancel() is True and await job.cancel() is True
        assert (await job.status()).state is JobState.CANCELLED
        with pytest.raises(JobCancelled):
            await job.result()
        await asyncio.sleep(60.0)
        assert not world.notes.ran

    in_world(main)


def test_a_running_job_is_not_interrupted_by_its_cancellation() -> None:
    async def main(world: World) -> None:
        job = await schedule(world.client, timedelta(0), world.order().long, 40.0)
        await asyncio.sleep(1.0)
        assert (await job.status()).state is JobState.RUNNING
        assert await job.cancel() is False
        assert await job.result() == 2
        assert await job.cancel() is False
        assert len(world.notes.ran) == 1 and world.notes.ended == ["tea"]

    in_world(main, options=SHORT)


def test_a_job_that_waits_for_its_next_attempt_can_be_cancelled() -> None:
    async def main(world: World) -> None:
        world.notes.errors = [SoldOut("x")]
        job = await world.after(0.0)
        await asyncio.sleep(1.0)
        assert await job.cancel() is True
        await asyncio.sleep(60.0)
        assert len(world.notes.ran) == 1

    in_world(main)


def test_a_program_that_waits_too_short_is_told_so() -> None:
    async def main(world: World) -> None:
        job = await world.after(5.0)
        start_s = world.now_s
        with pytest.raises(JobTimeout, match="not finished within 2 seconds") as found:
            await job.result(2.0)
        assert world.now_s - start_s == pytest.approx(2.0, abs=SLACK_S)
        assert found.value.job_id == job.id and isinstance(found.value, TimeoutError)
        with pytest.raises(JobTimeout):
            await job.result(0)
        for wrong in (-1.0, float("nan"), float("inf"), "5", True):
            with pytest.raises(ConfigError, match="finite number of seconds"):
                await job.result(wrong)  # type: ignore[arg-type]
        assert await job.result(60.0) == 10

    in_world(main)


def test_an_unknown_job_has_no_result() -> None:
    async def main(world: World) -> None:
        job: Job[int] = job_of(world.client, "nobody", world.order().charge)
        assert (await job.status()).state is JobState.UNKNOWN
        assert await job.cancel() is False
        with pytest.raises(JobUnknown, match="'nobody'"):
            await job.result()
        with pytest.raises(TypeError, match=r"Job\.id"):
            job_of(world.client, 5)  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match=r"Job\.id"):
            job_of(world.client, "")

    in_world(main)


def test_a_handle_needs_the_method_of_the_same_type_for_the_result() -> None:
    async def main(world: World) -> None:
        job = await world.after(0.0)
        await job.result()
        plain = job_of(world.client, job.id)
        assert (await plain.status()).state is JobState.SUCCEEDED
        with pytest.raises(ConfigError, match="write job_of"):
            await plain.result()
        wrong = job_of(world.client, job.id, world.client.grain(Basket, "x").empty)
        with pytest.raises(ConfigError, match="of type 'Order', not 'Basket'"):
            await wrong.result()

    in_world(main)


def test_a_result_is_kept_for_a_time_and_then_deleted() -> None:
    async def main(world: World) -> None:
        job = await world.after(0.0)
        assert await job.result() == 10
        await asyncio.sleep(50.0)
        assert await job.result() == 10
        await asyncio.sleep(20.0)
        assert (await job.status()).state is JobState.UNKNOWN
        with pytest.raises(JobUnknown):
            await job.result()
        await asyncio.sleep(100.0)
        assert sum((await world.queue("job/results").depth()).values()) == 0
        assert sum((await world.queue().depth()).values()) == 0

    in_world(main, options=JobOptions(kept_s=60.0))


def test_a_result_above_the_limit_is_not_kept() -> None:
    async def main(world: World) -> None:
        good = await schedule(world.client, timedelta(0), world.order().large, 90)
        assert await good.result() == b"x" * 90
        job = await schedule(world.client, timedelta(0), world.order().large, 1_000)
        with pytest.raises(JobResultTooLarge, match="1003 bytes"):
            await job.result()
        assert (await job.status()).state is JobState.SUCCEEDED
        world.notes.errors = [SoldOut("x" * 2_000)]
        failing = await world.after(0.0)
        with pytest.raises(JobFailed, match="SoldOut: x"):
            await failing.result()
        assert len((await failing.status()).error.encode()) <= 1_024

    in_world(main, options=JobOptions(result_bytes_max=100), retry=JobRetry(attempts=1))


# -- refusals


WRONG: list[tuple[object, str]] = [
    (datetime(2026, 10, 1), "has no time zone: write datetime"),
    (timedelta(milliseconds=-1), "is not negative"),
    (timedelta(days=4_000), "at most 3,660 days ahead"),
    (timedelta.max, "at most 3,660 days ahead"),
    (datetime(9_999, 1, 1, tzinfo=UTC), "at most 3,660 days ahead"),
    (5.0, "write a datetime with a time zone, or a timedelta"),
    (float("inf"), "write a datetime with a time zone, or a timedelta"),
    ("2026-10-01", "write a datetime with a time zone, or a timedelta"),
    (None, "write a datetime with a time zone, or a timedelta"),
]


class Watcher(Observer):
    async def see(self) -> None:
        """Nothing."""


def test_a_call_that_cannot_be_a_job_is_refused_at_once() -> None:
    async def main(world: World) -> None:
        order, later = world.order(), timedelta(hours=1)

        async def refused(text: str, *call: Any, error: type[Exception] = TypeError) -> None:
            with pytest.raises(error, match=text):
                await schedule(world.client, later, *call)

        await refused("no method of a reference: pass a method", print)
        await refused("no method of a reference", Order.charge, 5)
        await refused("no method of a reference", Order().charge, 5)
        await refused("called already", order.charge(5))
        await refused("missing a required argument: 'cents'", order.charge)
        await refused("too many positional", order.charge, 1, 2.0, 3)
        await refused("argument `cents`", order.charge, "5")
        await refused("is one-way", order.tell, error=ConfigError)
        await refused("yields results", order.rows, error=ConfigError)
        calls = world.client.grain(OrderCalls, "tea")
        await refused("yields results", calls.rows, error=ConfigError)
        await refused("closed to clients", order.rule, error=ConfigError)
        many = {f"h{number}": "" for number in range(99)}
        full = with_options(order, headers=many)
        await refused("101 headers", full.charge, 5, error=ConfigError)
        async with world.client.observe(Watcher()) as watcher:
            await refused("cannot call an observer", watcher.see, error=ConfigError)
        for due, text in WRONG:
            with pytest.raises(ConfigError, match=text):
                await schedule(world.client, due, order.charge, 5)  # type: ignore[arg-type]
        large = with_options(order, headers={"x": "y" * 33_000})
        with pytest.raises(ConfigError, match=r"too large.*JobOptions\.arguments_bytes_max"):
            await schedule(world.client, later, large.charge, 5)
        assert sum((await world.queue().depth()).values()) == 0

    in_world(main)


def test_the_number_of_jobs_has_a_limit() -> None:
    async def main(world: World) -> None:
        for _ in range(3):
            await world.after(60.0)
        with pytest.raises(PriorityQueueFull, match="messages_max is 3"):
            await world.after(60.0)

    in_world(main, options=JobOptions(jobs_max=3))


def test_a_cluster_without_the_part_names_the_part_to_add() -> None:
    async def main(world: World) -> None:
        start_s = world.now_s
        with pytest.raises(ConfigError, match=r'"jobs": Jobs\(\)'):
            await world.after(1.0)
        assert world.now_s - start_s < 11.0
        with pytest.raises(ConfigError, match=r'"jobs": Jobs\(\)'):
            await job_of(world.client, "x").status()

        async def in_a_silo(silo: Silo) -> None:
            order = silo.grain(Order, "tea")
            with pytest.raises(ConfigError, match="this silo has no part 'jobs'"):
                await schedule(silo, timedelta(0), order.charge, 5)

        await world.on("silo-0", in_a_silo(world.silo("silo-0")))

    in_world(main, parts=lambda world: {"priority": lambda: PriorityQueues(world.store)})
    in_world(main, parts=lambda world: {})


@pytest.mark.parametrize("name", ["jobs", "works"])
async def test_a_silo_that_lacks_queues_or_names_the_part_otherwise_does_not_start(
    name: str,
) -> None:
    text = "no part 'priority'" if name == "jobs" else "must have the name 'jobs'"
    with pytest.raises(ConfigError, match=text):
        async with Silo(grains=[Order], parts={name: Jobs()}):
            pass
    with pytest.raises(ConfigError, match="JobRetry"):
        Jobs(retry=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="JobOptions"):
        Jobs(options=JobRetry())  # type: ignore[arg-type]


def test_use_does_not_create_the_queues_of_jobs() -> None:
    async def main(world: World) -> None:
        with pytest.raises(PriorityQueueNotFound):
            await priority_queue(world.client, "job/calls").enqueue(b"")

    in_world(main, parts=lambda world: {"priority": lambda: PriorityQueues(world.store)})


class FakeJobs:
    """Notes the jobs that a grain schedules in a unit test."""

    def __init__(self) -> None:
        self.scheduled: list[tuple[object, ...]] = []

    async def schedule(self, due: object, method: Any, args: Any, kwargs: Any) -> Any:
        self.scheduled.append((due, method.__self__, method.__name__, args, kwargs))
        return SimpleNamespace(id="job-1")


async def test_a_unit_test_of_a_grain_replaces_the_jobs_by_a_fake() -> None:
    jobs, other = FakeJobs(), grain_of(Order, "other")
    fakes: Any = {"grains": {(Order, "tea"): other}, "streams": {(JobsOf(), ""): jobs}}
    assert await grain_of(Order, "tea", **fakes).plan(5.0) == "job-1"
    assert jobs.scheduled == [(timedelta(seconds=5), other, "charge", (7,), {})]


# -- silos


def test_at_most_running_max_jobs_of_a_silo_run() -> None:
    async def main(world: World) -> None:
        jobs = [
            await schedule(world.client, timedelta(seconds=1), world.order(f"{n}").charge, n, 1.0)
            for n in range(20)
        ]
        for n, job in enumerate(jobs):
            assert await job.result() == n * 2
        assert world.notes.most == 3 and len(world.notes.ran) == 20
        for job in jobs:
            assert (await job.status()).attempts == 1

    in_world(main, silos=1, options=JobOptions(running_max=3))


def test_jobs_of_other_types_run_while_one_type_has_none() -> None:
    async def main(world: World) -> None:
        for key in ("a", "b"):
            start_s = world.now_s
            basket = world.client.grain(Basket, key)
            await (await schedule(world.client, timedelta(0), basket.empty)).result()
            await (await world.after(0.0)).result()
            assert world.now_s - start_s < 1.0

    in_world(main, silos=1, options=JobOptions(running_max=1))


def test_a_leased_job_without_room_is_released_and_the_attempt_does_not_count() -> None:
    """The polls of both grain types wait when the first job takes the only place."""

    async def main(world: World) -> None:
        await asyncio.sleep(5.0)
        start_s = world.now_s
        first = await schedule(world.client, timedelta(0), world.order().charge, 5, 3.0)
        await asyncio.sleep(0.5)
        second = await schedule(world.client, timedelta(0), world.client.grain(Basket, "b").empty)
        await second.result()
        assert world.now_s - start_s > 3.0 and await first.result() == 10
        assert (await second.status()).attempts == 1

    in_world(main, silos=1, options=JobOptions(running_max=1))


def test_a_client_cannot_let_a_silo_call_a_grain_of_the_runtime() -> None:
    """A silo may call the owner of a queue; a client that writes into the queue of jobs may not."""

    async def main(world: World) -> None:
        kind = "millstream.PriorityQueue.priority"
        row = msgspec.msgpack.encode([kind, "job/calls", "wake", b"\x90"])
        await world.queue().enqueue(row, id="bad", metadata={"type": kind, "call": "x"})
        await asyncio.sleep(60.0)
        found = await world.queue().get("bad")
        assert found.state is State.PENDING and found.token is None

    in_world(main)


def test_silos_must_agree_on_the_values_that_are_stored_with_jobs() -> None:
    def agreed(**values: Any) -> object:
        return Jobs(**values).agreement()

    assert agreed() == agreed(options=JobOptions(running_max=5, drain_s=1.0))
    assert agreed() != agreed(options=JobOptions(lease_s=5.0))
    assert agreed() != agreed(retry=JobRetry(attempts=3))


def test_a_job_runs_in_a_cluster_in_which_one_silo_hosts_its_type() -> None:
    async def main(world: World) -> None:
        for _ in range(5):
            basket = world.client.grain(Basket, "b")
            job = await schedule(world.client, timedelta(0), basket.empty)
            assert world.host_of(await job.result()) == "silo-1"

    in_world(main, silos=3, lacking={"silo-0": [Basket], "silo-2": [Basket]})


class Lonely(Grain):
    """A grain that no silo hosts."""

    async def wait(self) -> int:
        return 1


def test_a_job_of_a_type_that_no_silo_hosts_waits_and_can_be_cancelled() -> None:
    async def main(world: World) -> None:
        job = await schedule(world.client, timedelta(0), world.client.grain(Lonely, "a").wait)
        await asyncio.sleep(60.0)
        status = await job.status()
        assert (status.state, status.attempts) == (JobState.SCHEDULED, 0)
        assert await job.cancel() is True

    in_world(main)


def crash_when_it_runs(world: World) -> Any:
    """Crash the silo that has the lease of the only running job; return its host."""

    async def crash(job: Job[Any]) -> str:
        while (await job.status()).state is not JobState.RUNNING:
            await asyncio.sleep(0.05)
        host = world.host_of((await world.queue().get(job.id)).worker)
        world.simulation.crash(host)
        return host

    return crash


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_job_whose_silo_crashed_is_late_by_at_most_a_lease(seed: int) -> None:
    async def main(world: World) -> None:
        job = await schedule(world.client, timedelta(seconds=1), world.order().long, 1.5)
        host = await crash_when_it_runs(world)(job)
        crashed_s = world.now_s
        assert await job.result(120.0) == 2
        assert (await job.status()).attempts == 2
        last = world.notes.ran[-1]
        assert last.at_s > crashed_s and host in world.cluster.names
        assert last.at_s - crashed_s < max(LEASE_S, DETECTED_S) + 1.0

    in_world(main, silos=3, options=SHORT, seed=seed)


DETECTED_S = 12.0
"""A crash is detected, and the queue and the grain have a new silo."""


def test_a_job_that_crashes_each_silo_fails_in_the_end() -> None:
    async def main(world: World) -> None:
        job = await schedule(world.client, timedelta(0), world.order().long, 30.0)
        for _ in range(2):
            await crash_when_it_runs(world)(job)
            await asyncio.sleep(LEASE_S)
        with pytest.raises(JobFailed, match="crashed"):
            await job.result(120.0)
        status = await job.status()
        assert (status.state, status.attempts) == (JobState.FAILED, 2)

    in_world(main, silos=4, options=SHORT, retry=JobRetry(attempts=2))


def test_a_job_whose_result_is_stored_is_completed_without_another_run() -> None:
    """The first silo stored the result, and crashed before it completed the job."""

    async def main(world: World) -> None:
        job = await world.after(5.0)
        results = world.queue("job/results")
        outcome = msgspec.msgpack.encode([1, msgspec.msgpack.encode(77)])
        await results.enqueue(outcome, id=job.id, priority=0, invisible_s=600.0)
        world.notes.errors = [SoldOut("x")]
        assert await job.result() == 77
        assert len(world.notes.ran) == 1 and (await job.status()).attempts == 2

    in_world(main)


def test_a_program_refuses_a_result_above_its_own_limit() -> None:
    async def main(world: World) -> None:
        job = await world.after(5.0)
        results = world.queue("job/results")
        row = await results.settings()
        await results.configure(replace(row.settings, payload_bytes_max=4 << 20))
        outcome = msgspec.msgpack.encode([1, msgspec.msgpack.encode("x" * (1 << 20) + "y" * 99)])
        await results.enqueue(outcome, id=job.id, priority=0, invisible_s=600.0)
        with pytest.raises(JobResultTooLarge, match="bytes"):
            await job.result()

    in_world(main)


def test_the_first_stored_result_of_a_job_stays() -> None:
    async def main(world: World) -> None:
        job = await world.after(5.0)
        outcome = msgspec.msgpack.encode([1, msgspec.msgpack.encode(77)])
        results = world.queue("job/results")
        await results.enqueue(outcome, id=job.id, priority=0, invisible_s=600.0)
        assert await job.result() == 77 and await job.result() == 77
        assert len(world.notes.ran) == 1

    in_world(main)


def test_a_job_longer_than_its_lease_runs_once() -> None:
    async def main(world: World) -> None:
        job = await schedule(world.client, timedelta(0), world.order().long, 60.0)
        assert await job.result(90.0) == 2
        assert len(world.notes.ran) == 1 and (await job.status()).attempts == 1

    in_world(main, options=SHORT)


def test_a_silo_that_stops_waits_for_its_jobs() -> None:
    async def main(world: World) -> None:
        job = await schedule(world.client, timedelta(0), world.order().charge, 5, 3.0)
        await asyncio.sleep(0.5)
        worker = (await world.queue().get(job.id)).worker
        await world.cluster.stop_silo(world.host_of(worker))
        assert await job.result() == 10
        assert len(world.notes.ran) == 1 and (await job.status()).attempts == 1

    in_world(main, silos=2)


def test_a_silo_that_stops_hands_long_jobs_to_another_silo_at_once() -> None:
    async def main(world: World) -> None:
        job = await schedule(world.client, timedelta(0), world.order().long, 40.0)
        await asyncio.sleep(0.5)
        worker = (await world.queue().get(job.id)).worker
        start_s = world.now_s
        await world.cluster.stop_silo(world.host_of(worker))
        assert await job.result(120.0) == 2
        assert len(world.notes.ran) == 2 and (await job.status()).attempts == 1
        assert world.notes.ran[1].at_s - start_s < 10.0

    in_world(main, silos=2, options=JobOptions(lease_s=60.0, drain_s=2.0))


def test_jobs_survive_a_restart_of_all_silos() -> None:
    async def main(world: World) -> None:
        jobs = [await world.after(20.0, n, f"{n}") for n in range(5)]
        for name in world.cluster.names:
            await world.cluster.stop_silo(name)
        for n, job in enumerate(jobs):
            assert await job.result(120.0) == n * 2

    in_world(main)


def test_a_job_that_a_silo_cannot_read_is_an_attempt_that_failed() -> None:
    async def main(world: World) -> None:
        raw = priority_queue(world.client, "job/calls")
        pairs = {"type": "Order", "call": "Order/tea.gone"}

        def row(method: str, arguments: bytes = b"\x90", kind: str = "Order") -> bytes:
            return msgspec.msgpack.encode([kind, "tea", method, arguments])

        bad = {
            "gone": row("gone"),
            "types": row("charge", b"\x91\xa1x"),
            "broken": b"\xc1",
            "closed": row("rule"),
            "one-way": row("tell"),
            "generator": row("rows"),
            "lying": row("empty", kind="Basket"),
        }
        start_s = world.now_s
        for id, payload in bad.items():
            await raw.enqueue(payload, id=id, metadata=pairs)
        for id in bad:
            found = job_of(world.client, id, world.order().charge)
            with pytest.raises(JobFailed):
                await found.result(30.0)
            status = await found.status()
            assert status.attempts == 2 and status.error.startswith("millstream.JobFailed: ")
            assert world.now_s - start_s > 3.0
        assert not world.notes.ran

    in_world(main, retry=JobRetry(attempts=2, unreadable_delay_s=3.0))


def test_settings_of_operators_stay_when_silos_restart() -> None:
    async def main(world: World) -> None:
        row = await world.queue().settings()
        assert row.settings.lease_ms == 6_000
        changed = replace(row.settings, dequeue_blocked=True, lease_ms=9_000, shards=2)
        await world.queue().configure(changed)
        await world.cluster.stop_silo("silo-0")
        await asyncio.sleep(10.0)
        found = (await world.queue().settings()).settings
        assert (found.dequeue_blocked, found.lease_ms, found.shards) == (True, 6_000, 2)
        await world.queue().configure(replace(found, dequeue_blocked=False))
        for n in range(8):
            assert await (await world.after(0.5, n, f"{n}")).result() == 2 * n
        assert (await world.queue().depth())[State.COMPLETED] == 8

    in_world(main, silos=1, options=SHORT)


def test_jobs_continue_when_an_operator_deletes_their_queue() -> None:
    async def main(world: World) -> None:
        job = await world.after(60.0)
        await world.queue().delete()
        await asyncio.sleep(1.0)
        assert (await job.status()).state is JobState.UNKNOWN
        assert await (await world.after(0.0)).result() == 10

    in_world(main)


# -- two versions of a grain type


@grain(name="Parcel")
class Parcel1(Grain):
    number = 1

    async def send(self) -> int:
        return self.number


@grain(name="Parcel", version=2)
class Parcel2(Parcel1):
    number = 2

    async def insure(self) -> str:
        return self.context.silo


@grain(name="Parcel")
class ParcelOf1(Contract):
    async def send(self) -> int:
        raise NotImplementedError


@grain(name="Parcel", version=2)
class ParcelOf2(ParcelOf1):
    async def insure(self) -> str:
        raise NotImplementedError


TWO_VERSIONS: Any = {
    "silos": 3,
    "grains": [Parcel1, Parcel2],
    "lacking": {"silo-0": [Parcel2], "silo-1": [Parcel2], "silo-2": [Parcel1]},
}


def test_a_job_of_a_method_that_only_the_later_version_has_runs_there() -> None:
    async def main(world: World) -> None:
        parcels = [world.client.grain(ParcelOf2, f"P{number}") for number in range(6)]
        for parcel in parcels:
            assert await world.client.grain(ParcelOf1, parcel.key).send() in (1, 2)
        jobs = [await schedule(world.client, timedelta(0), parcel.insure) for parcel in parcels]
        homes = {await job.result() for job in jobs}
        assert {world.host_of(home) for home in homes} == {"silo-2"}
        assert {(await job.status()).attempts for job in jobs} == {1}

    in_world(main, retry=JobRetry(attempts=1), **TWO_VERSIONS)


def test_a_job_moves_its_grain_up_if_a_silo_of_the_later_version_runs_it() -> None:
    async def main(world: World) -> None:
        parcels = [world.client.grain(ParcelOf1, f"P{number}") for number in range(12)]
        before = [await parcel.send() for parcel in parcels]
        jobs = [await schedule(world.client, timedelta(0), parcel.send) for parcel in parcels]
        ran = [await job.result() for job in jobs]
        assert [await parcel.send() for parcel in parcels] == ran
        assert all(new >= old for old, new in zip(before, ran, strict=True))
        assert sum(ran) > sum(before)

    in_world(main, **TWO_VERSIONS)
