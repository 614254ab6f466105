"""The options of durable jobs: retries, times and limits.

Invariants: units are part of the names, and values are checked when the object is created.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.providers.priority.core.settings import (
    DAY_MS,
    MESSAGES_MAX,
    YEAR_MS,
    QueueSettings,
)
from millstream.runtime.extending import Backoff, check_fields

from .row import DUE_AHEAD_MS, OUTCOME_FRAME_BYTES, TYPE_KEY

__all__ = ["RESULT_BYTES_MOST", "JobOptions", "JobRetry"]

RESULT_BYTES_MOST = 1 << 20
"""The upper bound of `result_bytes_max`. A program refuses a larger result than this, too."""
RESULT_MARGIN_S = 60.0
"""How much longer than its job a result is stored, in seconds: it is stored first."""
RESULT_ATTEMPTS = 1_000
"""Leases of a result that is to be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetry:
    """When a job runs again after its method failed; all silos must have the same.

    The delay after attempt `n` is `first_delay_s * factor ** (n - 1)`, at most `delay_max_s`. The
    defaults are those of Orleans: 5 attempts, and delays of 2, 4, 8 and 16 seconds. Wrong values
    raise `ConfigError`.

    Attributes:
        attempts: How often the method is called at most, 1 to 1,000. A crash of the silo that runs
            the job counts, too.
        first_delay_s: The delay after the first attempt, in seconds.
        factor: The growth of the delay with each attempt, at least 1.
        delay_max_s: The longest delay, in seconds, at most a day.
        refused_delay_s: The delay after a call that the cluster refused before the method ran, in
            seconds, at most a day. Such a call is no attempt.
        refused_for_s: How long after the due time refused calls are no attempts, in seconds. Later
            ones are, so that no job is repeated forever.
        unreadable_delay_s: The delay after a silo lacked the method or could not read its
            arguments, in seconds, at most a day. This is an attempt.
    """

    attempts: int = field(default=5, metadata={"max": 1_000})
    first_delay_s: float = field(default=2.0, metadata={"max": DAY_MS / 1000})
    factor: float = field(default=2.0, metadata={"min": 1, "max": 1_000})
    delay_max_s: float = field(default=3_600.0, metadata={"max": DAY_MS / 1000})
    refused_delay_s: float = field(default=5.0, metadata={"max": DAY_MS / 1000})
    refused_for_s: float = field(default=3_600.0, metadata={"min": 0, "max": YEAR_MS / 1000})
    unreadable_delay_s: float = field(default=60.0, metadata={"max": DAY_MS / 1000})

    def __post_init__(self) -> None:
        check_fields(self)
        Backoff(self.first_delay_s, self.factor, self.delay_max_s)

    def delay_s(self, attempt: int) -> float:
        """Return the delay after an attempt.

        Args:
            attempt: The number of the attempt that failed, 1 for the first.
        """
        return Backoff(self.first_delay_s, self.factor, self.delay_max_s).whole_s(attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Times and limits of `Jobs`. Wrong values raise `ConfigError`.

    All silos must have the same, except for `running_max` and `drain_s`.

    Attributes:
        lease_s: How late a job is at most after the silo that ran it crashed, in seconds, at most a
            day. A live silo extends the lease while the method runs.
        kept_s: How long the status, result or error of a finished job is kept, in seconds, from 1
            to 366 days.
        arguments_bytes_max: Bytes of a job: its arguments, headers and names, at most 1 MiB.
        result_bytes_max: Bytes of a result or error that is kept, at most 1 MiB.
        jobs_max: Jobs of the cluster, finished ones included while they are kept, at most
            1,000,000,000. Above, `schedule` raises `PriorityQueueFull`.
        running_max: Jobs that one silo runs at a time.
        drain_s: How long a silo that stops waits for its running jobs, in seconds. Then it cancels
            them, and another silo runs them.
    """

    lease_s: float = field(default=30.0, metadata={"min": 0.1, "max": DAY_MS / 1000})
    kept_s: float = field(default=DAY_MS / 1000, metadata={"min": 1, "max": YEAR_MS / 1000})
    arguments_bytes_max: int = field(default=32_768, metadata={"max": 1 << 20})
    result_bytes_max: int = field(default=65_536, metadata={"max": RESULT_BYTES_MOST})
    jobs_max: int = field(default=1_000_000, metadata={"max": MESSAGES_MAX})
    running_max: int = 1_000
    drain_s: float = 10.0

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def shared(self) -> tuple[object, ...]:
        """The values on which all silos must agree."""
        sizes = self.arguments_bytes_max, self.result_bytes_max, self.jobs_max
        return (self.lease_s, self.kept_s, *sizes)

    @property
    def result_kept_s(self) -> float:
        """How long a result is stored, in seconds."""
        return self.kept_s + RESULT_MARGIN_S


def settings_of_calls(options: JobOptions, attempts: int) -> QueueSettings:
    """The settings of the queue of jobs."""
    return QueueSettings(
        lease_ms=int(options.lease_s * 1000),
        attempts=attempts,
        retention_ms=int(options.kept_s * 1000),
        payload_bytes_max=options.arguments_bytes_max,
        invisible_ms_max=DUE_AHEAD_MS,
        messages_max=options.jobs_max,
        shapes=((TYPE_KEY,),),
    )


def settings_of_results(options: JobOptions) -> QueueSettings:
    """The settings of the queue of results: a message waits until its result may be deleted."""
    return QueueSettings(
        attempts=RESULT_ATTEMPTS,
        retention_ms=1,
        payload_bytes_max=options.result_bytes_max + OUTCOME_FRAME_BYTES,
        invisible_ms_max=DUE_AHEAD_MS,
        messages_max=options.jobs_max,
    )
