"""A call of an adapter, with a limit.

Owns: `in_time`. Invariant: a call that does not heed its cancellation holds nobody up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.runtime.extending import Tasks
from millstream.streams.contracts.answers import AdapterFault

__all__ = ["in_time"]

T = TypeVar("T")


async def in_time(
    tasks: Tasks, call_limit_s: float, where: str, call: Callable[[], Awaitable[T]]
) -> T:
    """What a call answers or raises. Raises AdapterFault: nothing, in time.

    Args:
        where: what is called, for the error.
    """
    failed: list[Exception] = []

    async def asked() -> T | None:
        try:
            return await call()
        except Exception as error:  # as an answer: perhaps nobody waits for it any more
            failed.append(error)
            return None

    task = tasks.start(asked())
    try:
        await asyncio.wait([task], timeout=call_limit_s)
        if not task.done():
            limit = f"call_limit_s, {call_limit_s:g} s"
            raise AdapterFault(f"{where} did not answer within {limit}")
        if task.cancelled():
            raise AdapterFault(f"{where} was cancelled, and nobody cancelled it")
        answer: T = task.result()
    finally:
        task.cancel()  # one that does not heed that is left behind
    if failed:
        raise failed[0]
    return answer
