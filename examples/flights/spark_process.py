"""Spark in a separate process, which is killed and continues from its checkpoints.

This module owns `SparkProcess` (the process, its victims and the times of kills) and `kill_tree`.
`publish_spark` is the program. The process ends when its standard input ends, so nothing continues
to run if this process crashes. It works only on Linux, because it finds processes in /proc.
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
"""One kill after each quarter of the job."""
LOOK_S = 0.05
SHOWN_CHARS = 1000
WORKER_PROGRAM = b"pyspark.daemon"


class SparkProcess:
    """Publishes all flights, although it is killed.

    Args:
        victim: `DRIVER` kills and restarts driver and JVM. `WORKER` kills a Python worker, which
            Spark replaces.
        share: Returns the delivered share of the job, 0..1.
        say: Prints a line for people.
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
        """Return when everything is written. Raises MillstreamError if Spark failed."""
        while not await self._run(gateways):
            self._say("  and started again, from its checkpoints")

    async def _run(self, gateways: Sequence[str]) -> bool:
        """Run the process; False if it was killed."""
        command = (sys.executable, "-m", "examples.flights.publish_spark")
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(self._work),
                *gateways,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches only us, and the process ends with our pipe
                start_new_session=True,
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
            raise MillstreamError(f"Spark ended with exit code {process.returncode}: {said}")
        return True

    def _kill(self, pid: int) -> bool:
        """Kill the next victim; returns whether the whole process is dead."""
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
    with suppress(OSError):  # the process has ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def tree_of(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    found = [pid]
    for one in found:
        found += children_of(one)
    return found


def workers_of(pid: int) -> list[int]:
    """Return the Python workers: the processes that Spark's daemon forked."""
    daemons = [one for one in tree_of(pid) if WORKER_PROGRAM in command_of(one)]
    return [child for one in daemons for child in children_of(one) if child in daemons]


def command_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def kill_tree(pid: int) -> int:
    """Kill a process and all its descendants with SIGKILL; return their number."""
    found = tree_of(pid)
    for one in found:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    return len(found)
