"""The job from start to end: start, publish, watch, ask, compare, report.

This module owns the order of the steps. The exit code is 0 only if every figure is equal. Nothing
that was started continues to run. With `is_json`, standard output gets one JSON object or nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from millstream.runtime import ConfigError, MillstreamError
from millstream.runtime.run import loop_factory, stop_signals

from .check import Figures, count_here, figures_of_grains
from .cluster import CLUSTER, FlightCluster
from .data import split_months
from .killing import Killer, Killing
from .progress import Progress
from .publish_csv import publish_csv
from .publish_spark import LOCAL, MONTHS, SparkFlights
from .report import Report, Troubles, judge
from .spark_process import SparkProcess
from .view import LineView, NoView, TableView, View

__all__ = ["JobOptions", "run_job"]

T = TypeVar("T")

SAMPLE_S = 0.25
QUICK_SAMPLE_S = 0.05  # short enough to kill in time
STUCK_S_MAX = 60.0
FIRST_EVENT_S = 180.0  # on a busy machine, Spark's first Python worker alone may take 40 s
DRAINED_S = 2.0  # the last deliveries of a killed silo are in no sample: this time tells the end
ENDED_BY = 128
"""The shell's exit code of a program that a signal ended is this plus the signal's number."""

log = logging.getLogger("millstream.flights")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of `python -m examples.flights`."""

    source: str = "spark"
    is_local: bool = False
    rows_max: int | None = None
    silos: int = 3
    is_durable: bool = False
    killing: Killing | None = None
    spark_victim: str = ""
    spark_master: str = LOCAL
    keeps: bool = False
    is_json: bool = False
    work: Path | None = None


def run_job(options: JobOptions) -> int:
    """Run the job; returns the exit code. Raises KeyboardInterrupt after cleaning up."""
    try:
        with ExitStack() as stack:
            work = _work_directory(options, stack)
            runner = stack.enter_context(asyncio.Runner(loop_factory=loop_factory()))
            return runner.run(_run_until_signal(Job(options, work)))
    except MillstreamError as error:
        print(f"python -m examples.flights: {error}", file=sys.stderr)
        return 1


def _work_directory(options: JobOptions, stack: ExitStack) -> Path:
    """Return the given directory, which must be empty, or a new one, removed at the end."""
    if options.work is None:
        if options.keeps:
            return Path(tempfile.mkdtemp(prefix="millstream-"))
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-")))
    try:
        options.work.mkdir(parents=True, exist_ok=True)
        is_empty = not any(options.work.iterdir())
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"--work {options.work} cannot be used as a directory: {why}") from None
    if not is_empty:
        raise ConfigError(f"--work {options.work} is not empty: the grains would add to its counts")
    return options.work.resolve()


async def _run_until_signal(job: Job) -> int:
    """Run the job. SIGTERM and SIGHUP cancel it, as Ctrl-C does, so that everything is stopped."""
    task = asyncio.ensure_future(job.run())
    terminated: list[signal.Signals] = []

    def terminate(number: signal.Signals) -> None:
        terminated.append(number)
        task.cancel()

    for number in stop_signals():
        if number != signal.SIGINT:  # SIGINT cancels by itself
            asyncio.get_running_loop().add_signal_handler(number, terminate, number)
    try:
        return await task
    except asyncio.CancelledError:
        if terminated:
            return ENDED_BY + terminated[0]
        raise


