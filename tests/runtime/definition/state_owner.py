"""The owner of a state in tests without an activation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["StateOwner"]

T = TypeVar("T")


class StateOwner:
    """Never ends, and starts plain tasks."""

    version = 7

    def check_running(self) -> None: ...
    def on_conflict(self) -> None: ...
    def start_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        return asyncio.ensure_future(coro)
