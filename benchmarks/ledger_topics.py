"""Many topics of one program: the time to open them, and to send the first message to each.

There is one directory, with SQLite for the rows. Topics are opened together. In another directory
they are opened one after the other, and each waits for its own syncs.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from millstream.providers.ledger import LedgerTopic, LedgerTopics, open_topics

__all__ = ["report"]

ONE_BY_ONE = 100
"""The most topics that are opened one after the other; the figure is for all, in proportion."""


async def report(topics: int) -> int:
    """Print the figures; return 1 if a first message failed."""
    figures = await measured(topics)
    for name, value in figures.items():
        print(f"{name:48}{value:12,.2f}")
    return int(figures["first messages that failed"] > 0)


async def measured(topics: int) -> dict[str, float]:
    """Return the seconds of each step, and failures."""
    with tempfile.TemporaryDirectory() as work:
        figures = await together(Path(work, "together"), topics)
        apart_s = await one_by_one(Path(work, "apart"), min(topics, ONE_BY_ONE))
    figures["s to open all one after the other (in proportion)"] = (
        apart_s * topics / min(topics, ONE_BY_ONE)
    )
    return figures


async def together(work: Path, topics: int) -> dict[str, float]:
    async with open_topics(work) as opened:
        open_s, made = await timed(*(topic(opened, number) for number in range(topics)))
        first_s, first = await timed(*(one.produce("k", b"x") for one in made))
        next_s, _ = await timed(*(one.produce("k", b"x") for one in made))
        begin_s = time.perf_counter()
    return {
        "topics": topics,
        "s to open all together": open_s,
        "s for the first message of each": first_s,
        "first messages that failed": sum(isinstance(one, Exception) for one in first),
        "s for another message of each": next_s,
        "s to close": time.perf_counter() - begin_s,
    }


async def one_by_one(work: Path, topics: int) -> float:
    """Return the seconds to open the topics."""
    async with open_topics(work) as opened:
        begin_s = time.perf_counter()
        for number in range(topics):
            await topic(opened, number)
        return time.perf_counter() - begin_s


async def topic(opened: LedgerTopics, number: int) -> LedgerTopic:
    return await opened.topic(f"topic-{number}")


async def timed(*doing: Awaitable[Any]) -> tuple[float, Sequence[Any]]:
    """Return the time of all together, and their results or errors."""
    begin_s = time.perf_counter()
    found = await asyncio.gather(*doing, return_exceptions=True)
    return time.perf_counter() - begin_s, found
