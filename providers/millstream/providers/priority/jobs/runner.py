"""Running the jobs of one silo: leases of due jobs, and calls of their methods.

Owns `JobRunner`, and the counts of its jobs as metrics. The decision about a job after its call is
in `decision`.

Invariants:

- A silo leases only jobs of grain types that it hosts, so it knows their methods and arguments. It
  returns a job of a later version of the type than it hosts.
- At most `running_max` jobs run. A leased job that finds no room is released at once, and the
  attempt does not count.
- A result is stored before its job is completed, so a completed job has its result. The first
  stored result of a job stays.
- A job runs with the rights of a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec

from millstream.providers.priority.core.commands import Configure, Dequeue, Enqueue, ReadSettings
from millstream.providers.priority.core.errors import (
    LeaseLost,
    MessageExists,
    PriorityQueueNotFound,
    SettingsConflict,
)
from millstream.providers.priority.core.settings import (
    TEXT_BYTES_MAX,
    QueueSettings,
    SettingsRow,
)
from millstream.providers.priority.surface.calls import PATIENCE_S
from millstream.providers.priority.surface.lease import Lease
from millstream.providers.priority.surface.poll import give_back
from millstream.providers.priority.surface.routed import QueueCalls
from millstream.runtime import MillstreamError, Role, VersionNotHosted, with_options
from millstream.runtime.extending import (
    Backoff,
    GrainType,
    Histogram,
    Metric,
    Opener,
    Sample,
    SiloServices,
    encode_error,
    show_text,
)

from .decision import GiveUp, Repeat, Succeed, decide
from .errors import JobFailed
from .job import JOB_ATTEMPT_HEADER, JOB_ID_HEADER, QUEUES, JobCalls
from .options import JobOptions, JobRetry, settings_of_calls, settings_of_results
from .row import (
    CALLS,
    HAS_RESULT,
    RESULTS,
    TYPE_KEY,
    JobOutcome,
    JobRow,
    OutcomeKind,
    outcome_of,
    pack,
    read_outcome,
    read_row,
)

__all__ = ["JobRunner"]

log = logging.getLogger("millstream.jobs")

BATCH_MAX = 16
"""Jobs of one type that one dequeue leases."""
RESULTS_BATCH_MAX = 100
"""Results that one dequeue leases to delete them."""
POLL_S = 30.0
"""How long one dequeue waits for a due job, in seconds."""
PAUSES = Backoff(first_s=0.5, ceiling_s=10.0)
"""The times between two attempts to reach the queues."""
RELEASE_S = 1.0
"""How long a silo that stops waits for the release of the jobs that it has cancelled, in
seconds.
"""

RUNNING = Metric(
    name="millstream_jobs_running", type="gauge", help="Durable jobs that run in this silo."
)
ATTEMPTS = Metric(
    name="millstream_job_attempts_total",
    type="counter",
    help="Attempts that ended in this silo. outcome: ok, repeated (it runs again), or failed.",
    labels=("grain_type", "outcome"),
)
LATE = Metric(
    name="millstream_job_late_seconds",
    type="histogram",
    unit="seconds",
    help="Time from the due time of a job to the start of its first attempt.",
)

JOB_METRICS = (RUNNING, ATTEMPTS, LATE)
OUTCOMES: dict[type[Succeed | Repeat | GiveUp], str] = {
    Succeed: "ok",
    Repeat: "repeated",
    GiveUp: "failed",
}


class JobCounts:
    """The jobs that ran in one silo.

    Attributes:
        late: Lateness of first attempts, in seconds.
    """

    def __init__(self) -> None:
        self._attempts: dict[tuple[str, str], int] = {}
        self.late = Histogram()

    def begin(self, attempt: int, late_s: float) -> None:
        """Record the start of an attempt, so long after the job was due."""
        if attempt == 1:
            self.late.observe(max(0.0, late_s))

    def end(self, grain_type: str, then: Succeed | Repeat | GiveUp) -> None:
        """Record the decision about an attempt."""
        key = (grain_type, OUTCOMES[type(then)])
        self._attempts[key] = self._attempts.get(key, 0) + 1

    def read(self, running: int) -> Iterator[Sample]:
        """Yield the samples of the silo's jobs."""
        yield Sample(RUNNING, (), running)
        yield Sample(LATE, (), self.late)
        for key, number in self._attempts.items():
            yield Sample(ATTEMPTS, key, number)


