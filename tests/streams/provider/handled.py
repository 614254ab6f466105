"""Handlers that say when they begin and end; a test may hold them up, or let them fail."""

from __future__ import annotations

import asyncio
from collections import defaultdict

SEEN: dict[str, list[int]] = defaultdict(list)
"""What each handler has done, and under `NAME begins` what it has begun."""
GATES: dict[int, asyncio.Event] = {}
"""What a handler of an item waits for."""
BAD: set[int] = set()
"""Items at which every handler fails."""


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
