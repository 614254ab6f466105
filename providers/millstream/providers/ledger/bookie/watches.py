"""Callers that wait until more of a ledger is confirmed.

Owns: `Watches`. Invariants: a caller is woken once: by an entry that it does not know, by a fence,
by the bookie's end, or by the end of its time. Known entries wake nobody. No caller is kept after
that, and the number of callers has a limit.
"""

from __future__ import annotations

import asyncio

from millstream.providers.ledger.protocol.errors import BookieOverloaded

__all__ = ["Watches"]


class Watches:
    """Futures by ledger, each with the entry that its caller knows; at most `watches_max`."""

    __slots__ = ("_by_ledger", "_count", "_watches_max")

    def __init__(self, watches_max: int) -> None:
        self._watches_max = watches_max
        self._by_ledger: dict[int, dict[asyncio.Future[None], int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    async def wait(self, ledger: int, confirmed: int, wait_s: float) -> None:
        """Wait until more of the ledger is confirmed, until another event of it, or for `wait_s`
        seconds.

        Raises BookieOverloaded, and the error that `end` was given.
        """
        if self._count >= self._watches_max:
            text = f"{self._count} callers wait, watches_max is {self._watches_max}"
            raise BookieOverloaded(f"{text}; retry later")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._by_ledger.setdefault(ledger, {})[future] = confirmed
        self._count += 1
        try:
            async with asyncio.timeout(wait_s):
                await future
        except TimeoutError:
            pass
        finally:
            self._forget(ledger, future)

    def _forget(self, ledger: int, future: asyncio.Future[None]) -> None:
        self._count -= 1
        waiting = self._by_ledger.get(ledger, {})
        waiting.pop(future, None)
        if not waiting:
            self._by_ledger.pop(ledger, None)

    def wake(self, ledger: int, confirmed: int | None) -> None:
        """Wake the callers that wait for a ledger and know less than `confirmed`.

        None wakes all callers that wait for the ledger, because something else happened to it, such
        as a fence.
        """
        for future, known in self._by_ledger.get(ledger, {}).items():
            if not future.done() and (confirmed is None or confirmed > known):
                future.set_result(None)

    def end(self, error: Exception) -> None:
        """Fail all waiting callers, since no more events will come."""
        for waiting in self._by_ledger.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(error)
