"""Durable jobs of real processes over SQLite files, while one of two silos is killed."""

from __future__ import annotations

import asyncio
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream.providers.priority.jobs import Job, JobState, schedule
from millstream.runtime import Grain, connect, grain
from millstream.runtime.run import SiloProcess

pytestmark = pytest.mark.real

JOBS = 60
FIRST_S, LAST_S, KILLED_S = 3.0, 13.0, 7.0
LATE_S = 1.0
AFTER_CRASH_S = 15.0
"""The lease is 5 s. A crash is detected within 6 s (docs/concepts/clusters.md); then the next
attempt comes after 5 s at most, and the queue and the grains have a new silo.
"""

MODULE = """
import asyncio, os
from pathlib import Path
from time import time
from millstream.providers.priority import EmbeddedStore, PriorityQueues
from millstream.providers.priority.jobs import JOB_ID_HEADER, JobOptions, Jobs
from millstream.runtime import Grain, Silo, grain

RAN = Path(__file__).with_name("ran")

@grain(name="KilledOrder")
class Order(Grain):
    async def charge(self, number: int) -> int:
        line = f"{number} {time()} {os.getpid()} {self.context.headers[JOB_ID_HEADER]}\\n"
        with RAN.open("a") as file:
            file.write(line)
        await asyncio.sleep(0.5)
        return number * 2

def make(directory):
    text = f"sqlite:{directory}"
    parts = {
        "priority": PriorityQueues(EmbeddedStore(f"{directory}/queues")),
        "jobs": Jobs(options=JobOptions(lease_s=5.0)),
    }
    return Silo(grains=[Order], membership=text, stores={"default": text}, parts=parts)
"""


class Ran(NamedTuple):
    """One call of the method."""

    number: int
    at_s: float
    process: int
    job: str


@grain(name="KilledOrder")
class Order(Grain):
    async def charge(self, number: int) -> int:
        raise NotImplementedError


def calls(folder: Path) -> list[Ran]:
    rows = [line.split() for line in (folder / "ran").read_text().splitlines()]
    return [Ran(int(row[0]), float(row[1]), int(row[2]), row[3]) for row in rows]


async def test_each_job_runs_in_time_although_a_silo_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed_orders.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    silos = [
        SiloProcess("killed_orders:make", {"directory": str(tmp_path / "data")}, tmp_path / name)
        for name in ("first.log", "second.log")
    ]
    for silo in silos:
        await silo.start()
    victim, other = silos
    pids = {silo.pid for silo in silos}
    jobs: list[Job[int]] = []
    try:
        async with connect(other.gateway) as client:
            begun = datetime.now(UTC)
            step_s = (LAST_S - FIRST_S) / JOBS
            dues = [begun + timedelta(seconds=FIRST_S + n * step_s) for n in range(JOBS)]
            for number, due in enumerate(dues):
                order = client.grain(Order, f"o{number}")
                jobs.append(await schedule(client, due, order.charge, number))
            killed_s = begun.timestamp() + KILLED_S
            await asyncio.sleep(killed_s - datetime.now(UTC).timestamp())
            await victim.kill()
            results = await asyncio.gather(*(job.result(LAST_S + 60) for job in jobs))
            states = {(await job.status()).state for job in jobs}
    finally:
        for silo in silos:
            await silo.stop()
    assert results == [2 * number for number in range(JOBS)]
    assert states == {JobState.SUCCEEDED}
    found = calls(tmp_path)
    assert {ran.process for ran in found} == pids, "both silos had jobs"
    assert {(ran.number, ran.job) for ran in found} == {(n, jobs[n].id) for n in range(JOBS)}
    late_s = [(ran.at_s, ran.at_s - dues[ran.number].timestamp()) for ran in found]
    assert min(late for _, late in late_s) > -0.01
    assert max(late for at_s, late in late_s if at_s < killed_s) < LATE_S
    assert max(late for _, late in late_s) < AFTER_CRASH_S
