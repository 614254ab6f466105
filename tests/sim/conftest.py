"""Reports the seeds that were run, even if all tests pass."""

from __future__ import annotations

import re
from typing import Any

SEEDED = re.compile(r"test_cluster_simulations\.py::.*-(\d+)\]$")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print one line below the dots."""
    reports = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    seeds = [int(found[1]) for one in reports if (found := SEEDED.search(one.nodeid))]
    if seeds:
        terminalreporter.write_line(
            f"clusters simulated with seeds {min(seeds)} to {max(seeds)}; "
            f"MILLSTREAM_SIM_START={min(seeds)} repeats them"
        )
