"""Spark in a process of its own, which is killed while the flights flow and goes on from its
checkpoints.

Owns: `SparkProcess`: the process, who of it is killed and when; `kill_tree`. Not: what it runs
(`publish_spark`). Invariants: nothing of it is left running, whatever happens to this process: it
ends when its standard input does. Linux only: processes are found in /proc.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from millstream.runtime import MillstreamError

__all__ = ["DRIVER", "WORKER", "SparkProcess", "kill_tree", "tree_of"]

DRIVER, WORKER = "driver", "worker"
KILLS_MAX = 2
EVERY = 0.25
"""One kill behind each quarter of the job."""
LOOK_S = 0.05
SHOWN_CHARS = 1000
WORKER_PROGRAM = b"pyspark.daemon"


class SparkProcess:
    """Publishes all flights, though it is killed.

    Args:
        victim: `DRIVER`: driver and JVM are killed, and started again; `WORKER`: a Python worker
            is, and Spark does the rest.
        share: how much of the job is delivered, 0..1.
        say: takes a line for people.
    """

    def __init__(
        self, work: Path, victim: str, share: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        self.kills = 0
        self._work = work
        self._victim = victim
        self._share = share
        self._say = say
        self._log = work / "spark.log"

    async def publish(self, gateways: Sequence[str]) -> None:
        """Return when everything is written. Raises MillstreamError: Spark could not."""
        while not await self._run(gateways):
            self._say("  and started again, from its checkpoints")

    async def _run(self, gateways: Sequence[str]) -> bool:
        """Run it; False: it was killed."""
        command = (sys.executable, "-m", "examples.flights.publish_spark")
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(self._work),
                *gateways,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; it hears of our end
            )
        try:
            return await self._watch(process)
        finally:
            if process.returncode is None:
                kill_tree(process.pid)
                await process.wait()

    async def _watch(self, process: asyncio.subprocess.Process) -> bool:
        ended = asyncio.ensure_future(process.wait())
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=LOOK_S)
                is_due = self.kills < KILLS_MAX and self._share() >= EVERY * (self.kills + 1)
                if is_due and not ended.done() and self._kill(process.pid):
                    return False
        finally:
            ended.cancel()
        if process.returncode:
            said = self._log.read_text(errors="replace")[-SHOWN_CHARS:]
            raise MillstreamError(f"Spark ended with {process.returncode}: {said}")
        return True

    def _kill(self, pid: int) -> bool:
        """Kill whom it is the turn of; is all of it dead?"""
        if self._victim == DRIVER:
            self.kills += 1
            self._say(f"killed Spark's driver and its JVM with SIGKILL: {kill_tree(pid)} processes")
            return True
        workers = workers_of(pid)
        if workers:
            self.kills += 1
            os.kill(workers[0], signal.SIGKILL)
            self._say(f"killed a Python worker of Spark with SIGKILL, one of {len(workers)}")
        return False


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def tree_of(pid: int) -> list[int]:
    """A process, and all that it started, and they."""
    found = [pid]
    for one in found:
        found += children_of(one)
    return found


def workers_of(pid: int) -> list[int]:
    """The Python workers among them: what Spark's daemon has forked."""
    daemons = [one for one in tree_of(pid) if WORKER_PROGRAM in command_of(one)]
    return [child for one in daemons for child in children_of(one) if child in daemons]


def command_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def kill_tree(pid: int) -> int:
    """SIGKILL to a process and all that it started; returns how many that were."""
    found = tree_of(pid)
    for one in found:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    return len(found)