class Job:
    """One run."""

    def __init__(self, options: JobOptions, work: Path) -> None:
        self._options = options
        self._work = work
        self._spark: SparkFlights | None = None
        self._progress = Progress(0)
        self._failures: list[str] = []
        self._killer: Killer | None = None
        self._spark_process: SparkProcess | None = None
        # one thread for all of Spark, because a session belongs to the thread that created it
        self._spark_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spark")

    async def run(self) -> int:
        """Start, run, report; returns the exit code."""
        try:
            if self._options.source == "spark":
                await self._start_spark()
            return await self._run_in_cluster()
        finally:
            if self._spark is not None:  # from another thread, because Spark's own may be blocked
                await asyncio.to_thread(self._spark.stop)
            self._spark_thread.shutdown(wait=False, cancel_futures=True)

    async def _start_spark(self) -> None:
        """Start Spark in this process, or prepare a separate process that can be killed."""
        options = self._options
        await asyncio.to_thread(split_months, self._work / MONTHS, options.rows_max)
        if options.spark_victim:
            victim = options.spark_victim
            self._spark_process = SparkProcess(self._work, victim, self._count_delivered, self._say)
            return
        self._say("starting Spark ...")
        self._spark = await self._in_spark(SparkFlights, self._work, options.spark_master)

    async def _run_in_cluster(self) -> int:
        options = self._options
        is_one_lost = options.killing is not None and not options.killing.restarts
        cluster = FlightCluster(
            self._work,
            options.silos,
            is_local=options.is_local,
            is_durable=options.is_durable,
            is_last_gateway=not is_one_lost,
        )
        async with cluster:
            kind = "in this process" if options.is_local else "in processes of their own"
            kind += ", each with a bookie" if options.is_durable else ""
            self._say(f"{options.silos} silos {kind}: {', '.join(cluster.gateways)}")
            expected = await self._expect()
            self._progress.expected = expected.events
            seconds = await self._publish_and_watch(cluster)
            found = await self._ask(cluster, expected)
            troubles = self._troubles(cluster)
            published, failures = self._progress.published, self._failures
            report = judge(expected, found, published, seconds, failures, troubles)
            self._tell(report)
            if options.keeps:
                await self._keep(cluster)
        return 0 if report.is_equal else 1

    async def _in_spark(self, call: Callable[..., T], *args: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._spark_thread, call, *args)

    async def _expect(self) -> Figures:
        if self._spark is not None:
            return await self._in_spark(self._spark.figures)
        return await asyncio.to_thread(count_here, self._options.rows_max)

    # -- publishing

    async def _publish_and_watch(self, cluster: FlightCluster) -> float:
        """Publish until everything is delivered, or nothing moves any more; returns the seconds."""
        view = self._view()
        killing = asyncio.ensure_future(self._kill(cluster))
        publishing = asyncio.ensure_future(self._publish(cluster))
        try:
            seconds = await self._watch(cluster, publishing, view)
            if self._killer is not None:
                self._killer.stop()
                await killing
        finally:
            view.close()
            for task in (publishing, killing):
                task.cancel()
            await asyncio.gather(publishing, killing, return_exceptions=True)
        for task in (publishing, killing):
            if not task.cancelled():
                task.result()
        return seconds

    async def _kill(self, cluster: FlightCluster) -> None:
        """Kill silos while events flow, if the options say so."""
        plan = self._options.killing
        if plan is not None:
            self._killer = Killer(
                cluster, plan, self._options.silos, self._count_delivered, self._say
            )
            try:
                await self._killer.run()
            except MillstreamError as error:
                self._failures.append(f"a silo that was killed did not come back: {error}")
                self._killer.stop()

    def _count_delivered(self) -> float:
        """Return the delivered share of the job.

        A crashed silo cannot report its last deliveries: if publishers are held and the queues are
        empty, everything that was published is delivered.
        """
        progress = self._progress
        if progress.held and progress.is_drained:
            return progress.published / progress.expected
        return progress.share

    async def _publish(self, cluster: FlightCluster) -> None:
        progress = self._progress
        if self._spark is not None:
            progress.published = await self._in_spark(self._spark.publish, cluster.gateways)
            return
        if self._spark_process is not None:
            await self._spark_process.publish(cluster.gateways)
            progress.published = progress.expected  # a killed process cannot report its count
            return
        rows_max = self._options.rows_max
        await publish_csv(cluster.client, rows_max, progress.expected, self._count_published)

    async def _count_published(self, count: int) -> None:
        progress, killer = self._progress, self._killer
        progress.published += count
        while killer is not None and killer.holds(progress.published / progress.expected):
            progress.held += 1
            await asyncio.sleep(QUICK_SAMPLE_S)
            progress.held -= 1

    # -- watching

    async def _watch(
        self, cluster: FlightCluster, publishing: asyncio.Future[None], view: View
    ) -> float:
        loop = asyncio.get_running_loop()
        progress, started_s = self._progress, loop.time()
        while True:
            await self._sample(cluster)
            elapsed_s = loop.time() - started_s
            view.show(progress, elapsed_s, progress.eta_s(elapsed_s))
            if publishing.done() and (publishing.exception() or self._is_delivered()):
                return elapsed_s
            if self._is_stuck(publishing.done()):
                return elapsed_s
            is_quick = self._killer is not None or publishing.done()
            await asyncio.sleep(QUICK_SAMPLE_S if is_quick else SAMPLE_S)

    def _is_delivered(self) -> bool:
        """Everything is published: is it delivered too?"""
        progress, killer = self._progress, self._killer
        if progress.share >= 1 or killer is None:
            return progress.share >= 1
        still_s = progress.find_stuck_s(asyncio.get_running_loop().time())
        return not killer.is_busy and progress.is_drained and still_s >= DRAINED_S

    async def _sample(self, cluster: FlightCluster) -> None:
        try:
            stats = await cluster.stats()
        except MillstreamError as error:
            # the gateway may have crashed; the next sample follows
            log.info("no sample: %s", error)
            return
        self._progress.sample(stats, asyncio.get_running_loop().time())

    def _is_stuck(self, is_published: bool) -> bool:
        """Has nothing moved for too long? Note this as a failure; the comparison shows the rest."""
        stuck_s = self._progress.find_stuck_s(asyncio.get_running_loop().time())
        has_begun = self._progress.has_begun or is_published
        is_slow = self._spark_process is not None or not has_begun
        stuck_s_max = FIRST_EVENT_S if is_slow else STUCK_S_MAX
        if stuck_s <= stuck_s_max:
            return False
        self._failures.append(
            f"no event was read or delivered for {stuck_s_max:g} s; "
            f"undelivered: {self._progress.lagging()}"
        )
        return True

    # -- the outcome

    async def _ask(self, cluster: FlightCluster, expected: Figures) -> Figures:
        """Return the grains' figures; ask again while the last events may still be on their way."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (0 if self._failures else STUCK_S_MAX)
        while True:
            found = await figures_of_grains(cluster.client, expected)
            if found.events >= expected.events or loop.time() > deadline:
                return found
            await asyncio.sleep(SAMPLE_S)

    def _troubles(self, cluster: FlightCluster) -> Troubles | None:
        """Return the kills, and their effect on the cluster."""
        killer = self._killer
        if killer is None:
            return None
        changes = cluster.ensemble_changes() if self._options.is_durable else 0
        return Troubles(killer.kills, killer.back_max_s, self._progress.still_max_s, changes)

    def _view(self) -> View:
        if self._options.is_json:
            return NoView()
        return TableView() if sys.stdout.isatty() else LineView(sys.stdout)

    def _say(self, text: str) -> None:
        if not self._options.is_json:
            print(text, flush=True)

    def _tell(self, report: Report) -> None:
        if self._options.is_json:
            print(json.dumps(report.as_json()), flush=True)
            return
        for line in report.lines():
            print(line)
        sys.stdout.flush()

    async def _keep(self, cluster: FlightCluster) -> None:
        print(
            f"\nthe cluster keeps running; connect with\n"
            f"  async with connect({cluster.gateways[0]!r}, cluster={CLUSTER!r}) as client: ...\n"
            f"files are in {self._work}; Ctrl-C stops it",
            file=sys.stderr,
        )
        await asyncio.Event().wait()
