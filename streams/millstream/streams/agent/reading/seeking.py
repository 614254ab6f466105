"""Questions to a reader of a queue that is used once: where a time is, and where the queue ends.

Owns: `place_at`, `last_stored`. Invariant: whatever the adapter does, the caller gets an answer
within the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

from millstream.runtime import QueueUnavailable
from millstream.streams.contracts.queue import QueueReader
from millstream.streams.contracts.token import Token

__all__ = ["last_stored", "place_at"]


@asynccontextmanager
async def _reader_for(
    method: str, make_reader: Callable[[], QueueReader], where: str, limit_s: float
) -> AsyncIterator[QueueReader]:
    """A reader for one call. Whatever an adapter raises becomes QueueUnavailable."""
    try:
        async with asyncio.timeout(limit_s):
            reader = make_reader()
            try:
                yield reader
            finally:
                await reader.aclose()
    except Exception as error:
        text = f"{where}: {method}: {type(error).__name__}: {error}"
        raise QueueUnavailable(text) from None


async def last_stored(
    make_reader: Callable[[], QueueReader], where: str, limit_s: float
) -> Token | None:
    """The message of the queue that was stored last; None: the queue is empty.

    Raises QueueUnavailable.
    """
    async with _reader_for("bounds", make_reader, where, limit_s) as reader:
        last: object = (await reader.bounds())[1]
    if last is None or isinstance(last, Token):
        return last
    raise QueueUnavailable(f"{where}: bounds: {last!r} is no token")


async def place_at(
    make_reader: Callable[[], QueueReader], when: datetime, where: str, limit_s: float
) -> str:
    """The first message that was accepted at `when` or later: its token, or "next".

    Raises QueueUnavailable.
    """
    async with _reader_for("seek", make_reader, where, limit_s) as reader:
        token = await reader.seek(when)
    return "next" if token is None else str(token)
