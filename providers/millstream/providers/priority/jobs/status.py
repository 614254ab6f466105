"""The status of a job, from the message that stores the job, and its due time. Pure.

Owns `JobState`, `JobStatus`, and the conversion of due times.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from millstream.providers.priority.core.message import State
from millstream.providers.priority.core.results import MessageView

__all__ = ["JobState", "JobStatus"]


class JobState(StrEnum):
    """The state of a job.

    Attributes:
        SCHEDULED: The job waits for its due time, for a silo, or for its next attempt.
        RUNNING: A silo runs the job.
        SUCCEEDED: The method returned.
        FAILED: The job used all its attempts.
        CANCELLED: The job was cancelled, and does not run any more.
        UNKNOWN: The job never existed, or was finished more than `JobOptions.kept_s` ago.
    """

    SCHEDULED = "scheduled"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STATES = {
    State.INVISIBLE: JobState.SCHEDULED,
    State.PENDING: JobState.SCHEDULED,
    State.RUNNING: JobState.RUNNING,
    State.COMPLETED: JobState.SUCCEEDED,
    State.ERRORED: JobState.FAILED,
    State.CANCELED: JobState.CANCELLED,
}
WITH_ERROR = (JobState.SCHEDULED, JobState.FAILED)
CRASHED = "the silo that ran the last attempt crashed, or was cut off for longer than the lease"


class JobStatus(NamedTuple):
    """A job as it was when it was read.

    Attributes:
        state: Its state.
        due: Its due time in UTC, by the clock of the queue. None for an unknown job.
        attempts: How many attempts have begun, without those that were refused.
        error: Type and text of the error of the latest attempt, such as `ValueError: no stock`, at
            most 1,024 bytes. Empty if there is none.
    """

    state: JobState
    due: datetime | None = None
    attempts: int = 0
    error: str = ""


def status_of(view: MessageView | None) -> JobStatus:
    """The status of the job that a message stores. None stands for a missing message."""
    if view is None:
        return JobStatus(JobState.UNKNOWN)
    state = STATES[view.state]
    attempts = view.attempts - view.attempts_left
    error = view.reason if state in WITH_ERROR else ""
    if state is JobState.FAILED and not error:
        error = CRASHED
    return JobStatus(state, due_of(view.priority), attempts, error)


def ms_of(due: datetime | timedelta) -> int:
    """A time since 1970, or a delay, in milliseconds, rounded up."""
    passed = due if isinstance(due, timedelta) else due - EPOCH
    return -(-passed // timedelta(milliseconds=1))


def due_of(priority: int) -> datetime | None:
    """The due time in UTC, which is the priority of a job; None if no datetime can represent it."""
    try:
        return EPOCH + timedelta(milliseconds=priority)
    except OverflowError:
        return None
