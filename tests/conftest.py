"""Async tests run on the loop that `MILLSTREAM_LOOP` names: `asyncio` (default) or `uvloop`."""

from __future__ import annotations

import asyncio
import gc
import os
import re
from collections.abc import Callable, Mapping

import pytest
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}
LOOP = os.environ.get("MILLSTREAM_LOOP", "asyncio")


def pytest_configure() -> None:
    """Refuse a loop that nobody knows."""
    if LOOP not in LOOPS:
        raise pytest.UsageError(f"MILLSTREAM_LOOP is {LOOP!r}, not one of {', '.join(LOOPS)}")


def pytest_report_header() -> str:
    """Says which loop it is."""
    return f"event loop: {LOOP}"


UNSTABLE_ID = re.compile(r" at 0x[0-9a-f]+|set\(\{[^}]*, ")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test has the same name in every process: none with an address, or a set of several."""
    unstable = [item.nodeid for item in items if UNSTABLE_ID.search(item.nodeid)]
    if unstable:
        raise pytest.UsageError(f"give ids=... to the parameters of {unstable[0]}")


def pytest_collection_finish() -> None:
    """What was imported stays: tests that collect garbage look at their own."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Where pytest-asyncio takes its loops from."""
    return {LOOP: LOOPS[LOOP]}
