"""Runs tests with a fault in a forked child, so that nothing is imported twice.

Owns: finding the functions of a module, giving them the code of its mutant, and the limits of a
child. A test that takes far longer than without the fault has detected the fault. Invariants: the
parent runs no test and never changes. A child stops at the first test that fails. Quick tests run
before slow ones, from all files, and the quick test that detected the last fault runs first.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from .planting import ROOT, Mutant

MARKS = "not real and not spark and not slow"
TIME_FACTOR, TIME_SPARE_S = 5, 1.0  # processor time of the child
LOOK_EVERY_S, LOOKS_MAX = 0.25, 8  # a child that sleeps at this many looks in a row waits forever
MEMORY_SPARE_BYTES = 2 << 30
NUMBER_BYTES = 4
UNKNOWN_S = 60.0  # for a test of unknown duration
NOT_PLANTED = 3  # exit code of a child
QUICK_S = 0.1  # slower tests run only if all quicker ones detect nothing


class Trials:
    """The tests that pytest collected, and the time of each test without a fault."""

    def __init__(self, items: Sequence[pytest.Item]) -> None:
        self._items = list(items)
        self._functions = functions_in(ROOT)
        self._took_s: dict[str, float] = {}
        self._orders: dict[str, list[pytest.Item]] = {}

    def prepare(self, module: str, tests: tuple[str, ...]) -> float:
        """Run a module's tests without a fault; return their time. A failure ends the command."""
        chosen = [item for item in self._items if is_in(item, tests)]
        new = [item for item in chosen if item.nodeid not in self._took_s]
        failed = self._run(new, lambda: None, self._took_s)
        if failed is not None:  # a single failure may be bad luck
            failed = self._run(new, lambda: None, self._took_s)
        if failed is not None:
            pytest.exit(f"{module}: {failed.nodeid} fails without any fault", 1)
        self._orders[module] = sorted(chosen, key=self._usual_s)
        return sum(self._took_s[item.nodeid] for item in chosen)

    def seen(self, mutant: Mutant) -> bool:
        """Does a test fail, or not end, with the fault in place?"""
        code = compile(mutant.tree, str(ROOT / mutant.module), "exec")
        order = self._orders[mutant.module]
        failed = self._run(order, lambda: self._plant(code), {})
        if failed is not None and self._usual_s(failed) <= QUICK_S:
            order.remove(failed)
            order.insert(0, failed)
        return failed is not None

    def _plant(self, module: CodeType) -> None:
        for code in codes_in(module):
            for function in self._functions.get(place_of(code), ()):
                function.__code__ = code

    def _run(
        self, items: list[pytest.Item], plant: Callable[[], None], took_s: dict[str, float]
    ) -> pytest.Item | None:
        """Return the test that fails in a child with the fault; `took_s` gets the time of each
        test."""
        if not items:
            return None
        temporary = tempfile.mkdtemp(prefix="millstream-mutants-")
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            _be_child(items, plant, writes, temporary, self._took_s)
        os.close(writes)
        try:
            last = self._watch(items, reads, child, took_s)
        finally:
            os.close(reads)
            _, status = os.waitpid(child, 0)
            shutil.rmtree(temporary, ignore_errors=True)
        if os.waitstatus_to_exitcode(status) == NOT_PLANTED:
            pytest.exit("a fault cannot be planted: its function has another number of cells", 1)
        return items[last] if status else None

    def _usual_s(self, item: pytest.Item) -> float:
        return self._took_s.get(item.nodeid, UNKNOWN_S)

    def _watch(
        self, items: list[pytest.Item], reads: int, child: int, took_s: dict[str, float]
    ) -> int:
        """Return the number of the test that ran last; kill a child that waits forever."""
        last, since_s = 0, time.monotonic()
        while True:
            looks_max = LOOKS_MAX + self._usual_s(items[last]) / LOOK_EVERY_S
            if not _has_news(reads, child, looks_max):
                os.kill(child, signal.SIGKILL)
                return last
            number = os.read(reads, NUMBER_BYTES)
            now_s = time.monotonic()
            took_s[items[last].nodeid] = now_s - since_s
            if not number:
                return last
            last, since_s = int.from_bytes(number, "little"), now_s


def _has_news(reads: int, child: int, looks_max: float) -> bool:
    """Wait for the child; return False if the child only sleeps."""
    asleep = 0
    while asleep < looks_max:
        if select.select([reads], [], [], LOOK_EVERY_S)[0]:
            return True
        state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0
    return False


def _be_child(
    items: list[pytest.Item],
    plant: Callable[[], None],
    writes: int,
    temporary: str,
    took_s: dict[str, float],
) -> None:
    """Run the tests until one fails; never return."""
    status = NOT_PLANTED
    try:
        silence(temporary)
        plant()
        status, session = 1, items[0].session
        for number, item in enumerate(items):
            after = items[number + 1] if number + 1 < len(items) else None
            os.write(writes, number.to_bytes(NUMBER_BYTES, "little"))
            limit_s = TIME_SPARE_S + TIME_FACTOR * took_s.get(item.nodeid, UNKNOWN_S)
            signal.setitimer(signal.ITIMER_PROF, limit_s)  # the signal ends the child
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.testsfailed:
                break
        status = 1 if session.testsfailed else 0
    finally:
        os._exit(status)


def silence(temporary: str) -> None:
    """Discard the output of the child, and let it write into a temporary folder."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    tempfile.tempdir = temporary
    os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = temporary
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_SPARE_BYTES, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def is_in(item: pytest.Item, tests: tuple[str, ...]) -> bool:
    """Is the test in one of these files or folders?"""
    path = item.path.relative_to(ROOT)
    return any(path.is_relative_to(one) for one in tests)


Place = tuple[str, str, int]


def place_of(code: CodeType) -> Place:
    """Return the common key of a function and its mutant: file, name and line."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of each function and class in a code object."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from codes_in(one)


def functions_in(folder: Path) -> dict[Place, list[FunctionType]]:
    """Return each existing function that is defined in a folder."""
    gc.unfreeze()  # frozen objects are not listed
    found: dict[Place, list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(str(folder)):
            found.setdefault(place_of(one.__code__), []).append(one)
    gc.freeze()  # a collection in a child would copy all pages
    return found


class Nursery:
    """Lets pytest collect tests, and then tries faults instead of running the tests."""

    def __init__(self, work: Callable[[Trials], None]) -> None:
        self._work = work

    def pytest_configure(self) -> None:
        """Turn off Hypothesis's shrinking: a failure is enough."""
        import hypothesis  # only after pytest has asked to rewrite its assertions

        hypothesis.settings.register_profile(
            "mutants",
            phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Any:
        """Do the work after the collection; pytest itself runs nothing."""
        if not session.testsfailed:
            self._work(Trials(session.items))
        return True


def with_tests(tests: Sequence[str], work: Callable[[Trials], None]) -> int:
    """Collect these files and folders and do the work; return pytest's exit code."""
    options = ["-qq", "--capture=sys", "-p", "no:cacheprovider", "-m", MARKS]
    return int(pytest.main([*options, *tests], plugins=[Nursery(work)]))
