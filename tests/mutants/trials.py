"""Tests run on a fault, in a forked child, so that nothing is imported twice.

Owns: finding the functions of a module, giving them the code of its mutant, and the limits of a
child: a test that takes far longer than it took without a fault has seen the fault. Invariants: the
parent runs no test and is never changed; a child runs until the first test that fails; quick tests
come before slow ones, whichever file they are in, and of the quick ones whoever saw the last fault.
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
TIME_FACTOR, TIME_SPARE_S = 5, 1.0  # of the child's own processor time
LOOK_EVERY_S, LOOKS_MAX = 0.25, 8  # a child that sleeps so many times in a row waits for ever
MEMORY_SPARE_BYTES = 2 << 30
NUMBER_BYTES = 4
UNKNOWN_S = 60.0  # what a test may take of which nothing is known
NOT_PLANTED = 3  # exit code of a child
QUICK_S = 0.1  # a test that takes longer is asked when all that take less saw nothing


class Trials:
    """What pytest collected, and how long each test takes without any fault."""

    def __init__(self, items: Sequence[pytest.Item]) -> None:
        self._items = list(items)
        self._functions = functions_in(ROOT)
        self._took_s: dict[str, float] = {}
        self._orders: dict[str, list[pytest.Item]] = {}

    def prepare(self, module: str, tests: tuple[str, ...]) -> float:
        """Run a module's tests without a fault; returns how long they take. A failure ends all."""
        chosen = [item for item in self._items if is_in(item, tests)]
        new = [item for item in chosen if item.nodeid not in self._took_s]
        failed = self._run(new, lambda: None, self._took_s)
        if failed is not None:  # once may be bad luck
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
        """The test that fails in a child with the fault; `took_s` gets how long each took."""
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
        """The number of the test that ran last; a child that waits for ever is ended."""
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
    """Wait for the child; False: it does nothing but sleep."""
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
    """Run the tests until one fails; does not return."""
    status = NOT_PLANTED
    try:
        silence(temporary)
        plant()
        status, session = 1, items[0].session
        for number, item in enumerate(items):
            after = items[number + 1] if number + 1 < len(items) else None
            os.write(writes, number.to_bytes(NUMBER_BYTES, "little"))
            limit_s = TIME_SPARE_S + TIME_FACTOR * took_s.get(item.nodeid, UNKNOWN_S)
            signal.setitimer(signal.ITIMER_PROF, limit_s)  # its signal ends the child
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.testsfailed:
                break
        status = 1 if session.testsfailed else 0
    finally:
        os._exit(status)


def silence(temporary: str) -> None:
    """Whatever the child says goes nowhere, and what it keeps goes into a folder that will go."""
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
    """What a function and its mutant have in common: file, name and line."""
    return code.co_filename, code.co_qualname, code.co_firstlineno


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code of every function and class in it."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from codes_in(one)


def functions_in(folder: Path) -> dict[Place, list[FunctionType]]:
    """Every function there is that was defined in this folder."""
    gc.unfreeze()  # what is frozen is not listed
    found: dict[Place, list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(str(folder)):
            found.setdefault(place_of(one.__code__), []).append(one)
    gc.freeze()  # a child that collects would copy every page
    return found


class Nursery:
    """Lets pytest collect, and then tries faults in place of running the tests."""

    def __init__(self, work: Callable[[Trials], None]) -> None:
        self._work = work

    def pytest_configure(self) -> None:
        """Hypothesis does not shrink: who fails has seen it."""
        import hypothesis  # not before pytest has asked to rewrite its assertions

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
        """All is imported and collected; pytest has nothing to run any more."""
        if not session.testsfailed:
            self._work(Trials(session.items))
        return True


def with_tests(tests: Sequence[str], work: Callable[[Trials], None]) -> int:
    """Collect these files and folders and do the work; returns pytest's exit code."""
    options = ["-qq", "--capture=sys", "-p", "no:cacheprovider", "-m", MARKS]
    return int(pytest.main([*options, *tests], plugins=[Nursery(work)]))
