"""The tests that take long: `long_tests.txt` names them, and `make test-fast` leaves them out.

`pytest --write-long-tests` measures the tests that it runs, and writes the list. Names of tests in
other files stay in the list. Measure on an idle machine. `make test` runs the long tests, too.
"""

from __future__ import annotations

import resource
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

LONG_S = 0.1
"""Processor time of a test, including processes that it waited for."""
LIST = Path(__file__).parent / "long_tests.txt"


def read_names() -> frozenset[str]:
    """Return the tests in the list."""
    return frozenset(LIST.read_text().splitlines())


def updated(names: Collection[str], cpu_s: Mapping[str, float]) -> frozenset[str]:
    """Return the list after a run: `cpu_s` has the time of each test that ran, by its name."""
    measured = {name.partition("::")[0] for name in cpu_s}
    kept = {name for name in names if name.partition("::")[0] not in measured}
    return frozenset(kept | {name for name, time_s in cpu_s.items() if time_s >= LONG_S})


def write_names(names: Iterable[str]) -> None:
    """Replace the list."""
    LIST.write_text("".join(f"{name}\n" for name in sorted(names)))


def cpu_s() -> float:
    """Return the processor time of this process and of the processes that it waited for."""
    times = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in times)
