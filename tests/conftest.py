"""Runs async tests on the loop that `MILLSTREAM_LOOP` names: `asyncio` (default) or `uvloop`. No
test outside `tests/real` sleeps in real time. Examples of properties have no deadline."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings
from tests import long_tests
from tests.rotation import names_to_leave_out, seed_of_commit

from millstream.runtime.testing import SimLoop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}
LOOP = os.environ.get("MILLSTREAM_LOOP", "asyncio")

settings.register_profile("millstream", deadline=None)  # a busy machine is not a fault of the code
settings.register_profile("fast", deadline=None, max_examples=25)  # the profile of `make test-fast`
if settings.get_current_profile_name() == "default":  # otherwise the command line names a profile
    settings.load_profile("millstream")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that measure long tests and run a part of them."""
    parser.addoption("--write-long-tests", action="store_true", help="write tests/long_tests.txt")
    parser.addoption(
        "--rotate", type=int, default=1, help="run each N-th of the long tests that take turns"
    )


def pytest_configure() -> None:
    """Refuse the name of an unknown loop."""
    if LOOP not in LOOPS:
        raise pytest.UsageError(f"MILLSTREAM_LOOP is {LOOP!r}, not one of {', '.join(LOOPS)}")


def pytest_report_header(config: pytest.Config) -> str:
    """Report the loop, and the share of the long tests that runs."""
    every = config.getoption("--rotate")
    turns = f", 1 of {every} long tests (commit {seed_of_commit()})" if every > 1 else ""
    return f"event loop: {LOOP}{turns}"


UNSTABLE_ID = re.compile(r" at 0x[0-9a-f]+|set\(\{[^}]*, ")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select and mark the collected tests.

    - Each test must have the same name in every process, so parameters without a stable id are
      refused: they would show an address, or a set in any order.
    - Parameters of a test that is marked `one_in(n)` become spare, except each n-th one. So do the
      tests that `long_tests.txt` names.
    - Tests that use the Spark session run in one process.
    - On uvloop, only tests that use the loop run.
    - With `--rotate`, a run includes only some of the long tests.
    """
    spare_all_but_some(items)
    if LOOP != "asyncio":
        keep_only(config, items, {item.nodeid for item in items if uses_loop(item)})
    leave_out(config, items)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            # one process, so that there is one session
            item.add_marker(pytest.mark.xdist_group("spark"))
    unstable = [item.nodeid for item in items if UNSTABLE_ID.search(item.nodeid)]
    if unstable:
        raise pytest.UsageError(f"give ids=... to the parameters of {unstable[0]}")


def spare_all_but_some(items: list[pytest.Item]) -> None:
    """Mark tests that repeat another test as spare, before pytest applies `-m`."""
    counts: Counter[str] = Counter()
    long = long_tests.read_names()
    for item in items:
        if item.nodeid in long:
            item.add_marker("spare")
        mark = item.get_closest_marker("one_in")
        if mark and not item.get_closest_marker("slow"):
            test = item.nodeid.partition("[")[0]
            if counts[test] % mark.args[0]:
                item.add_marker("spare")
            counts[test] += 1


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests that another commit runs."""
    every = config.getoption("--rotate")
    if every > 1:
        long = long_tests.read_names()
        names = [item.nodeid for item in items if takes_turns(item, long)]
        out = names_to_leave_out(names, every, seed_of_commit())
        keep_only(config, items, {item.nodeid for item in items} - out)


def takes_turns(item: pytest.Item, long: Collection[str]) -> bool:
    """Is the test long, and one of many similar tests?"""
    is_long = item.nodeid in long or item.get_closest_marker("slow") is not None
    is_alike = "[" in item.nodeid or item.get_closest_marker("rotates") is not None
    return is_long and is_alike and item.get_closest_marker("every_commit") is None


def keep_only(config: pytest.Config, items: list[pytest.Item], kept: Collection[str]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def uses_loop(item: pytest.Item) -> bool:
    """Does `LOOP` run the test, or one of its fixtures? Other tests give the same result on each
    loop: they use no loop, or a loop of their own."""
    return item.get_closest_marker("asyncio") is not None or any(
        inspect.iscoroutinefunction(fixture.func) or inspect.isasyncgenfunction(fixture.func)
        for name in getattr(item, "fixturenames", ())
        for fixture in fixtures_of(item).get(name, ())
    )


def fixtures_of(item: pytest.Item) -> Mapping[str, Sequence[pytest.FixtureDef[Any]]]:
    info: Any = getattr(item, "_fixtureinfo", None)
    return info.name2fixturedefs if info else {}


def pytest_collection_finish() -> None:
    """Keep imported objects out of garbage collection, so that tests see only their own garbage.
    Collect rarely, which saves a tenth of the processor time of a long simulation."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Name the factory from which pytest-asyncio takes its loops."""
    return {LOOP: LOOPS[LOOP]}


TESTS = str(Path(__file__).parent) + os.sep
REAL = TESTS + "real" + os.sep
SLEPT: list[str] = []
SLEEP = asyncio.sleep


def watched_sleep(delay: float, result: Any = None) -> Coroutine[Any, Any, Any]:
    """Do the work of `asyncio.sleep`, and note the place in a test that sleeps on a real clock."""
    caller = sys._getframe(1)
    place = caller.f_code.co_filename
    if delay > 0 and place.startswith(TESTS) and not place.startswith(REAL):
        if not isinstance(asyncio._get_running_loop(), SimLoop | None):
            SLEPT.append(f"{place.removeprefix(TESTS)}:{caller.f_lineno}")
    return SLEEP(delay, result)


asyncio.sleep = watched_sleep


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Fail a test that slept: it should wait for a condition, or run in virtual time."""
    SLEPT.clear()
    started_s = long_tests.cpu_s()
    yield
    if item.get_closest_marker("slow") is None:
        item.user_properties.append(("cpu_s", long_tests.cpu_s() - started_s))
    assert not SLEPT, f"real time was slept at {', '.join(sorted(set(SLEPT)))}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """With `--write-long-tests`, write the list of the tests that took long, in all processes."""
    if config.getoption("--write-long-tests"):
        reports = terminalreporter.stats.get("passed", [])
        times = {
            one.nodeid: dict(one.user_properties).get("cpu_s", 0.0)
            for one in reports
            if one.when == "call"
        }
        long_tests.write_names(long_tests.updated(long_tests.read_names(), times))
