"""Waits for conditions in tests, without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["spin", "until"]


async def until(condition: Callable[[], bool], within_s: float = 20) -> None:
    """Let the loop run until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0)


async def spin(times: int = 20) -> None:
    """Let the loop run `times` iterations, so that all tasks that are ready run."""
    for _ in range(times):
        await asyncio.sleep(0)
