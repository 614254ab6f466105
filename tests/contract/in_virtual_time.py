"""Runs the checks of the suite in virtual time, where waiting costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from millstream.runtime.testing import SimLoop

T = TypeVar("T")


def in_virtual_time(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a simulated loop; return its result."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(make())
