"""The errors of durable jobs. The class of an error tells the caller how to react.

    JobError               `job_id`: the id of the job
    ├── JobUnknown         forget the job: it never existed, or was finished too long ago
    ├── JobCancelled       nothing is left to do
    ├── JobFailed          correct the cause that the text names, and schedule a new job
    ├── JobResultTooLarge  let the method store its result, and return a name of it
    └── JobTimeout         wait again: the job is not finished (also a TimeoutError)

Invariant: attributes are plain values, because errors are sent between processes.
"""

from __future__ import annotations

from millstream.runtime import MillstreamError

__all__ = [
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobResultTooLarge",
    "JobTimeout",
    "JobUnknown",
]


class JobError(MillstreamError):
    """A durable job has no result; the base class of these errors.

    Attributes:
        job_id: The id of the job.
    """

    job_id: str

    def __init__(self, job_id: str, what: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id!r}: {what}")


class JobUnknown(JobError):
    """The job never existed, or its result is not kept any more (`JobOptions.kept_s`)."""


class JobCancelled(JobError):
    """The job was cancelled before it ran to its end."""


class JobFailed(JobError):
    """The job used all its attempts, and the error of its method is not known.

    The silos that ran the job crashed, no silo could read the job, or the error was too large to be
    kept. If the error of the method is known, `Job.result` raises that error instead.
    """


class JobResultTooLarge(JobError):
    """The job succeeded, and its result was larger than `JobOptions.result_bytes_max`."""


class JobTimeout(JobError, TimeoutError):
    """The job was not finished in the time that `Job.result` waited. The job goes on."""