class Room:
    """The room for running jobs.

    Args:
        most: Maximum number of running jobs.
    """

    def __init__(self, most: int) -> None:
        self.free = most
        self._is_free = asyncio.Event()
        self._is_free.set()

    def take(self) -> bool:
        """Take a place. False if there is none."""
        if not self.free:
            return False
        self.free -= 1
        if not self.free:
            self._is_free.clear()
        return True

    def give(self) -> None:
        """Return a place."""
        self.free += 1
        self._is_free.set()

    async def wait(self) -> int:
        """Wait for a free place, and return the number of free places."""
        while not self.free:
            await self._is_free.wait()
        return self.free


class JobRunner:
    """The jobs that run in one silo.

    Args:
        services: The silo.
        options: Times and limits.
        retry: When a job runs again.
    """

    def __init__(self, services: SiloServices, options: JobOptions, retry: JobRetry) -> None:
        self._services = services
        self._options = options
        self._retry = retry
        self._opener = cast(Opener, services.runtime)
        self._calls = JobCalls(self._opener)
        self._jobs = QueueCalls(self._opener, QUEUES, CALLS, PATIENCE_S)
        self._results = QueueCalls(self._opener, QUEUES, RESULTS, PATIENCE_S)
        self._room = Room(options.running_max)
        self._polls = services.new_tasks()
        self._running = services.new_tasks()
        self._counts = JobCounts()
        services.metrics.add(
            JOB_METRICS, lambda: self._counts.read(options.running_max - self._room.free)
        )

    # -- lifetime

    def start(self) -> None:
        """Begin to run jobs."""
        self._polls.start(self._begin())

    async def stop(self) -> None:
        """Lease no more jobs, and wait for the running ones, at most `drain_s`; then cancel
        them.
        """
        await self._polls.aclose()
        if running := list(self._running):
            await asyncio.wait(running, timeout=self._options.drain_s)
        self._running.cancel()
        if running := list(self._running):
            await asyncio.wait(running, timeout=RELEASE_S)
        await self._running.aclose()

    def abort(self) -> None:
        """End at once. The leases of running jobs end by their time."""
        self._polls.cancel()
        self._running.cancel()

    async def _begin(self) -> None:
        await self._make_queues()
        for found in self._services.grain_types():
            if is_runnable(found) and not self._services.has_brought(found.cls):
                self._polls.start(self._run_type(found))
        self._polls.start(self._forget_results())

    # -- queues

    async def _make_queues(self) -> None:
        """Create both queues, or change their settings; try until the cluster answers."""
        calls = settings_of_calls(self._options, self._retry.attempts)
        attempt = 0
        while True:
            try:
                await make_queue(self._jobs, calls)
                await make_queue(self._results, settings_of_results(self._options))
                return
            except MillstreamError as error:
                attempt += 1
                log.warning("the queues of durable jobs do not answer yet: %s", error)
                await asyncio.sleep(PAUSES.whole_s(attempt))

    async def _lease(self, queue: QueueCalls, command: Dequeue) -> Sequence[Lease]:
        """Dequeue; after an error, wait and return no leases."""
        try:
            return await queue.leases(command, POLL_S)
        except PriorityQueueNotFound:
            await self._make_queues()
        except MillstreamError as error:
            log.warning("due jobs cannot be leased, and are tried again: %s", error)
            await asyncio.sleep(PAUSES.ceiling_s)
        return ()

    # -- jobs

    async def _run_type(self, grain_type: GrainType) -> None:
        """Run the due jobs of one grain type."""
        wanted = ((TYPE_KEY, grain_type.name),)
        while True:
            count = min(await self._room.wait(), BATCH_MAX)
            command = Dequeue(self._services.address, count, wanted)
            for lease in await self._lease(self._jobs, command):
                if self._room.take():
                    self._running.start(self._run(grain_type, lease))
                else:
                    give_back([lease])

    async def _run(self, grain_type: GrainType, lease: Lease) -> None:
        """Run one job, and end its lease."""
        try:
            async with lease:
                if lease.attempt > 1 and await self._was_ended(lease):
                    return
                await self._attempt(grain_type, lease)
        except LeaseLost as error:
            log.info("job %s is run elsewhere: %s", show_text(lease.id), error)
        except MillstreamError as error:
            log.warning("job %s has ended, and was not stored: %s", show_text(lease.id), error)
        finally:
            self._room.give()

    async def _was_ended(self, lease: Lease) -> bool:
        """Complete a job whose result is stored already: its silo crashed at the very end."""
        stored = await self._calls.find_outcome(lease.id)
        if stored is None or not is_result(stored.payload):
            return False
        await lease.complete(HAS_RESULT)
        return True

    async def _attempt(self, grain_type: GrainType, lease: Lease) -> None:
        is_unreadable, outcome, error = False, None, None
        due_s = lease.priority / 1000
        self._counts.begin(lease.attempt, self._services.clock.wall_s() - due_s)
        try:
            row, arguments = self._read(grain_type, lease)
        except (JobFailed, VersionNotHosted) as problem:
            is_unreadable, error = isinstance(problem, JobFailed), cast(Exception, problem)
        else:
            try:
                outcome = await self._call(grain_type, row, arguments, lease)
            except Exception as problem:
                error = problem
        late_s = self._services.clock.wall_s() - due_s
        then = decide(
            error,
            lease.attempt,
            lease.attempts_left,
            late_s,
            self._retry,
            is_unreadable=is_unreadable,
        )
        self._counts.end(grain_type.name, then)
        await self._settle(lease, then, outcome, error)

    def _read(self, grain_type: GrainType, lease: Lease) -> tuple[JobRow, tuple[object, ...]]:
        """The call of a job. Raises JobFailed if this silo cannot make the call, and
        VersionNotHosted if another silo can.
        """
        try:
            row = read_row(lease.payload)
            check_version(row, grain_type)
            spec = grain_type.spec_of(row.method)
            if spec is None:
                what = f"{grain_type.name} has no method {row.method!r} in silo"
                raise JobFailed(lease.id, f"{what} {self._services.name}")
            if row.type_name != grain_type.name or spec.open_to not in (None, Role.CLIENT):
                raise JobFailed(lease.id, f"{spec.label} is closed to clients, and so to jobs")
            if spec.is_one_way or spec.is_streamed:
                form = "one-way" if spec.is_one_way else "a generator"
                raise JobFailed(lease.id, f"{spec.label} is {form}, and so no job")
            return row, spec.arguments.decode(row.arguments, self._services.runtime)
        except (JobFailed, VersionNotHosted):
            raise
        except (msgspec.DecodeError, MillstreamError, TypeError) as error:
            raise JobFailed(
                lease.id, f"silo {self._services.name} cannot read it: {error}"
            ) from None

    async def _call(
        self, grain_type: GrainType, row: JobRow, arguments: tuple[object, ...], lease: Lease
    ) -> JobOutcome | None:
        """Call the method. Returns None for the result None; raises the errors of the call."""
        spec = grain_type.specs[row.method]
        own = {JOB_ID_HEADER: lease.id, JOB_ATTEMPT_HEADER: str(lease.attempt)}
        reference: Any = with_options(
            self._services.grain(grain_type.cls, row.key),
            timeout=row.timeout_s,
            headers={**row.headers, **own},
            flowing_headers=row.flowing_headers,
        )
        given = zip(spec.parameters, arguments, strict=True)
        named = {p.name: value for p, value in given if p.kind is p.KEYWORD_ONLY}
        first = arguments[: len(arguments) - len(named)]
        value = await getattr(reference, row.method)(*first, **named)
        if value is None:
            return None
        return outcome_of(spec.encode_result(value), self._options.result_bytes_max)

    async def _settle(
        self,
        lease: Lease,
        then: Succeed | Repeat | GiveUp,
        outcome: JobOutcome | None,
        error: Exception | None,
    ) -> None:
        """End the lease as was decided."""
        if isinstance(then, Repeat):
            log.info(
                "job %s runs again in %g s: %s", show_text(lease.id), then.delay_s, then.reason
            )
            await lease.release(delay_s=then.delay_s, refund=then.is_refund, reason=then.reason)
            return
        if isinstance(then, GiveUp):
            assert error is not None, "a job is given up over an error"
            log.error("job %s has failed for good: %s", show_text(lease.id), then.reason)
            data = encode_error(error.with_traceback(None), f"job {lease.id}")
            fits = len(data) <= self._options.result_bytes_max
            outcome = JobOutcome(OutcomeKind.ERROR, data) if fits else None
        if outcome is not None:
            await self._store(lease, outcome)
        if isinstance(then, GiveUp):
            await lease.fail(then.reason)
        else:
            await lease.complete("" if outcome is None else HAS_RESULT)

    async def _store(self, lease: Lease, outcome: JobOutcome) -> None:
        """Store a result. An earlier result of the job stays."""
        kept_ms = int(self._options.result_kept_s * 1000)
        try:
            await self._results.do(Enqueue(lease.id, pack(outcome), 0, (), kept_ms))
        except MessageExists:
            log.info("job %s has a result of an earlier attempt, which stays", show_text(lease.id))

    # -- results

    async def _forget_results(self) -> None:
        """Delete the results that have been kept long enough."""
        command = Dequeue(self._services.address, RESULTS_BATCH_MAX)
        while True:
            for lease in await self._lease(self._results, command):
                try:
                    await lease.complete()
                except MillstreamError as error:
                    log.info("result %s is deleted later: %s", show_text(lease.id), error)


