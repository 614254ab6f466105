"""The job from start to end: start, publish, watch, ask, compare, report.

Owns: the order of the steps and the report. Invariant: the result is equal only if every figure is.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from millstream.runtime import MillstreamError
from millstream.runtime.silo_main import loop_factory

from .check import (
    Figures,
    Ranking,
    compare,
    count_here,
    figures_of_grains,
    missing_and_duplicated,
    worst,
)
from .cluster import CLUSTER, FlightCluster
from .progress import Progress
from .publish_csv import publish_csv
from .publish_spark import SparkFlights
from .view import LineView, NoView, TableView, View

__all__ = ["JobOptions", "run_job"]

T = TypeVar("T")

SAMPLE_S = 0.25
PATIENCE_S = 20.0
KILL_AT = 0.3
DIFFERENCES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What `millstream demo flights` was asked for."""

    source: str = "spark"
    is_local: bool = False
    rows_max: int | None = None
    silos: int = 3
    kills: bool = False
    keeps: bool = False
    is_json: bool = False
    work: Path | None = None


@dataclass(slots=True)
class Report:
    """The outcome."""

    published: int
    delivered: int
    missing: int
    duplicated: int
    seconds: float
    differences: list[str]

    @property
    def is_equal(self) -> bool:
        """Every figure is what it should be."""
        return not self.differences and not self.missing and not self.duplicated


def run_job(options: JobOptions) -> int:
    """Run the job; returns the exit code."""
    with ExitStack() as stack:
        work = options.work
        if work is None and options.keeps:
            work = Path(tempfile.mkdtemp(prefix="millstream-"))
        elif work is None:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-")))
        work.mkdir(parents=True, exist_ok=True)
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                return runner.run(Job(options, work).run())
        except MillstreamError as error:
            print(f"millstream demo flights: {error}", file=sys.stderr)
            return 1


