"""Asking several bookies, one after the other, for something that any of them may have.

Owns: `first_answer`. Invariants: a bookie that does not answer delays a caller by `HEDGE_S` at
most, as long as another one can be asked. Requests that are no longer needed are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from millstream.runtime.extending import Tasks

__all__ = ["HEDGE_S", "first_answer"]

T = TypeVar("T")

HEDGE_S = 0.1
"""After so many seconds of silence the next bookie is asked, too. The answer of the silent one
still counts."""


async def first_answer(
    tasks: Tasks, bookies: Sequence[str], ask: Callable[[str], Coroutine[Any, Any, T | None]]
) -> T | None:
    """Return the first answer that is not None; None if there is no such answer.

    Args:
        bookies: in the order in which they are asked.
        ask: returns None if the bookie does not have it, or did not answer.
    """
    if len(bookies) == 1:
        return await ask(bookies[0])
    waiting, left = set[asyncio.Task[T | None]](), [*bookies]
    try:
        while left or waiting:
            if left:
                waiting.add(tasks.start(ask(left.pop(0))))
            limit_s = HEDGE_S if left else None
            done, waiting = await asyncio.wait(
                waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if (found := task.result()) is not None:
                    return found
        return None
    finally:
        for task in waiting:
            task.cancel()
