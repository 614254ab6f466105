"""Scheduling durable jobs, and the handles of scheduled ones.

Owns `schedule`, `job_of` and `Job`. The stored forms are in `row`, and silos run jobs in `runner`.

Invariants: a wrong call is refused before anything is sent. A handle keeps no state of its job, so
handles of one job may be in any number of programs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast, overload

import msgspec

from millstream.providers.priority.core.body import check_request_text
from millstream.providers.priority.core.commands import Cancel, Command, Enqueue, Get
from millstream.providers.priority.core.errors import (
    MessageExists,
    MessageFinished,
    MessageNotFound,
    PriorityQueueNotFound,
    RequestInvalid,
)
from millstream.providers.priority.core.message import State
from millstream.providers.priority.core.results import Done, MessageView
from millstream.providers.priority.owner.relative import after_enqueue, until
from millstream.providers.priority.surface.calls import PATIENCE_S
from millstream.providers.priority.surface.routed import QueueCalls
from millstream.runtime import ConfigError, NotHosted, Role, Runtime, with_options
from millstream.runtime.extending import (
    Backoff,
    MethodReference,
    Opener,
    method_reference,
    show_text,
    show_value,
)

from .errors import JobCancelled, JobFailed, JobResultTooLarge, JobTimeout, JobUnknown
from .options import RESULT_BYTES_MOST
from .row import (
    CALLS,
    DUE_AHEAD_MS,
    HAS_RESULT,
    OUTCOME_FRAME_BYTES,
    RESULTS,
    TYPE_KEY,
    JobOutcome,
    JobRow,
    OutcomeKind,
    metadata_of,
    pack,
    read_outcome,
)
from .status import JobStatus, ms_of, status_of

__all__ = ["JOB_ATTEMPT_HEADER", "JOB_ID_HEADER", "Job", "JobsOf", "job_of", "schedule"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

PART = "jobs"
"""The name under which silos have `Jobs`."""
QUEUES = "priority"
"""The name under which silos have `PriorityQueues`."""
JOB_ID_HEADER = "job-id"
"""The header of a call that has the id of its job."""
JOB_ATTEMPT_HEADER = "job-attempt"
"""The header of a call that has the number of the attempt of its job, 1 for the first."""
RESULT_WAIT_S = 60.0
"""How long `Job.result` waits, in seconds, unless the caller gives another time."""
CREATED_WAIT_S = 10.0
"""How long a call waits until the part `jobs` of a cluster that starts has made its queues, in
seconds.
"""
LOOKS = Backoff(first_s=0.05, ceiling_s=1.0)
"""The times between two looks at a job whose result a program waits for."""
DUE_AHEAD = timedelta(milliseconds=DUE_AHEAD_MS)
TOO_LATE = f"a job is due at most {DUE_AHEAD.days:,} days ahead"
EXAMPLES = "datetime.now(UTC) + timedelta(hours=1) or timedelta(hours=1)"
HOW_TO_ADD = (
    'durable jobs need two parts in each silo: parts={"priority": PriorityQueues(store), "jobs": '
    "Jobs()}"
)
HOW_TO_CALL = (
    "pass a method of a reference and its arguments: schedule(client, timedelta(hours=1), "
    'client.grain(Order, "tea").charge, 5)'
)


class JobCalls:
    """The calls of one process to the queues of jobs, as `runtime.stream(JobsOf(), "")` opens it.

    Args:
        opener: The inside of the client or silo that makes the calls.
    """

    def __init__(self, opener: Opener) -> None:
        self.opener = opener
        self._jobs = QueueCalls(opener, QUEUES, CALLS, PATIENCE_S)
        self._results = QueueCalls(opener, QUEUES, RESULTS, PATIENCE_S)

    async def schedule(
        self,
        due: datetime | timedelta,
        method: Callable[..., Coroutine[Any, Any, Any]],
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> Job[Any]:
        """Store a job. Raises the errors of the function `schedule`."""
        target = target_of(method)
        at = due_at(due)
        arguments = target.encode_arguments(args, kwargs)
        row = JobRow(
            target.type_name,
            target.key,
            target.spec.name,
            arguments,
            target.timeout_s,
            dict(target.headers),
            dict(target.flowing_headers),
            target.spec.version,
        )
        self._check_part()
        id = self.opener.new_name()
        command = Enqueue(id, pack(row), at.priority, metadata_of(row), at.invisible_ms)
        try:
            await self._do(command)
        except MessageExists:
            pass  # the answer to this very enqueue was lost: no other job has the id
        except RequestInvalid as error:
            raise as_given(error, due, row) from error
        return Job(self, id, target)

    def job(self, id: str, method: Callable[..., Coroutine[Any, Any, Any]] | None) -> Job[Any]:
        """The handle of a job. Raises the errors of the function `job_of`."""
        return Job(self, id, None if method is None else target_of(method))

    async def cancel(self, id: str) -> bool:
        """Cancel a job that does not run. Raises the errors of `Job.cancel`."""
        self._check_part()
        try:
            done = cast(Done, await self._do(Cancel(id, None, "cancelled by a program", True)))
        except (MessageFinished, MessageNotFound):
            return False
        return done.state is State.CANCELED

    async def find(self, id: str) -> MessageView | None:
        """The message of a job; None if there is none. Raises the errors of `Job.status`."""
        return await self._look(self._jobs, id)

    async def find_outcome(self, id: str) -> MessageView | None:
        """The message of a result; None if there is none."""
        return await self._look(self._results, id)

    async def _look(self, queue: QueueCalls, id: str) -> MessageView | None:
        self._check_part()
        try:
            return cast(MessageView, await queue.look(Get(id)))
        except MessageNotFound:
            return None
        except (PriorityQueueNotFound, NotHosted) as error:
            raise ConfigError(f"the cluster has no jobs: {HOW_TO_ADD}") from error

    async def _do(self, command: Command) -> object:
        """Carry out a command, and wait for the queue of a cluster that starts."""
        loop, attempt = asyncio.get_running_loop(), 0
        until_s = loop.time() + CREATED_WAIT_S
        while True:
            try:
                return await self._jobs.do(command)
            except NotHosted as error:
                raise ConfigError(f"no silo has priority queues: {HOW_TO_ADD}") from error
            except PriorityQueueNotFound as error:
                attempt += 1
                if loop.time() + LOOKS.whole_s(attempt) >= until_s:
                    raise ConfigError(f"the cluster has no jobs: {HOW_TO_ADD}") from error
                await asyncio.sleep(LOOKS.whole_s(attempt))

    def _check_part(self) -> None:
        """Raise ConfigError in a silo without the part. A client learns it from the cluster."""
        self.opener.check_running()
        if self.opener.gateway is None:
            try:
                self.opener.part(PART)
            except ConfigError as error:
                raise ConfigError(f"this silo has no part {PART!r}: {HOW_TO_ADD}") from error


@dataclass(frozen=True, slots=True)
class JobsOf:
    """The argument of `stream()` that opens the jobs of a cluster.

    Programs call `schedule` and `job_of` instead. Unit tests of grains use this class to replace
    the jobs by a fake: `grain_of(Order, streams={(JobsOf(), ""): fake})`. The fake has `async def
    schedule(due, method, args, kwargs)` and `def job(job_id, method)`, which return its jobs.
    """

    @property
    def name(self) -> str:
        """The text by which messages name this object."""
        return "JobsOf()"

    def open(self, runtime: Opener, key: str, /) -> JobCalls:
        """Open the jobs; the key has no meaning."""
        return JobCalls(runtime)


class Job(Generic[R_co]):
    """A handle of one durable job, which `schedule` and `job_of` return.

    The handle keeps no state: each method asks the cluster. All methods may also raise the errors
    of calls (`SiloUnavailable`, `CallTimeout`, `Overloaded`, `NotInCluster`), `StorageUnavailable`,
    and `ConfigError` if the cluster has no jobs.

    Attributes:
        id: The id of the job, a text of at most 256 bytes. Store it to make the handle again with
            `job_of`.
    """

    def __init__(self, calls: JobCalls, id: str, target: MethodReference | None) -> None:
        self.id = id
        self._calls = calls
        self._target = target

    def __repr__(self) -> str:
        return f"<job {show_text(self.id)}>"

    async def cancel(self) -> bool:
        """Cancel the job, unless it runs now. A running job is not interrupted.

        Returns:
            Whether the job will not run any more because it was cancelled, now or before. False if
                it runs now, is finished, or is unknown. A job that runs now, and fails, runs again;
                call this method again to prevent that.
        """
        return await self._calls.cancel(self.id)

    async def status(self) -> JobStatus:
        """Read the status of the job.

        Returns:
            The status. Its state is `UNKNOWN` for a job that never existed, or that was finished
                more than `JobOptions.kept_s` ago.
        """
        return status_of(await self._calls.find(self.id))

    async def result(self, timeout_s: float = RESULT_WAIT_S) -> R_co:
        """Wait for the end of the job, and return the result of its method.

        The wait reads the job after 0.05 seconds, and then less and less often, up to once a
        second.

        Args:
            timeout_s: How long to wait, in seconds; 0 looks once.

        Returns:
            The result of the method.

        Raises:
            Exception: The error of the method, if the job failed.
            JobFailed: The job failed, and the error of its method is not known.
            JobCancelled: The job was cancelled.
            JobTimeout: The job was not finished in time.
            JobUnknown: The job does not exist, or its result is not kept any more.
            JobResultTooLarge: The result was too large to be kept.
            ConfigError: `timeout_s` is no number of seconds, or `job_of` was given no method.
        """
        check_timeout(timeout_s)
        if self._target is None:
            raise ConfigError(
                f"job {show_text(self.id)} was opened without its method, which decodes the "
                "result: write job_of(runtime, job_id, reference.method)"
            )
        loop, attempt = asyncio.get_running_loop(), 0
        until_s = loop.time() + timeout_s
        while True:
            view = await self._calls.find(self.id)
            if view is None:
                raise JobUnknown(self.id, "it never existed, or its result is not kept any more")
            if view.state >= State.COMPLETED:
                return await self._end(self._target, view)
            left_s = until_s - loop.time()
            if left_s <= 0:
                raise JobTimeout(self.id, f"it was not finished within {timeout_s:g} seconds")
            attempt += 1
            await asyncio.sleep(min(LOOKS.whole_s(attempt), left_s))

    async def _end(self, target: MethodReference, view: MessageView) -> R_co:
        """The result of a finished job. Raises the errors of `result`."""
        if view.state is State.CANCELED:
            raise JobCancelled(self.id, "it was cancelled")
        check_method(self.id, target, view)
        if view.state is State.COMPLETED and view.reason != HAS_RESULT:
            return cast(R_co, None)
        stored = await self._calls.find_outcome(self.id)
        if view.state is State.ERRORED:
            raise self._error(view, stored)
        if stored is None or not stored.payload:
            raise JobUnknown(self.id, "its result is not kept any more")
        outcome = self._read(stored.payload)
        if outcome.kind is OutcomeKind.TOO_LARGE:
            what = f"its result had {outcome.data.decode()} bytes, more than"
            how = "store it in the method, and return a name of it"
            raise JobResultTooLarge(self.id, f"{what} JobOptions.result_bytes_max: {how}")
        return cast(R_co, target.spec.result.decode(outcome.data, self._calls.opener))

    def _read(self, stored: bytes) -> JobOutcome:
        """A stored outcome. Raises JobFailed."""
        if len(stored) > RESULT_BYTES_MOST + OUTCOME_FRAME_BYTES:
            raise JobResultTooLarge(self.id, f"its result has {len(stored)} bytes")
        try:
            return read_outcome(stored)
        except msgspec.DecodeError as error:
            raise JobFailed(self.id, f"its result cannot be read: {error}") from None

    def _error(self, view: MessageView, stored: MessageView | None) -> Exception:
        """The error of a failed job."""
        if stored is not None and stored.payload:
            outcome = self._read(stored.payload)
            if outcome.kind is OutcomeKind.ERROR:
                return self._calls.opener.decode_error(outcome.data)
        return JobFailed(self.id, f"it failed after all attempts: {status_of(view).error}")


async def schedule(
    runtime: Runtime,
    due: datetime | timedelta,
    method: Callable[P, Coroutine[Any, Any, R]],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> Job[R]:
    """Schedule a durable job: a call of a grain's method that runs later, at least once.

    When this returns, the job is stored, and survives the crash of any silo. The first attempt
    begins at the due time, or when a silo has room for the job. All silos need the parts
    `PriorityQueues` and `Jobs`.

    ```python
    job = await schedule(client, timedelta(minutes=30), client.grain(Order, "tea").expire, "late")
    await job.cancel()
    ```

    Deadline and headers of `with_options` are stored with the job, and apply to each attempt. The
    headers of the running turn are not: a job begins a chain of its own.

    Args:
        runtime: A client, a silo, a `LocalCluster`, or, inside a grain, `self`.
        due: When the job is due: a datetime with a time zone, by the clock of the queue, or a delay
            from now. A time that has passed means now. At most 3,660 days ahead.
        method: A method of a reference, such as `client.grain(Order, "tea").expire`. Clients must
            be permitted to call it.
        args: The arguments of the method by position.
        kwargs: The arguments of the method by name.

    Returns:
        The handle of the job.

    Raises:
        TypeError: `method` is no method of a reference, or an argument does not fit the method.
        ConfigError: The due time is not valid; the method is one-way, a method of an observer, or
            closed to clients; the job is larger than `JobOptions.arguments_bytes_max`; or the
            cluster has no jobs.
        PriorityQueueFull: `JobOptions.jobs_max` is reached.
        CallTimeout: The queue did not answer for 30 seconds. The job may be stored; so may it after
            `SiloUnavailable` and `StorageUnavailable`.
    """
    return await runtime.stream(JobsOf(), "").schedule(due, method, args, kwargs)


@overload
def job_of(
    runtime: Runtime, job_id: str, method: Callable[..., Coroutine[Any, Any, R]], /
) -> Job[R]: ...
@overload
def job_of(runtime: Runtime, job_id: str, /) -> Job[Any]: ...
def job_of(
    runtime: Runtime,
    job_id: str,
    method: Callable[..., Coroutine[Any, Any, Any]] | None = None,
    /,
) -> Job[Any]:
    """Make the handle of a job from its id, for example after the program has restarted.

    The function sends nothing. The job need not exist.

    Args:
        runtime: A client, a silo, a `LocalCluster`, or, inside a grain, `self`.
        job_id: The id, `Job.id`.
        method: The method that was scheduled, of any reference to the grain type. `Job.result`
            needs it. None: for `cancel` and `status` only.

    Returns:
        The handle.

    Raises:
        TypeError: `method` is no method of a reference, or `job_id` is no text.
        ConfigError: `job_id` is empty or has more than 256 bytes, or the method cannot be
            scheduled.
    """
    if not isinstance(job_id, str):
        raise TypeError(f"job_of(job_id={show_value(job_id)}): pass the text `Job.id`")
    try:
        check_request_text(CALLS, "id", job_id)
    except RequestInvalid as error:
        what = f"job_of(job_id={show_text(repr(job_id))}): pass the text `Job.id`"
        raise ConfigError(what) from error
    return runtime.stream(JobsOf(), "").job(job_id, method)


def target_of(method: object) -> MethodReference:
    """The method of a reference that may run as a job. Raises TypeError or ConfigError."""
    target = method_reference(method)
    if target is None:
        if inspect.iscoroutine(method):
            method.close()  # otherwise Python warns about it
            raise TypeError(f"schedule(...): the method was called already: {HOW_TO_CALL}")
        raise TypeError(f"schedule({show_value(method)}): no method of a reference: {HOW_TO_CALL}")
    label = target.spec.label
    if target.type_name.startswith("~"):
        raise ConfigError(
            f"{label}: a job cannot call an observer, since its client may be gone: let a grain "
            "call the observer, and schedule a method of the grain"
        )
    if target.spec.is_streamed:
        raise ConfigError(f"{label} yields results: schedule a method that returns its result")
    if target.spec.is_one_way:
        raise ConfigError(
            f"{label} is one-way, so no silo would learn whether it ran: remove @one_way, or "
            "schedule another method"
        )
    if target.spec.open_to not in (None, Role.CLIENT):
        raise ConfigError(
            f"{label} is closed to clients, and jobs have the rights of a client: schedule a "
            "method without @open_to"
        )
    merged = {JOB_ID_HEADER: "", JOB_ATTEMPT_HEADER: ""}
    with_options(cast(Any, method).__self__, headers=merged)  # refuses too many headers
    return target


def as_given(error: RequestInvalid, due: datetime | timedelta, row: JobRow) -> Exception:
    """The error of the queue in the words of the program that schedules."""
    label = f"{row.type_name}.{row.method}"
    if error.field in ("invisible_s", "invisible_ms", "priority"):
        return ConfigError(f"schedule(due={show_text(repr(due))}): {TOO_LATE}")
    if error.field == "payload":
        return ConfigError(
            f"the job of {show_text(label)} is too large: {error}. Store the data, and pass a name "
            "of them; the limit is JobOptions.arguments_bytes_max"
        )
    return ConfigError(f"the job of {show_text(label)} is refused: {error}")


def check_method(id: str, target: MethodReference, view: MessageView) -> None:
    """Raise ConfigError if a job belongs to another grain type than its handle."""
    stored = dict(view.metadata).get(TYPE_KEY)
    if stored != target.type_name:
        raise ConfigError(
            f"job {show_text(id)} calls a grain of type {stored!r}, not {target.type_name!r}: pass "
            "a method of that type to job_of"
        )


def check_timeout(timeout_s: object) -> None:
    """Raise ConfigError for a wait that is no finite number of seconds."""
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 <= cast(float, timeout_s) < float("inf"):
        what = f"result(timeout_s={show_value(timeout_s)}): pass a finite number of seconds"
        raise ConfigError(f"{what}, 0 or more")


class DueAt(NamedTuple):
    """A due time as numbers of an enqueue: the earliest due job has the most urgent priority."""

    priority: int
    invisible_ms: int


def due_at(due: object) -> DueAt:
    """The numbers of a due time. Raises ConfigError for a time that cannot be meant."""
    where = f"schedule(due={show_text(repr(due))})"
    if isinstance(due, timedelta):
        if due < timedelta(0):
            raise ConfigError(
                f"{where}: a delay is not negative: write timedelta(0) for a job that is due now"
            )
        if due > DUE_AHEAD:
            raise ConfigError(f"{where}: {TOO_LATE}")
        delay_ms = ms_of(due)
        return DueAt(after_enqueue(delay_ms), delay_ms)
    if not isinstance(due, datetime):
        raise ConfigError(f"{where}: write a datetime with a time zone, or a timedelta: {EXAMPLES}")
    if due.tzinfo is None or due.utcoffset() is None:
        raise ConfigError(
            f"{where} has no time zone: write datetime(..., tzinfo=UTC), or due.astimezone() for "
            "local time"
        )
    at_ms = ms_of(due)
    return DueAt(at_ms, until(at_ms))
