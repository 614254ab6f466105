"""The tests that take long: `long_tests.txt` names them, and `make test-fast` leaves them out.

`pytest --write-long-tests` measures each test and writes the list. Run it with all tests, on a
machine that does nothing else. A test that is on the list runs in `make test`, as any other.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable
from pathlib import Path

LONG_S = 0.25
"""Processor time of a test, with the processes that it waited for."""
LIST = Path(__file__).parent / "long_tests.txt"


def read_names() -> frozenset[str]:
    """The tests of the list."""
    return frozenset(LIST.read_text().splitlines())


def write_names(names: Iterable[str]) -> None:
    """Replace the list."""
    LIST.write_text("".join(f"{name}\n" for name in sorted(names)))


def cpu_s() -> float:
    """Processor time of this process and of the processes that it waited for."""
    times = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in times)
