"""Crashes of Spark and of the cluster while a batch is staged. Run with `make
test-spark-faults`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from examples.flights.spark_process import kill_tree, tree_of
from tests.imports import ROOT
from tests.providers.index.kit import lived, wanted_contents
from tests.providers.index.suite import content, in_files
from tests.real.silo_thread import SiloThread
from tests.real.spark_processes import SparkSilos, wait_for
from tests.real.spark_rows import (
    ROWS,
    assert_once,
    assert_seen_once,
    batch_rows,
    staged,
    write_batch,
    write_files,
)
from tests.real.spark_standalone import StandaloneSpark

from millstream.providers.priority import PRIORITY_CHANGES, PriorityChange
from millstream.providers.spark.index import ChangeRow, PriorityIndex
from millstream.runtime import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 0.1

pytestmark = [pytest.mark.spark_faults, pytest.mark.timeout(400)]


def once(fault: Any) -> Any:
    """Map rows so that the second partition fails in its first attempt after some rows. The next
    attempt returns the rows in another order.
    """

    def go(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 1:
            yield from batches
        elif context.attemptNumber() == 0:
            yield next(batches)
            fault()
        else:
            for batch in batches:
                yield batch.take(list(reversed(range(batch.num_rows))))

    return go


def exits() -> None:
    os._exit(3)


def raises() -> None:
    raise OSError("on purpose")


@pytest.mark.parametrize("fault", [exits, raises], ids=["exits", "raises"])
def test_a_task_that_is_tried_again_and_sees_another_order_adds_nothing(
    spark: SparkSession, fault: Any
) -> None:
    rows = batch_rows(spark)
    with SiloThread() as silos:
        write_batch(rows.mapInArrow(once(fault), rows.schema), staged(silos))
        assert_seen_once(silos, are_ordered=False)


# -- crashes in the cluster


def waits(at_end: bool, folder: Path) -> Any:
    """Map rows so that the second partition waits for the test's fault, after its first rows or
    after all.
    """

    def go(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        is_here = context.partitionId() == 1
        for number, batch in enumerate(batches):
            yield batch
            if is_here and not at_end and number == 0:
                pause(folder)
        if is_here and at_end:
            pause(folder)

    return go


def pause(folder: Path) -> None:
    (folder / "is-here").touch()
    wait_for((folder / "go-on").exists)


def meanwhile(folder: Path, worst: Callable[[], None]) -> Future[None]:
    """Call `worst` while the second partition waits."""

    def do() -> None:
        try:
            wait_for((folder / "is-here").exists)
            worst()
        finally:
            (folder / "go-on").touch()

    return ThreadPoolExecutor(1).submit(do)


def test_a_gateway_that_is_killed_half_way_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = batch_rows(spark)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    with SparkSilos(tmp_path) as silos:
        doing = meanwhile(tmp_path, lambda: silos.kill(0))
        write_batch(rows.mapInArrow(waits(False, tmp_path), rows.schema), options_of(silos))
        doing.result()
        assert_once(silos.seen())


def test_each_silo_that_is_killed_between_stage_and_commit_loses_and_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Every silo is killed, so the coordinator of the writer is among them."""
    rows = batch_rows(spark)
    with SparkSilos(tmp_path) as silos:

        def kill_each() -> None:
            for number in range(3):
                silos.kill(number)
                silos.start_again(number)

        doing = meanwhile(tmp_path, kill_each)
        write_batch(rows.mapInArrow(waits(True, tmp_path), rows.schema), options_of(silos))
        doing.result()
        assert_once(silos.seen())


def options_of(silos: SparkSilos) -> dict[str, str]:
    return {"gateways": silos.gateways, "namespace": silos.namespace, "patience_s": "90"}


# -- crashes in Spark


