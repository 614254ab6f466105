"""Waiting for the first of several coroutines.

Owns: `first_of`. Invariant: no coroutine is left running, however the wait ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

__all__ = ["WAIT_S", "first_of"]

WAIT_S = 3600.0
"""A caller that waits without a limit looks again after so many seconds."""


async def first_of(waits: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Wait until one of the coroutines has ended, and raise its error. The others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
