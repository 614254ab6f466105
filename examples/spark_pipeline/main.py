"""A declarative pipeline of Spark between streams: `python examples/spark_pipeline/main.py`.

The program starts a silo, publishes arrivals, and runs the pipeline twice, with more arrivals in
between. It prints the events that the pipeline published: every late flight once.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues, LedgerTopicOptions
from millstream.providers.spark.java import default_cache_dir, find_java
from millstream.runtime import Grain, LocalCluster
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe

HERE = Path(__file__).parent
SPEC = (
    "name: delays\nstorage: {storage}\nlibraries:\n  - glob:\n      include: transformations/**\n"
)
# keeps the list of tables, in Derby
KEPT_TABLES = ("--conf", "spark.sql.catalogImplementation=hive")
KEPT = LedgerOptions(topic=LedgerTopicOptions(retention_s=3600))


@dataclass(frozen=True, slots=True)
class Flight:
    """One arrival; `delay` in minutes."""

    carrier: str
    dest: str
    delay: int


ARRIVALS = StreamNamespace("arrivals", Flight)
LATE = StreamNamespace("late", Flight)
HEARD: asyncio.Queue[Flight] = asyncio.Queue()
LATE_IN_RUN = 4


class Desk(Grain):
    """Handles late flights to its airport."""

    @subscribe(LATE)
    async def on_late(self, event: Event[Flight]) -> None:
        """Note a late flight."""
        HEARD.put_nowait(event.item)


def run_pipeline(work: Path, gateway: str) -> None:
    """Run the pipeline over all present events. Raises CalledProcessError."""
    programs = Path(sysconfig.get_path("scripts"))
    java = find_java(default_cache_dir())
    environment = {**os.environ, "JAVA_HOME": str(java), "MILLSTREAM_GATEWAYS": gateway}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    with (work / "spark.log").open("ab") as log:
        command = [str(programs / "spark-pipelines"), *KEPT_TABLES, "run"]
        command += ["--spec", "spark-pipeline.yml"]
        subprocess.run(command, cwd=work, env=environment, stdout=log, stderr=log, check=True)


async def main(work: Path) -> None:
    """Publish, run, publish more, run again."""
    shutil.copytree(HERE / "transformations", work / "transformations")
    storage = (work / "storage").as_uri()
    (work / "spark-pipeline.yml").write_text(SPEC.format(storage=storage))

    def streams() -> PersistentStreams:
        return PersistentStreams(LedgerQueues(work / "ledger", KEPT), balancer=DeploymentBalancer())

    async with LocalCluster(grains=[Desk], streams={"default": streams}) as cluster:
        for number, carrier in enumerate(("B6", "AA")):
            for dest in ("BOS", "JFK"):
                flights = [Flight(carrier, dest, delay) for delay in range(0, 100, 20)]
                await cluster.stream(ARRIVALS, dest).publish_many(flights)
            await asyncio.to_thread(run_pipeline, work, cluster.silos[0].gateway)
            async with asyncio.timeout(60):
                late = [await HEARD.get() for _ in range(LATE_IN_RUN)]
            print(f"run {number + 1}: {len(late)} late flights")
            tell(late)
    assert HEARD.empty(), "each flight arrives once"


def tell(late: list[Flight]) -> None:
    """Print a line for each flight."""
    for flight in sorted(late, key=lambda one: (one.carrier, one.dest, one.delay)):
        print(f"{flight.carrier} to {flight.dest}: {flight.delay} min late")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(main(Path(folder)))
        except subprocess.CalledProcessError:
            print((Path(folder) / "spark.log").read_text()[-3000:], file=sys.stderr)
            raise SystemExit(1) from None
