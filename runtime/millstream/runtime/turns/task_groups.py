"""A correction of `asyncio.TaskGroup`, so that a turn's count of cancellations stays right.

The runtime reads from `Task.cancelling()` whether the caller cancelled a turn. Before Python 3.13,
a task group may leave a wrong count. If one of its tasks fails while the parent waits at the end of
the `async with` block, the group cancels its parent task and does not take that cancellation back.
The count then reports a cancellation that no caller made. Python 3.13 corrected this. Older
versions get the same correction here, only for groups within turns.
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
    """Install the correction in this process, if the Python version needs it."""
    if sys.version_info < (3, 13) and not hasattr(asyncio.TaskGroup.__aexit__, "__wrapped__"):
        asyncio.TaskGroup.__aexit__ = correct(  # type: ignore[method-assign, assignment]
            asyncio.TaskGroup.__aexit__
        )


def correct(leave: Leave) -> Leave:
    """Wrap `TaskGroup.__aexit__` of Python 3.11 or 3.12 to take back its cancellations.

    Groups outside of turns do not change.
    """

    @wraps(leave)
    async def leave_and_take_back(
        group: Any,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        is_taken_back = group._parent_cancel_requested  # `leave` takes this one back itself
        try:
            return await leave(group, kind, error, trace)
        finally:
            if group._parent_cancel_requested and not is_taken_back:
                if current_request.get() is not None:
                    group._parent_task.uncancel()

    return leave_and_take_back
