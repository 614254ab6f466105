"""The mapper of an adapter whose broker decides which queue carries a stream.

Owns: `BroughtMapper`: asking the adapter, again when it says that another one holds. Not: what
follows for publishers and balancers (`publishing`, `provider`). Invariants: nothing of it is
stored, as the broker knows; each change is followed, though several may be followed as one; what
the adapter raises then is said, and it is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.runtime import MillstreamError
from millstream.runtime.extending import Backoff, Tasks
from millstream.streams.contracts.mapping import QueueMapper
from millstream.streams.contracts.queue import BringsMapper
from millstream.streams.contracts.shapes import require_shape

from .layout import Layout

__all__ = ["BroughtMapper"]

log = logging.getLogger("millstream.streams")

RETRIES = Backoff(0.5, 2, 10.0)

Remap = Callable[[Callable[[], object]], Coroutine[Any, Any, None]]


class BroughtMapper:
    """Follows the mapper of one adapter, in one silo.

    Raises ConfigError, and what the adapter raises: it has none now.
    """

    def __init__(self, provider: str, adapter: BringsMapper, layout: Layout) -> None:
        self._provider = provider
        self._adapter = adapter
        self._layout = layout
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        layout.bring(self._ask())

    def _ask(self) -> QueueMapper:
        self._changed.clear()
        mapper = self._adapter.mapper(self._changed.set)
        where = f"stream provider {self._provider!r}: {type(self._adapter).__name__}.mapper"
        require_shape(mapper, QueueMapper, where)
        return mapper

    def start(
        self, tasks: Tasks, remap: Remap, relaid: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Follow it from now on.

        Args:
            remap: lets publishers go over to another mapper; calls its argument in between.
            relaid: the queues that have to be read may be others.
        """
        self._task = tasks.start(self._follow(remap, relaid))

    def close(self) -> None:
        """Follow it no more."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self, remap: Remap, relaid: Callable[[], Coroutine[Any, Any, None]]) -> None:
        failures = 0
        while True:
            await self._changed.wait()
            try:
                mapper = self._ask()
                await remap(lambda mapper=mapper: self._layout.bring(mapper))  # type: ignore[misc]
                await relaid()
            except Exception as error:  # whatever an adapter or a balancer raises
                failures += 1
                wait_s = RETRIES.whole_s(failures)
                is_known = isinstance(error, MillstreamError)
                text = "%s: the queues of the broker were not followed; again in %g s: %s: %s"
                what = self._provider, wait_s, type(error).__name__, error
                log.warning(text, *what, exc_info=None if is_known else error)
                await asyncio.sleep(wait_s)
                self._changed.set()
                continue
            failures = 0
            count = len(mapper.queues())
            log.info("%s: the broker has %d queues now", self._provider, count)
