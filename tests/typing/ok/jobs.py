"""Durable jobs as a user writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from millstream.providers.priority import MemoryStore, PriorityQueues
from millstream.providers.priority.jobs import (
    JOB_ATTEMPT_HEADER,
    JOB_ID_HEADER,
    Job,
    JobCancelled,
    JobError,
    JobFailed,
    JobOptions,
    JobResultTooLarge,
    JobRetry,
    Jobs,
    JobsOf,
    JobState,
    JobStatus,
    JobTimeout,
    JobUnknown,
    job_of,
    schedule,
)
from millstream.runtime import Client, Grain, LocalCluster, Silo, with_options


class Order(Grain):
    async def charge(self, cents: int, *, note: str = "") -> int:
        return cents

    async def expire(self) -> None:
        assert_type(self.context.headers.get(JOB_ID_HEADER), str | None)
        assert_type(self.context.headers[JOB_ATTEMPT_HEADER], str)

    async def plan(self) -> str:
        job = await schedule(self, timedelta(hours=1), self.grain(Order, self.key).expire)
        assert_type(job, Job[None])
        return job.id


def make() -> Silo:
    retry = JobRetry(attempts=3, first_delay_s=1, factor=3, refused_delay_s=5.0)
    options = JobOptions(lease_s=10, kept_s=3_600, running_max=100, drain_s=5)
    parts = {"priority": PriorityQueues(MemoryStore()), "jobs": Jobs(retry=retry, options=options)}
    return Silo(grains=[Order], parts=parts)


async def use(client: Client, silo: Silo, cluster: LocalCluster) -> None:
    order = client.grain(Order, "tea")
    job = await schedule(client, datetime.now(UTC), order.charge, 5, note="late")
    assert_type(job, Job[int])
    assert_type(await job.result(timeout_s=5), int)
    assert_type(await job.cancel(), bool)
    assert_type(await job.status(), JobStatus)
    assert_type((await job.status()).state, JobState)
    assert_type((await job.status()).due, datetime | None)
    assert_type(job.id, str)
    assert_type(
        await schedule(silo, timedelta(0), with_options(order, timeout=5).expire), Job[None]
    )
    assert_type(await schedule(cluster, timedelta(0), order.charge, cents=5), Job[int])
    assert_type(job_of(client, job.id, order.charge), Job[int])
    assert_type(job_of(client, job.id), Job[Any])
    assert_type(JobsOf(), JobsOf)


def waits(job: Job[object]) -> None:
    """A job of a narrower result is a job of a wider one."""


async def widen(client: Client, order: Order) -> None:
    waits(await schedule(client, timedelta(0), order.charge, 5))


ERRORS: list[type[JobError]] = [
    JobCancelled,
    JobFailed,
    JobResultTooLarge,
    JobTimeout,
    JobUnknown,
]