async def make_queue(queue: QueueCalls, wanted: QueueSettings) -> None:
    """Create a queue. An existing queue gets these settings, except for those of operators."""
    try:
        await queue.create(wanted)
        return
    except SettingsConflict:
        row = cast(SettingsRow, await queue.look(ReadSettings()))
    known = row.settings
    merged = replace(
        wanted,
        shards=known.shards,
        enqueue_blocked=known.enqueue_blocked,
        dequeue_blocked=known.dequeue_blocked,
    )
    await queue.do(Configure(merged))


def check_version(row: JobRow, grain_type: GrainType) -> None:
    """Raise VersionNotHosted for a job of a later version of the type than this silo hosts."""
    if row.version > grain_type.version:
        raise VersionNotHosted(
            f"{show_text(f'{row.type_name}/{row.key}.{row.method}')} was scheduled through version "
            f"{row.version} of the class, and this silo hosts version {grain_type.version}: start "
            f"silos with version {row.version} or a later one",
            wanted=row.version,
            hosted=(grain_type.version,),
        )


def is_runnable(grain_type: GrainType) -> bool:
    """Whether jobs of a type can be found by its name."""
    return bool(grain_type.specs) and len(grain_type.name.encode()) <= TEXT_BYTES_MAX


def is_result(stored: bytes) -> bool:
    """Whether bytes are a stored result, and no error."""
    try:
        return read_outcome(stored).kind is not OutcomeKind.ERROR
    except msgspec.DecodeError:
        return False
