"""Where in a queue a time is.

Owns: `place_at`. Invariant: whatever the adapter does, who asked is answered within the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from millstream.runtime import QueueUnavailable
from millstream.streams.contracts.queue import QueueReader

__all__ = ["place_at"]


async def place_at(
    make_reader: Callable[[], QueueReader], when: datetime, where: str, limit_s: float
) -> str:
    """Where what was accepted at a time or later begins: a token, or "next".

    Raises QueueUnavailable.
    """
    try:
        async with asyncio.timeout(limit_s):
            reader = make_reader()
            try:
                token = await reader.seek(when)
            finally:
                await reader.aclose()
    except Exception as error:  # whatever an adapter raises; who subscribes asks again
        raise QueueUnavailable(f"{where}: seek: {type(error).__name__}: {error}") from None
    return "next" if token is None else str(token)
