"""Handlers that note their start and end; a test may delay them, or let them fail."""

from __future__ import annotations

import asyncio
from collections import defaultdict

SEEN: dict[str, list[int]] = defaultdict(list)
"""The items that each handler has done; under `NAME begins` those that it has begun."""
GATES: dict[int, asyncio.Event] = {}
"""The gates at which handlers of an item wait."""
BAD: set[int] = set()
"""Items at which all handlers fail."""


def forget() -> None:
    for one in (SEEN, GATES, BAD):
        one.clear()


async def handle(who: str, item: int) -> None:
    SEEN[f"{who} begins"].append(item)
    if item in GATES:
        await GATES[item].wait()
    if item in BAD:
        raise ValueError(f"{item} is bad")
    SEEN[who].append(item)
