"""Finds writers with staged data whose silo crashed, and wakes their grains.

One silo does this for the cluster. The grain of a writer does the work. A writer that is awake is
woken too, which has no effect.

Invariants: at most `WAKES_MAX` writers are being woken at a time. A round reads pages of
`ROWS_AT_ONCE` rows, and the next round begins where the last one ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.runtime import MillstreamError
from millstream.runtime.extending import LineBudget, SiloServices, is_first_host

from .rows import StagedRows

__all__ = ["Finder"]

log = logging.getLogger("millstream.staging")

FIND_EVERY_S = 30.0
ROWS_AT_ONCE = 100
WAKES_MAX = 64
WAKE_S = 10.0


class Finder:
    """Wakes the writers of one provider.

    Args:
        grain_type: the name of the writers' grain type.
        wake: calls a writer. It must end within a bounded time.
    """

    def __init__(
        self,
        services: SiloServices,
        rows: StagedRows,
        grain_type: str,
        wake: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:
        self._services = services
        self._rows = rows
        self._grain_type = grain_type
        self._wake = wake
        self._tasks = services.new_tasks()
        self._waking: set[str] = set()
        self._after = ""
        self._lines = LineBudget()

    def start(self) -> None:
        """Begin to search."""
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Stop the search."""
        await self._tasks.aclose()

    def abort(self) -> None:
        """Stop at once."""
        self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(FIND_EVERY_S)
            if is_first_host(self._services.members, self._services.address, self._grain_type):
                try:
                    await self._round()
                except MillstreamError as error:
                    self._warn(f"the writers with staged data could not be listed: {error}")

    async def _round(self) -> None:
        """Wake writers with staged data, up to the limit."""
        while (room := WAKES_MAX - len(self._waking)) > 0:
            found = await self._rows.writers(self._after, ROWS_AT_ONCE)
            for writer, state in found:
                if state.has_staged or state.once:
                    if room == 0:
                        return
                    room -= self._begin(writer)
                self._after = writer
            if len(found) < ROWS_AT_ONCE:
                self._after = ""
                return

    def _begin(self, writer: str) -> int:
        """Wake a writer, unless a call to wake it is running. Return how many calls began."""
        if writer in self._waking:
            return 0
        self._waking.add(writer)
        self._tasks.start(self._try(writer))
        return 1

    async def _try(self, writer: str) -> None:
        try:
            await self._wake(writer)
        except MillstreamError as error:
            self._warn(f"writer {writer!r} could not be woken: {type(error).__name__}: {error}")
        finally:
            self._waking.discard(writer)

    def _warn(self, text: str) -> None:
        left_out = self._lines.take(self._services.clock.now())
        if left_out is not None:
            log.warning("%s%s", text, left_out)
