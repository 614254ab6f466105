"""The way to the bookie of one place: entries that are to be sent, some requests at a time.

Owns: `BookieSender`. Not: what an answer means (`protocol.append_core`). Invariants: what came
while requests were out goes in the next one; after a failure nothing of it is sent until it is
asked for again; a sender is of one bookie, from one change of bookies on; a task that has nothing
to send waits for what comes, one of a sender at most, and ends when the sender is cleared. No task
waits after the end.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from millstream.providers.ledger.protocol.append_core import PlaceState
from millstream.providers.ledger.protocol.errors import (
    BookieError,
    BookieOverloaded,
    BookieReadOnly,
    LedgerFenced,
)

from .context import HandleContext

__all__ = ["BookieSender", "Outcome", "Trouble"]

REQUESTS_MAX = 2  # one is on its way to the disk while the next one is put together


class Trouble(NamedTuple):
    """The trouble that a bookie reports about itself."""

    state: PlaceState
    why: str


Outcome = tuple[int, ...] | Trouble | LedgerFenced
"""Entries that are on disk, or what is the matter with the bookie."""


class BookieSender:
    """Sends the entries of one writer to one bookie.

    Args:
        packed: an entry by its number; None: nobody needs it any more.
        tell: is told of every outcome.

    Attributes: `bookie`, to which it sends.
    """

    def __init__(
        self,
        context: HandleContext,
        bookie: str,
        term: int,
        packed: Callable[[int], bytes | None],
        tell: Callable[[Outcome], None],
    ) -> None:
        self._context = context
        self.bookie = bookie
        self._term = term
        self._packed = packed
        self._tell = tell
        self._queue: deque[int] = deque()
        self._requests = 0
        self._idle: Future[None] | None = None  # of the task that waits
        self._is_over = False

    def put(self, entries: tuple[int, ...]) -> None:
        """Send these, after those that wait."""
        self._queue.extend(entries)
        if not self._wake() and self._requests < REQUESTS_MAX:
            self._requests += 1
            self._context.tasks.start(self._run())

    def clear(self) -> None:
        """Forget what is not sent yet."""
        self._queue.clear()
        self._wake()

    def end(self) -> None:
        """Send nothing any more; what is out is told of when its answer comes."""
        self._is_over = True
        self.clear()

    def _wake(self) -> bool:
        """The task that waits looks at the queue; False: none does."""
        idle, self._idle = self._idle, None
        if idle is None or idle.done():
            return False
        idle.set_result(None)
        return True

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                entries, packed = self._take()
                if entries:
                    self._tell(await self._send(entries, packed))
                if not self._queue and self._idle is None and not self._is_over:
                    self._idle = loop.create_future()
                    await self._idle
        finally:
            self._requests -= 1

    def _take(self) -> tuple[list[int], list[bytes]]:
        """The next entries, up to the limit of one request."""
        entries, packed, left = list[int](), list[bytes](), self._context.options.add_bytes_max
        while self._queue:
            one = self._packed(self._queue[0])
            if one is not None and entries and len(one) > left:
                break
            entry = self._queue.popleft()
            if one is not None:
                entries.append(entry)
                packed.append(one)
                left -= len(one)
        return entries, packed

    async def _send(self, entries: list[int], packed: list[bytes]) -> Outcome:
        attempt = 0
        while True:
            try:
                await self._context.bookies.add(self.bookie, self._term, packed)
                return tuple(entries)
            except BookieOverloaded:  # it did nothing: it is slow, not away
                attempt += 1
                await asyncio.sleep(self._context.pause_s(attempt))
            except LedgerFenced as error:
                return error
            except BookieReadOnly as error:
                return Trouble(PlaceState.FULL, str(error))
            except BookieError as error:
                return Trouble(PlaceState.AWAY, str(error))
