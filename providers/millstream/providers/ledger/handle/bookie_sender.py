"""Sending entries to the bookie of one place, with a few requests in flight.

Owns: `BookieSender`. Not: the meaning of an answer (`protocol.append_core`). Invariants: entries
that arrive while requests are in flight go into the next request. After a failure no entry is sent
until it is queued again. A sender belongs to one bookie and to one change of bookies. At most one
idle task of a sender waits for entries, and it ends when the sender is cleared. No task waits after
the end.
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

REQUESTS_MAX = 2  # one is synced to disk while the next one is filled


class Trouble(NamedTuple):
    """A failed request: the new state of the bookie's place, and the reason."""

    state: PlaceState
    why: str


Outcome = tuple[int, ...] | Trouble | LedgerFenced
"""The entries that are on disk, or why a request failed."""


class BookieSender:
    """Sends the entries of one writer to one bookie.

    Args:
        packed: returns the packed entry of a number, or None if no place needs it any more.
        tell: called with every outcome.

    Attributes: `bookie`, the receiver.
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
        self._idle: Future[None] | None = None  # of the idle task
        self._is_over = False

    def put(self, entries: tuple[int, ...]) -> None:
        """Send these entries after those that wait."""
        self._queue.extend(entries)
        if not self._wake() and self._requests < REQUESTS_MAX:
            self._requests += 1
            self._context.tasks.start(self._run())

    def clear(self) -> None:
        """Forget the entries that are not sent yet."""
        self._queue.clear()
        self._wake()

    def end(self) -> None:
        """Send nothing more. Requests in flight still report their outcomes."""
        self._is_over = True
        self.clear()

    def _wake(self) -> bool:
        """Let the idle task look at the queue. Return False if no task is idle."""
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
        """Take the next entries, up to the limit of one request."""
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
            except BookieOverloaded:  # the bookie did nothing: it is slow, not away
                attempt += 1
                await asyncio.sleep(self._context.pause_s(attempt))
            except LedgerFenced as error:
                return error
            except BookieReadOnly as error:
                return Trouble(PlaceState.FULL, str(error))
            except BookieError as error:
                return Trouble(PlaceState.AWAY, str(error))
