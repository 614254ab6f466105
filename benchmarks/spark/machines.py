"""A silo in its own process, a Spark session in this one, and the cost of each.

This module owns `Machines` and `Cost`. CPU time is that of the JVM, of its Python workers, and of
the silo. It works only on Linux.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from examples.flights.spark_process import tree_of

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues, LedgerTopicOptions
from millstream.providers.spark import session
from millstream.providers.sqlite import SqliteMembershipTable, SqliteStateStore
from millstream.runtime import Silo
from millstream.runtime.run import SiloProcess, SiloProcesses
from millstream.streams import HashRingMapper, PersistentStreams

__all__ = ["CLUSTER", "Cost", "Figures", "Machines", "make_silo", "per_row"]

CLUSTER = "spark-benchmark"
QUEUES = 4
TICKS = os.sysconf("SC_CLK_TCK")
KEEP = LedgerOptions(topic=LedgerTopicOptions(retention_s=None))
ROUNDS = 3
Figures = dict[str, float]


def make_silo(work: str) -> Silo:
    """Return one silo with durable queues that keep their content."""
    streams = PersistentStreams(
        LedgerQueues(f"{work}/ledger", KEEP),
        mapper=HashRingMapper(queues=QUEUES),
        balancer=DeploymentBalancer(),
    )
    return Silo(
        grains=[],
        cluster=CLUSTER,
        membership=SqliteMembershipTable(work),
        stores={"default": SqliteStateStore(work)},
        streams={"default": streams},
    )


class Cost(NamedTuple):
    """Seconds of wall time, and CPU seconds of each part."""

    seconds: float
    jvm_s: float
    python_s: float
    silo_s: float


class Machines:
    """`async with Machines(work) as machines`."""

    def __init__(self, work: Path) -> None:
        self._work = work
        made = SiloProcess("benchmarks.spark.machines:make_silo", {"work": str(work)}, work / "log")
        self._silos = SiloProcesses([made])
        self.gateway = ""
        self.spark: Any = None

    async def __aenter__(self) -> Machines:
        await self._silos.start()
        self.gateway = self._silos[0].gateway
        self.spark = session("benchmark", extra_conf={"spark.driver.memory": "1500m"})
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.spark.stop()
        await self._silos.kill()

    def options(self, namespace: str) -> dict[str, str]:
        """Return options of `format("millstream")`."""
        return {"gateways": self.gateway, "cluster": CLUSTER, "namespace": namespace}

    def cost(self, act: Callable[[], object]) -> Cost:
        """Return the cost of a function."""
        before, begin_s = self._used_s(), time.perf_counter()
        act()
        seconds = time.perf_counter() - begin_s
        used = [now - then for now, then in zip(self._used_s(), before, strict=True)]
        return Cost(seconds, *used)

    def costs(self, act: Callable[[int], object]) -> Cost:
        """Return the median of each part over `ROUNDS`, after a warm-up."""
        act(0)
        found = [self.cost(lambda number=number: act(number)) for number in range(1, ROUNDS + 1)]  # type: ignore[misc]
        return Cost(*(statistics.median(part) for part in zip(*found, strict=True)))

    def _used_s(self) -> tuple[float, float, float]:
        jvm = self.spark.sparkContext._gateway.proc.pid
        workers = sum(used_s(pid) for pid in tree_of(jvm) if pid != jvm)
        return used_s(jvm), workers, used_s(self._silos[0].pid)


def used_s(pid: int) -> float:
    """Return the CPU time of a process, and of its children that have ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS
    return 0.0


def per_row(name: str, rows: int, cost: Cost) -> Figures:
    """Return rows a second, and microseconds of CPU for each row."""
    return {
        name: rows / cost.seconds,
        f"{name}_jvm_us": cost.jvm_s / rows * 1e6,
        f"{name}_python_us": cost.python_s / rows * 1e6,
        f"{name}_silo_us": cost.silo_s / rows * 1e6,
    }
