"""`python -m benchmarks detection --overload SECONDS [--json]`: are late silos evicted?

For each set of membership options there is a cluster of three silo processes on SQLite, and all
clusters run at the same time. On every core, four processes only compute, each in its own session,
so that a scheduler that shares by sessions gives them as much as a silo. A silo gets a small share
of a core, and gets it late. This process calls each cluster all the time. A call holds the loop for
some milliseconds, and sometimes for longer. No silo hangs, so each eviction is false. Figures, for
each set of options:

- `evicted`: silos that the others declared dead; must be 0.
- `votes`: how often a silo voted against another one. Without a second vote no silo is evicted.
- `probes_silent`: probes without an answer in time. `probes_unknown`: probes without a result,
  because the asking silo was late itself.
- `lag_max_s`: longest delay of a loop, as the silos logged it, from 1 s on.
- `calls`, `failed`, `p50_ms`, `p99_ms`, `max_ms`: figures of the calls.

The exit code is 1 if a silo was evicted.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millstream.providers.sqlite import SqliteMembershipTable
from millstream.runtime import Client, Grain, MillstreamError, Silo, Status, connect, grain
from millstream.runtime.run import SiloProcess, SiloProcesses

from .detection import OPTIONS

__all__ = ["make_silo", "report"]

SILOS = 3
BUSY_PER_CORE = 4
CALLERS = 6
GRAINS = 60
LOOK_S = 0.25
CALL_MS = 5
LONG_MS, LONG_EVERY = 400, 200
"""One of `LONG_EVERY` calls holds the loop for `LONG_MS`."""
BUSY = "while True: pass"
PROBE = re.compile(r": probe: (silent|unknown): ")
LATE = re.compile(r"the event loop runs again after ([0-9.]+) s")


@grain(name="OverloadTarget")
class Target(Grain):
    """A grain that computes."""

    async def compute(self, milliseconds: int) -> None:
        end = time.perf_counter() + milliseconds / 1000
        while time.perf_counter() < end:
            pass


def make_silo(directory: str, detection: str) -> Silo:
    """Return a silo of a cluster, in its own process."""
    text = f"sqlite:{directory}"
    return Silo(
        grains=[Target],
        membership=text,
        stores={"default": text},
        membership_options=OPTIONS[detection],
    )


@dataclass
class Observed:
    """The observations of one cluster."""

    evicted: set[str] = field(default_factory=set)
    votes: set[tuple[str, str, float]] = field(default_factory=set)
    took_ms: list[float] = field(default_factory=list)
    failed: int = 0

    def figures(self, logs: list[Path]) -> dict[str, float]:
        """Return all observations as numbers."""
        said = "".join(path.read_text(errors="replace") for path in logs)
        signs = PROBE.findall(said)
        took_ms = sorted(self.took_ms) or [0.0]
        return {
            "evicted": len(self.evicted),
            "votes": len(self.votes),
            "probes_silent": signs.count("silent"),
            "probes_unknown": signs.count("unknown"),
            "lag_max_s": max(map(float, LATE.findall(said)), default=0.0),
            "calls": len(self.took_ms),
            "failed": self.failed,
            "p50_ms": statistics.median(took_ms),
            "p99_ms": took_ms[int(len(took_ms) * 0.99)],
            "max_ms": took_ms[-1],
        }


async def report(seconds: float, is_json: bool) -> int:
    """Run and print; return the exit code."""
    with tempfile.TemporaryDirectory() as folder, busy_cores():
        parts = [_cluster(name, made(Path(folder) / name), seconds) for name in OPTIONS]
        found = dict(zip(OPTIONS, await asyncio.gather(*parts), strict=True))
    if is_json:
        print(json.dumps({"seconds": seconds, "figures": found}))
    else:
        print(f"{'':16}" + "".join(f"{name:>12}" for name in found))
        for key in next(iter(found.values())):
            print(f"{key:16}" + "".join(f"{figures[key]:12,.1f}" for figures in found.values()))
    return 1 if any(figures["evicted"] for figures in found.values()) else 0


def made(folder: Path) -> Path:
    """Create the folder and return it."""
    folder.mkdir()
    return folder


@contextmanager
def busy_cores() -> Iterator[None]:
    """Run processes that compute, several for each core."""
    count = BUSY_PER_CORE * (os.cpu_count() or 1)
    command = [sys.executable, "-c", BUSY]
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def _cluster(detection: str, work: Path, seconds: float) -> dict[str, float]:
    """Run one cluster for some seconds."""
    data, logs = str(work / "data"), [work / f"{number}.log" for number in range(SILOS)]
    arguments = {"directory": data, "detection": detection}
    silos = [SiloProcess(f"{__name__}:make_silo", arguments, log) for log in logs]
    observed = Observed()
    async with AsyncExitStack() as stack:
        processes = await stack.enter_async_context(SiloProcesses(silos))
        client = await stack.enter_async_context(connect(*(one.gateway for one in processes)))
        working = [_watch(observed, data)]
        working += [_call(observed, client, number) for number in range(CALLERS)]
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*working)
        except TimeoutError:
            pass
        await _look(observed, data)
    return observed.figures(logs)


async def _watch(observed: Observed, data: str) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        await _look(observed, data)


async def _look(observed: Observed, data: str) -> None:
    """Record the votes and the dead silos in the present table."""
    table = SqliteMembershipTable(data)
    try:
        view = await table.read()
    finally:
        await table.aclose()
    for row in view.rows:
        observed.votes |= {(row.silo, voter, time_s) for voter, time_s in row.suspicions}
        if row.status is Status.DEAD:
            observed.evicted.add(row.silo)


async def _call(observed: Observed, client: Client, number: int) -> None:
    """Call grains, one after the other, for ever."""
    loop, count = asyncio.get_running_loop(), number
    while True:
        count += CALLERS
        milliseconds = LONG_MS if count % LONG_EVERY == number else CALL_MS
        started_s = loop.time()
        try:
            await client.grain(Target, f"{count % GRAINS}").compute(milliseconds)
        except MillstreamError:
            observed.failed += 1
            await asyncio.sleep(0.1)
        else:
            observed.took_ms.append((loop.time() - started_s) * 1000)
