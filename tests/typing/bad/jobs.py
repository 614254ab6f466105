"""Mistakes with durable jobs. A line that ends with the mark E must be refused."""

from __future__ import annotations

from datetime import timedelta

from millstream.providers.priority.jobs import Job, JobOptions, JobRetry, Jobs, job_of, schedule
from millstream.runtime import Client, Grain

SOON = timedelta(seconds=5)


class Order(Grain):
    async def charge(self, cents: int, *, note: str = "") -> int:
        return cents


async def use(client: Client, order: Order) -> None:
    await schedule(client, 5.0, order.charge, 5)  # E
    await schedule(client, SOON, order.charge)  # E
    await schedule(client, SOON, order.charge, "5")  # E
    await schedule(client, SOON, order.charge, 5, "late")  # E
    await schedule(client, SOON, order.charge, 5, comment="late")  # E
    await schedule(client, SOON, order.charge(5))  # E
    await schedule(client, SOON, order.key)  # E
    await schedule("client", SOON, order.charge, 5)  # E
    wrong: Job[str] = await schedule(client, SOON, order.charge, 5)  # E
    print(wrong)
    job = await schedule(client, SOON, order.charge, 5)
    text: str = await job.result()  # E
    print(text)
    await job.result("5")  # E
    job_of(client)  # E
    job_of(client, 5)  # E
    job_of(client, "job", order.key)  # E


Jobs(JobRetry())  # E
Jobs(retry=JobOptions())  # E
JobRetry(attempts="5")  # E
JobRetry(5)  # E
JobOptions(lease_s="5")  # E
