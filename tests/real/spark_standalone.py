"""A standalone Spark master with two workers, each a JVM, on free loopback ports."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from tests.real.redis_server import free_port
from tests.real.spark_processes import wait_for

from millstream.providers.spark.java import find_java

__all__ = ["StandaloneSpark"]

CLASS = "org.apache.spark.deploy"
WORKERS = 2


class StandaloneSpark:
    """A Spark cluster that runs inside the `with` block. `master` is its address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self._port = str(port)
        self.master = f"spark://127.0.0.1:{port}"

    def __enter__(self) -> StandaloneSpark:
        on_loopback = ("--host", "127.0.0.1", "--webui-port", "0")
        self._start("master.Master", *on_loopback, "--port", self._port)
        self._wait_for("master.Master", "Starting Spark master")
        for number in range(WORKERS):
            work = str(self._folder / f"worker-{number}")
            size = ("--cores", "1", "--memory", "1g", "--work-dir", work)
            self._start("worker.Worker", *on_loopback, *size, self.master)
        self._wait_for("master.Master", "Registering worker", WORKERS)
        return self

    def _start(self, name: str, *arguments: str) -> None:
        spec = find_spec("pyspark")
        assert spec is not None and spec.submodule_search_locations
        home = Path(spec.submodule_search_locations[0])
        java = find_java(self._folder / "java")
        environment = {**os.environ, "JAVA_HOME": str(java), "SPARK_HOME": str(home)}
        environment["SPARK_DAEMON_MEMORY"] = "256m"
        with self._log(name).open("ab") as log:
            command = [str(home / "bin" / "spark-class"), f"{CLASS}.{name}", *arguments]
            made = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._processes.append(made)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _wait_for(self, name: str, text: str, count: int = 1) -> None:
        def has_come() -> bool:
            assert all(one.poll() is None for one in self._processes), self._log(name).read_text()
            return self._log(name).read_text().count(text) >= count

        wait_for(has_come)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in reversed(self._processes):  # a worker ends its executors
            one.terminate()
        for one in self._processes:
            one.wait(30)