class Job:
    """One run."""

    def __init__(self, options: JobOptions, work: Path) -> None:
        self._options = options
        self._work = work
        self._spark: SparkFlights | None = None
        self._progress = Progress(0)
        self._killed = False
        # one thread for all of Spark: a session belongs to the thread that made it
        self._spark_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spark")

    async def _in_spark(self, call: Callable[..., T], *args: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._spark_thread, call, *args)

    def _say(self, text: str) -> None:
        if not self._options.is_json:
            print(text, flush=True)

    async def run(self) -> int:
        """Start, run, report."""
        loop = asyncio.get_running_loop()
        try:
            if self._options.source == "spark":
                self._say("starting Spark ...")
                self._spark = await self._in_spark(SparkFlights, self._work, self._options.rows_max)
            async with FlightCluster(
                self._work, self._options.silos, self._options.is_local, self._options.kills
            ) as cluster:
                kind = "in this process" if self._options.is_local else "in processes of their own"
                self._say(f"{self._options.silos} silos {kind}: {', '.join(cluster.gateways)}")
                started_s = loop.time()
                expected = await self._expect()
                self._progress.expected = expected.events
                await self._publish_and_watch(cluster)
                found = await self._ask(cluster, expected)
                report = self._judge(expected, found, loop.time() - started_s)
                self._tell(report, found)
                if self._options.keeps:
                    await self._keep(cluster)
            return 0 if report.is_equal else 1
        finally:
            if self._spark is not None:
                await self._in_spark(self._spark.stop)

    async def _expect(self) -> Figures:
        if self._spark is not None:
            return await self._in_spark(self._spark.figures)
        return await asyncio.to_thread(count_here, self._options.rows_max)

    async def _publish_and_watch(self, cluster: FlightCluster) -> None:
        view = self._view()
        try:
            publishing = asyncio.ensure_future(self._publish(cluster))
            try:
                await self._watch(cluster, publishing, view)
            finally:
                if not publishing.done():
                    publishing.cancel()
            self._progress.published = await publishing
        finally:
            view.close()

    def _view(self) -> View:
        if self._options.is_json:
            return NoView()
        return TableView() if sys.stdout.isatty() else LineView(sys.stdout)

    async def _publish(self, cluster: FlightCluster) -> int:
        if self._spark is not None:
            return await self._in_spark(self._spark.publish, cluster.gateways)
        return await publish_csv(cluster.client, self._options.rows_max, self._count_published)

    def _count_published(self, count: int) -> None:
        self._progress.published += count

    async def _watch(
        self, cluster: FlightCluster, publishing: asyncio.Future[int], view: View
    ) -> None:
        """Sample until everything was delivered, or nothing moves any more."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while True:
            self._progress.sample(await cluster.stats(), loop.time())
            now_s = loop.time()
            view.show(self._progress, now_s - started_s, self._progress.eta_s(started_s, now_s))
            if publishing.done() and publishing.exception() is not None:
                return
            if publishing.done() and self._progress.delivered >= self._progress.expected:
                return
            if self._options.kills and not self._killed and self._progress.share >= KILL_AT:
                await self._kill(cluster)
            if publishing.done() and self._progress.stuck_s(now_s) > PATIENCE_S:
                self._say(
                    f"nothing was delivered for {PATIENCE_S:g} s; "
                    f"behind: {self._progress.lagging()}"
                )
                return  # the comparison says what is missing
            await asyncio.wait([publishing], timeout=SAMPLE_S)
            if publishing.done():
                await asyncio.sleep(SAMPLE_S / 5)

    async def _kill(self, cluster: FlightCluster) -> None:
        self._killed = True
        victim = cluster.processes[-1]
        self._say(f"killing {victim.address} (pid {victim.pid}) with SIGKILL")
        await victim.kill()

    async def _ask(self, cluster: FlightCluster, expected: Figures) -> Figures:
        """The grains' figures; asked again while events may still be on their way."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            found = await figures_of_grains(cluster.client, expected)
            if found.events >= expected.events or loop.time() > deadline:
                return found
            await asyncio.sleep(SAMPLE_S)

    def _judge(self, expected: Figures, found: Figures, seconds: float) -> Report:
        missing, duplicated = missing_and_duplicated(expected, found)
        differences = compare(expected, found)
        if self._progress.published != expected.events:
            differences.append(
                f"published {self._progress.published} events, the file has {expected.events}"
            )
        if self._options.kills and not self._killed:
            differences.append("no silo was killed: the job was over too soon")
        return Report(
            self._progress.published, found.events, missing, duplicated, seconds, differences
        )

    def _tell(self, report: Report, found: Figures) -> None:
        airports, planes = worst(found)
        if self._options.is_json:
            print(json.dumps(as_json(report, found, airports, planes)))
            return
        for title, rows in (("airports", airports), ("planes", planes)):
            print(f"\nworst {title} by mean arrival delay")
            for key, mean in rows:
                print(f"  {key:<8} {mean:7.1f} min")
        for difference in report.differences[:DIFFERENCES_SHOWN]:
            print(f"DIFFERENT: {difference}")
        verdict = "all figures are equal" if report.is_equal else "FIGURES DIFFER"
        print(
            f"\n{report.published:,} events published, {report.delivered:,} delivered, "
            f"{report.missing:,} missing, {report.duplicated:,} duplicated, "
            f"{report.seconds:.1f} s, {report.delivered / report.seconds:,.0f} events/s: {verdict}"
            f" ({len(found.airports)} airports, {len(found.planes):,} planes)"
        )

    async def _keep(self, cluster: FlightCluster) -> None:
        gateway = cluster.gateways[0]
        print(
            f"\nthe cluster stays up; connect with\n"
            f"  async with connect({gateway!r}, cluster={CLUSTER!r}) as client: ...\n"
            f"files are in {self._work}; Ctrl-C stops it",
            file=sys.stderr,
        )
        await asyncio.Event().wait()


def as_json(
    report: Report,
    found: Figures,
    airports: Ranking,
    planes: Ranking,
) -> dict[str, object]:
    """The report as one JSON object."""
    return {
        "published": report.published,
        "delivered": report.delivered,
        "missing": report.missing,
        "duplicated": report.duplicated,
        "seconds": round(report.seconds, 3),
        "events_per_s": round(report.delivered / report.seconds),
        "equal": report.is_equal,
        "differences": report.differences,
        "airports": len(found.airports),
        "planes": len(found.planes),
        "worst_airports": airports,
        "worst_planes": planes,
    }
