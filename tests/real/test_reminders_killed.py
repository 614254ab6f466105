"""Reminders of real processes over SQLite files, while one of two silos is killed."""

from __future__ import annotations

import asyncio
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from millstream.runtime import Grain, connect, grain
from millstream.runtime.run import SiloProcess

pytestmark = pytest.mark.real

ALARMS = 60
FIRST_S, LAST_S, KILLED_S = 3.0, 13.0, 7.0
LATE_S = 1.0
AFTER_CRASH_S = 6.0 + 5.0
"""The time to detect a crash (docs/concepts/clusters.md), and to take the reminders over."""

MODULE = """
import os
from datetime import datetime
from pathlib import Path
from time import time
from millstream.runtime import Grain, Occurrence, Silo, grain, reminder

RUNG = Path(__file__).with_name("rung")

@grain(name="KilledAlarm")
class Alarm(Grain):
    async def arm(self, at: datetime) -> None:
        await self.context.reminders.set("ring", at=at)

    @reminder
    async def ring(self, occurrence: Occurrence) -> None:
        line = f"{self.key} {occurrence.due.timestamp()} {time()} {os.getpid()}\\n"
        with RUNG.open("a") as file:
            file.write(line)

def make(directory):
    text = f"sqlite:{directory}"
    return Silo(grains=[Alarm], membership=text, stores={"default": text}, reminders=text)
"""


class Ring(NamedTuple):
    """One call of a handler."""

    key: str
    due_s: float
    at_s: float
    process: int


@grain(name="KilledAlarm")
class Alarm(Grain):
    async def arm(self, at: datetime) -> None:
        raise NotImplementedError


def rings(folder: Path) -> list[Ring]:
    if not (folder / "rung").exists():
        return []
    rows = [line.split() for line in (folder / "rung").read_text().splitlines()]
    return [Ring(row[0], float(row[1]), float(row[2]), int(row[3])) for row in rows]


async def test_each_occurrence_is_delivered_in_time_although_a_silo_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "killed_alarms.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    silos = [
        SiloProcess("killed_alarms:make", {"directory": str(tmp_path / "data")}, tmp_path / name)
        for name in ("first.log", "second.log")
    ]
    for silo in silos:
        await silo.start()
    victim, other = silos
    pids = {silo.pid for silo in silos}
    try:
        async with connect(other.gateway) as client:
            begun = datetime.now(UTC)
            step_s = (LAST_S - FIRST_S) / ALARMS
            for number in range(ALARMS):
                at = begun + timedelta(seconds=FIRST_S + number * step_s)
                await client.grain(Alarm, f"a{number}").arm(at)
            killed_s = begun.timestamp() + KILLED_S
            await asyncio.sleep(killed_s - datetime.now(UTC).timestamp())
            await victim.kill()
            async with asyncio.timeout(LAST_S + AFTER_CRASH_S + 20):
                while len({ring.key for ring in rings(tmp_path)}) < ALARMS:
                    await asyncio.sleep(0.2)
    finally:
        for silo in silos:
            await silo.stop()
    found = rings(tmp_path)
    assert {ring.process for ring in found} == pids, "both silos had reminders"
    first = {ring.key: ring for ring in reversed(found)}
    late = [ring.at_s - ring.due_s for ring in first.values()]
    before = [ring.at_s - ring.due_s for ring in found if ring.at_s < killed_s]
    assert min(late) > -0.01
    assert max(before) < LATE_S
    assert max(late) < AFTER_CRASH_S
