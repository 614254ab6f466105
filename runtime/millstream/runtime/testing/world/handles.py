"""Handles of the simulated loop: asyncio's, made and cancelled in one step.

Owns: `SimHandle`, `SimTimer`. A simulation makes hundreds of thousands of them; asyncio's own ask
the loop three times whether it is debugged, which a simulated one never is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

__all__ = ["SimHandle", "SimTimer"]


class SimHandle(asyncio.Handle):
    """A callback that is ready."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class SimTimer(asyncio.TimerHandle):
    """A callback with a time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = False  # the loop does not count those that are cancelled

    def cancel(self) -> None:
        """Never run; it is let go of when its time comes, its callback at once."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]
