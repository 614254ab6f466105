"""Async tests run on the loop that `MILLSTREAM_LOOP` names: `asyncio` (default) or `uvloop`."""

from __future__ import annotations

import asyncio
import gc
import os
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


def pytest_collection_finish() -> None:
    """What was imported stays: tests that collect garbage look at their own."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Where pytest-asyncio takes its loops from."""
    return {LOOP: LOOPS[LOOP]}