def test_a_driver_and_its_jvm_that_are_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    """The driver is killed twice in the middle of micro-batches, then continues from its checkpoint
    to the end.
    """
    write_files(tmp_path / "in", parts=8)
    with SparkSilos(tmp_path) as silos:
        start = driver_of("spark_driver", tmp_path, silos.gateways, silos.namespace)
        for wanted in (ROWS // 8, ROWS // 2):
            kill_once(start(), silos.count, wanted)
            assert silos.count() < ROWS
        assert start().wait(300) == 0
        assert_once(silos.seen())


def driver_of(module: str, folder: Path, *arguments: str) -> Callable[[], subprocess.Popen[bytes]]:
    """Return a function that starts a driver."""
    command = [sys.executable, "-m", f"tests.real.{module}", str(folder), *arguments]

    def start() -> subprocess.Popen[bytes]:
        with (folder / "driver.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    return start


def kill_once(driver: subprocess.Popen[bytes], count: Callable[[], int], wanted: int) -> None:
    """Kill the driver and its JVM once the count reaches `wanted`."""
    pause = threading.Event()
    while count() < wanted:
        assert driver.poll() is None, "it ended before"
        pause.wait(LOOK_S)  # counting takes a core, which the driver needs
    assert kill_tree(driver.pid) > 2  # the driver and at least a JVM
    driver.wait()


def test_an_index_whose_driver_and_jvm_are_killed_has_each_change_once(tmp_path: Path) -> None:
    """The driver is killed twice between steps of its batches, then continues to the end."""
    changes = lived(1, queues=3, ids=200, steps=6_000)
    place = f"sqlite:{tmp_path}/index.db"

    def count() -> int:
        if not (tmp_path / "index.db").exists():
            return 0
        try:
            with PriorityIndex(place) as index:
                return sum(state.visits for state in index.time_in_state())
        except ConfigError:  # the driver is creating the tables
            return 0

    with SparkSilos(tmp_path) as silos:
        silos.publish(PRIORITY_CHANGES, published(changes))
        start = driver_of("spark_index_driver", tmp_path, silos.gateways, "checkpoint")
        for wanted in (500, 2_500):
            kill_once(start(), count, wanted)
            assert count() < 5_000
        assert start().wait(300) == 0
    assert content(place) == wanted_contents(changes)
    assert in_files(tmp_path / "history") == sorted(row[:6] for row in changes)


def published(changes: list[ChangeRow]) -> dict[str, list[PriorityChange]]:
    """Turn rows into the published changes, by queue."""
    found: dict[str, list[PriorityChange]] = {}
    for row in changes:
        fields = {**row._asdict(), "metadata": json.loads(row.metadata)}
        del fields["token"]
        found.setdefault(row.queue, []).append(PriorityChange(**fields))
    return found


def test_connect_writes_and_reads_as_a_session_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="gRPC is not installed (extra `connect`)")
    with SparkSilos(tmp_path) as silos:
        command = [sys.executable, "-m", "tests.real.spark_connect"]
        arguments = [str(tmp_path), silos.gateways, silos.namespace]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
        assert done.stdout.split() == [str(ROWS)], done.stdout + done.stderr[-2000:]
        assert_once(silos.seen())


def run_demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.flights", *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=390, check=False
    )


@pytest.mark.parametrize("victim", ["worker", "driver"])
def test_the_flights_are_equal_though_spark_is_killed_on_the_way(victim: str) -> None:
    done = run_demo("--kill-spark", victim, "--rows", "40000", "--silos", "2")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("killed") == 2 and "equal" in done.stdout


def test_a_standalone_master_with_two_workers_runs_the_demo(tmp_path: Path) -> None:
    with StandaloneSpark(tmp_path) as spark:
        done = run_demo("--spark-master", spark.master, "--rows", "20000", "--silos", "2")
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        assert "equal" in done.stdout
        executors = [*tmp_path.glob("worker-*/app-*/*/stderr")]
        assert len({path.parents[2] for path in executors}) == 2, "both workers worked"


def test_a_tree_of_processes_is_killed_whole() -> None:
    command = ["sh", "-c", "sleep 100 & sh -c 'sleep 100 & wait' & wait"]
    root = subprocess.Popen(command)
    wait_for(lambda: len(tree_of(root.pid)) == 4)
    found = tree_of(root.pid)
    assert kill_tree(root.pid) == 4 and root.wait() == -signal.SIGKILL
    wait_for(lambda: not any(is_running(pid) for pid in found))


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
