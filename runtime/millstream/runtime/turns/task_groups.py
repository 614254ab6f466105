"""The count of cancellations of a turn's task, kept right across `asyncio.TaskGroup`.

Whether the caller of a turn cancelled it is read from `Task.cancelling()`. Before Python 3.13 a
task group cancels its parent task without taking that back, if a task of the group fails while the
parent waits at the end of the `async with` block. The count then says that somebody cancelled the
turn, though nobody did. Python 3.13 corrected that; here older versions get the same correction,
for groups within turns only.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any

from .request import current_request

__all__ = ["correct_task_groups"]

Leave = Callable[..., Coroutine[Any, Any, bool | None]]


def correct_task_groups() -> None:
    """Let groups within turns keep the count right, in this process; no effect if they do."""
    if sys.version_info < (3, 13) and not hasattr(asyncio.TaskGroup.__aexit__, "__wrapped__"):
        asyncio.TaskGroup.__aexit__ = correct(  # type: ignore[method-assign, assignment]
            asyncio.TaskGroup.__aexit__
        )


def correct(leave: Leave) -> Leave:
    """`TaskGroup.__aexit__` of Python 3.11 or 3.12, which takes back each cancellation it made.

    Outside of turns nothing changes.
    """

    @wraps(leave)
    async def leave_and_take_back(
        group: Any,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        is_taken_back = group._parent_cancel_requested  # `leave` itself does, at its beginning
        try:
            return await leave(group, kind, error, trace)
        finally:
            if group._parent_cancel_requested and not is_taken_back:
                if current_request.get() is not None:
                    group._parent_task.uncancel()

    return leave_and_take_back
