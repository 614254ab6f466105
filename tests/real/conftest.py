"""One Spark session for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.runtime import ConfigError


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session that runs a failing task up to three times."""
    pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
    from millstream.providers.spark import session

    faster = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # With UNIX sockets, a worker cannot reuse a connection to a silo that had the same port
        # before.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    try:
        started = session(
            "millstream-tests",
            master="local[2,4]",
            extra_conf=faster,
            cache_dir=tmp_path_factory.mktemp("java"),
        )
    except ConfigError as error:
        pytest.skip(f"Spark cannot start: {error}")
    started.sparkContext.setLogLevel("OFF")  # some tasks fail on purpose
    yield started
    started.stop()
