"""Async tests run on the loop that `MILLSTREAM_LOOP` names: `asyncio` (default) or `uvloop`; none
outside `tests/real` sleeps in real time; no example of a property is judged by how long it took."""

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

settings.register_profile("millstream", deadline=None)  # a busy machine is no fault of the code
settings.register_profile("fast", deadline=None, max_examples=25)  # of `make test-fast`
if settings.get_current_profile_name() == "default":  # else somebody has chosen one
    settings.load_profile("millstream")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Measures which tests take long, and runs a part of these."""
    parser.addoption("--write-long-tests", action="store_true", help="write tests/long_tests.txt")
    parser.addoption(
        "--rotate", type=int, default=1, help="run each N-th of the long tests that take turns"
    )


def pytest_configure() -> None:
    """Refuse a loop that nobody knows."""
    if LOOP not in LOOPS:
        raise pytest.UsageError(f"MILLSTREAM_LOOP is {LOOP!r}, not one of {', '.join(LOOPS)}")


def pytest_report_header(config: pytest.Config) -> str:
    """Says which loop it is, and how many long tests run."""
    every = config.getoption("--rotate")
    turns = f", 1 of {every} long tests (commit {seed_of_commit()})" if every > 1 else ""
    return f"event loop: {LOOP}{turns}"


UNSTABLE_ID = re.compile(r" at 0x[0-9a-f]+|set\(\{[^}]*, ")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test has the same name in every process: none with an address, or a set of several. Of
    the parameters of a test that is marked `one_in(n)`, all but each n-th are spare, and so are the
    tests that `long_tests.txt` names. Those of the Spark session run in one process. On another
    loop than asyncio's, only tests that use the loop run. With `--rotate`, long tests take turns.
    """
    spare_all_but_some(items)
    if LOOP != "asyncio":
        keep_only(config, items, {item.nodeid for item in items if uses_loop(item)})
    leave_out(config, items)
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))  # in one process: one session
    unstable = [item.nodeid for item in items if UNSTABLE_ID.search(item.nodeid)]
    if unstable:
        raise pytest.UsageError(f"give ids=... to the parameters of {unstable[0]}")


def spare_all_but_some(items: list[pytest.Item]) -> None:
    """Mark what one more run of the same test is, before `-m` looks at the marks."""
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
    """Those of the long tests whose turn is at another commit."""
    every = config.getoption("--rotate")
    if every > 1:
        long = long_tests.read_names()
        names = [item.nodeid for item in items if takes_turns(item, long)]
        out = names_to_leave_out(names, every, seed_of_commit())
        keep_only(config, items, {item.nodeid for item in items} - out)


def takes_turns(item: pytest.Item, long: Collection[str]) -> bool:
    """Is the test long, and one of many that are alike?"""
    is_long = item.nodeid in long or item.get_closest_marker("slow") is not None
    is_alike = "[" in item.nodeid or item.get_closest_marker("rotates") is not None
    return is_long and is_alike and item.get_closest_marker("every_commit") is None


def keep_only(config: pytest.Config, items: list[pytest.Item], kept: Collection[str]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def uses_loop(item: pytest.Item) -> bool:
    """Is the test, or one of its fixtures, run by the loop of `LOOP`? The others would be as they
    are without: they use none, or one of their own."""
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
    Collect rarely: that saves a tenth of the processor time of a long simulation."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Where pytest-asyncio takes its loops from."""
    return {LOOP: LOOPS[LOOP]}


TESTS = str(Path(__file__).parent) + os.sep
REAL = TESTS + "real" + os.sep
SLEPT: list[str] = []
SLEEP = asyncio.sleep


def watched_sleep(delay: float, result: Any = None) -> Coroutine[Any, Any, Any]:
    """`asyncio.sleep`, which notes where a test waits on a loop with a real clock."""
    caller = sys._getframe(1)
    place = caller.f_code.co_filename
    if delay > 0 and place.startswith(TESTS) and not place.startswith(REAL):
        if not isinstance(asyncio._get_running_loop(), SimLoop | None):
            SLEPT.append(f"{place.removeprefix(TESTS)}:{caller.f_lineno}")
    return SLEEP(delay, result)


asyncio.sleep = watched_sleep


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A test that slept fails: let it spin on a condition, or run in virtual time."""
    SLEPT.clear()
    started_s = long_tests.cpu_s()
    yield
    if item.get_closest_marker("slow") is None:
        item.user_properties.append(("cpu_s", long_tests.cpu_s() - started_s))
    assert not SLEPT, f"real time was slept at {', '.join(sorted(set(SLEPT)))}"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """With `--write-long-tests`: the tests that took long, whichever process ran them."""
    if config.getoption("--write-long-tests"):
        reports = terminalreporter.stats.get("passed", [])
        times = {
            one.nodeid: dict(one.user_properties).get("cpu_s", 0.0)
            for one in reports
            if one.when == "call"
        }
        long_tests.write_names(long_tests.updated(long_tests.read_names(), times))
