"""Durable jobs: calls of grain methods that run later, at least once, and survive crashes.

`schedule(runtime, due, reference.method, *args)` stores a job in a priority queue, and returns a
`Job`. `Jobs` is the part of a silo that runs jobs when they are due. The idea comes from the
durable jobs of Orleans; here, leases of priority queues replace shards that silos own.

Owns jobs: their stored form, the decision after each attempt, and the handles of programs. Reading
starts at `job.py`.
May import `core`, `owner`, `providers.priority`, `runtime` and `surface`.
"""

from millstream.runtime.extending import publish

from .errors import (
    JobCancelled,
    JobError,
    JobFailed,
    JobResultTooLarge,
    JobTimeout,
    JobUnknown,
)
from .job import JOB_ATTEMPT_HEADER, JOB_ID_HEADER, Job, JobsOf, job_of, schedule
from .options import JobOptions, JobRetry
from .part import Jobs
from .status import JobState, JobStatus

__all__ = [
    "JOB_ATTEMPT_HEADER",
    "JOB_ID_HEADER",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobOptions",
    "JobResultTooLarge",
    "JobRetry",
    "JobState",
    "JobStatus",
    "JobTimeout",
    "JobUnknown",
    "Jobs",
    "JobsOf",
    "job_of",
    "schedule",
]

publish(__name__)
