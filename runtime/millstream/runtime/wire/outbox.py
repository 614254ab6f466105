"""What left in this loop iteration, until it is written.

Owns: which connections have something to write. Not: what they write (`connection_writer`).
Invariants: what is marked is flushed before the next iteration ends; who knows that nothing more
comes now may flush sooner.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

__all__ = ["Flushable", "Outbox"]


class Flushable(Protocol):
    """The writer of a connection, to the outbox."""

    def flush(self) -> None: ...


class Outbox:
    """The connections of one process that have something to write."""

    __slots__ = ("_loop", "_marked")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._marked: list[Flushable] = []

    def mark(self, writer: Flushable) -> None:
        """The connection has something to write; it marks itself once per flush."""
        if not self._marked:
            self._loop.call_soon(self.flush)
        self._marked.append(writer)

    def flush(self) -> None:
        """Let all that are marked write, in the order of marking."""
        if self._marked:
            marked, self._marked = self._marked, []
            for writer in marked:
                writer.flush()
