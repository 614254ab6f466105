"""The event loop that programs of Millstream run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["loop_factory"]


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory for `asyncio.Runner(loop_factory=...)`.

    Returns:
        The factory of uvloop if it is installed. Else None, which stands for asyncio's own loop.
    """
    try:
        import uvloop
    except ImportError:
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return made
