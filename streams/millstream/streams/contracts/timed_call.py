"""A call of an adapter with a time limit.

Owns: `ask_in_time`. Invariant: a call that ignores its cancellation blocks no other call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millstream.runtime.extending import Tasks

from .answers import AdapterFault

__all__ = ["ask_in_time"]

T = TypeVar("T")


async def ask_in_time(
    where: str, call: Callable[[], Awaitable[T]], tasks: Tasks, call_limit_s: float
) -> T:
    """Make a call of an adapter, and return its answer or raise its error.

    A call that ignores its cancellation blocks nobody: its task is abandoned.

    Args:
        where: the name of the call, for errors.
        call: makes the call.
        tasks: start the task of the call.
        call_limit_s: seconds that the call may take.

    Raises:
        AdapterFault: the call did not answer in time, or ended with a cancellation of its own.
    """
    failed: list[Exception] = []

    async def ask_once() -> T | None:
        try:
            return await call()
        except Exception as error:  # kept as a value: the caller may have stopped waiting
            failed.append(error)
            return None

    task = tasks.start(ask_once())
    try:
        await asyncio.wait([task], timeout=call_limit_s)
        if not task.done():
            limit = f"call_limit_s, {call_limit_s:g} s"
            raise AdapterFault(f"{where} did not answer within {limit}")
        if task.cancelled():
            raise AdapterFault(f"{where} was cancelled by the adapter itself")
        answer: T = task.result()
    finally:
        task.cancel()  # a call that ignores this is abandoned
    if failed:
        raise failed[0]
    return answer
