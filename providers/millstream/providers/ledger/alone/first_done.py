"""Waiting for whichever comes first.

Owns: `first_of`. Invariant: it leaves nothing running, whatever ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

__all__ = ["WAIT_S", "first_of"]

WAIT_S = 3600.0
"""Who waits without a limit looks again after so long."""


async def first_of(waits: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Until one of them has ended; raises what that raised. The others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
