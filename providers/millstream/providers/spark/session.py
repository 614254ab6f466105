"""Starts a SparkSession whose workers find Millstream, with little log output.

This module owns Java, the settings and the environment of the JVM that PySpark starts. When
`session` returns, the environment of this process is unchanged. The caller's settings take
precedence. If this process has already started a JVM, that JVM is used, with its own Java.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.runtime import ConfigError

from .java import default_cache_dir, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session", "settings", "source_roots"]

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
PACKAGES = ("millstream", "pyspark_millstream")
EVERYWHERE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.speculation": "false",
}
ON_ONE_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
}


def session(
    app_name: str,
    *,
    master: str = "local[2]",
    remote: str = "",
    extra_conf: Mapping[str, str] | None = None,
    cache_dir: Path | None = None,
) -> SparkSession:
    """Start a Spark session that knows `format("millstream")`.

    The session logs at ERROR and has no UI. Its time zone is UTC, it shuffles into 2 partitions,
    and it runs no speculative tasks. It uses the first Java 17 or newer in `JAVA_HOME`, on `PATH`,
    or in the wheel of the extra `spark`. The variable `MILLSTREAM_JAVA` (`system` or `wheel`)
    selects one. The first session of a process takes 3 to 30 s and starts a JVM of 0.5 to 1.5 GB.
    Use the session in the thread that created it.

    ```python
    spark = session("my-job")
    rows = spark.read.format("millstream").option("gateways", "127.0.0.1:7700")
    ```

    Args:
        app_name: The name of the application in Spark.
        master: The Spark master. `local[2]` runs Spark in this process with two threads. If all of
            Spark runs on this machine, the driver uses 127.0.0.1 and 1 GB of memory.
        remote: A Spark Connect server in place of `master`, such as `sc://host:15002`, whose Python
            must find Millstream; or `local[2]` for a server of its own. It needs
            `pyspark[connect]`, and only settings of SQL reach the server.
        extra_conf: Settings of Spark that override those of this function. Java options are added
            to them.
        cache_dir: A directory for the start script of Java. Default: a directory among the user's
            caches. Windows has no such script.

    Returns:
        An ordinary `SparkSession`.

    Raises:
        ConfigError: PySpark or Java 17 is missing, `MILLSTREAM_JAVA` is not valid, or `cache_dir`
            cannot be written.
    """
    if find_spec("pyspark") is None:
        raise ConfigError("pyspark is not installed: install the extra millstream[spark]")
    from pyspark.sql import SparkSession

    java_home = find_java(cache_dir or default_cache_dir())
    builder = SparkSession.builder.appName(app_name)
    builder = builder.remote(remote) if remote else builder.master(master)
    for name, value in settings(master, extra_conf or {}).items():
        if not remote or name.startswith("spark.sql."):
            builder = builder.config(name, value)
    with _environment(_launch_variables(java_home)):
        spark = builder.getOrCreate()
    return spark


def settings(master: str, extra_conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session. `extra_conf` overrides them; its Java options are added."""
    merged = {**EVERYWHERE, **(ON_ONE_MACHINE if is_here(master) else {}), **extra_conf}
    logging = Path(__file__).with_name("log4j2.properties").as_uri()
    ours = f'"-Dlog4j2.configurationFile={logging}"'
    merged[JAVA_OPTIONS] = f"{ours} {extra_conf.get(JAVA_OPTIONS, '')}".strip()
    return merged


def is_here(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    host = master.removeprefix("spark://").partition(":")[0]
    return master.startswith("local") or host in ("127.0.0.1", "localhost")


def source_roots() -> list[str]:
    """Return the directories from which workers import `millstream` and `pyspark_millstream`."""
    roots: dict[str, None] = {}
    for package in PACKAGES:
        spec = find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            roots[str(Path(place).resolve().parent)] = None
    return list(roots)


def _launch_variables(java_home: Path) -> dict[str, str]:
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {
        "JAVA_HOME": str(java_home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(source_roots() + inherited)),
    }


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the JVM that starts in this block, then restore the old ones."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
