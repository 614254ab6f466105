"""The connections that have something to write in this loop iteration.

`Outbox` remembers the writers; `connection_writer` knows their messages. A marked writer is flushed
before the next iteration ends. Code that knows that no more messages follow may flush sooner.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Flushable", "Outbox"]


class Flushable(Protocol):
    """The writer of a connection, as the outbox sees it."""

    def flush(self) -> None: ...


class Outbox:
    """The connections of one process that have something to write."""

    __slots__ = ("_loop", "_marked")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._marked: list[Flushable] = []

    def mark(self, writer: Flushable) -> None:
        """Schedule a flush of the writer. A writer marks itself once per flush."""
        if not self._marked:
            self._loop.call_soon(self.flush)
        self._marked.append(writer)

    def flush(self) -> None:
        """Flush all marked writers in the order of marking."""
        if self._marked:
            marked, self._marked = self._marked, []
            for writer in marked:
                writer.flush()
