"""Says which seeds were run, also when all is well."""

from __future__ import annotations

from typing import Any

SEEDED = "test_cluster_simulations.py::test_a_cluster_keeps_its_promises_under_trouble["


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line under the dots."""
    reports = terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", [])
    seeds = [int(r.nodeid.rpartition("-")[2].rstrip("]")) for r in reports if SEEDED in r.nodeid]
    if seeds:
        terminalreporter.write_line(
            f"clusters simulated with seeds {min(seeds)} to {max(seeds)}; "
            f"MILLSTREAM_SIM_START={min(seeds)} repeats them"
        )
