"""Follows the mapper of an adapter whose broker decides which queue carries a stream.

`BroughtMapper` asks the adapter for its mapper, and asks again when the adapter reports a change.
`publishing` and `provider` use the new mapper.

Invariants:

- Nothing is stored, because the broker knows the mapper.
- Every change is followed; several changes may be followed as one.
- If the adapter raises during a change, the error is logged and the adapter is asked again.
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

    Raises ConfigError, and the adapter's own errors, if the adapter has no mapper at present.
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
        """Follow the mapper from now on.

        Args:
            remap: moves publishers to another mapper; calls its argument in between.
            relaid: called when the set of queues to read may have changed.
        """
        self._task = tasks.start(self._follow(remap, relaid))

    def close(self) -> None:
        """Stop following the mapper."""
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
            except Exception as error:  # an adapter or a balancer may raise anything
                failures += 1
                wait_s = RETRIES.whole_s(failures)
                is_known = isinstance(error, MillstreamError)
                text = "%s: the queues of the broker could not be updated; retry in %g s: %s: %s"
                what = self._provider, wait_s, type(error).__name__, error
                log.warning(text, *what, exc_info=None if is_known else error)
                await asyncio.sleep(wait_s)
                self._changed.set()
                continue
            failures = 0
            count = len(mapper.queues())
            log.info("%s: the broker has %d queues now", self._provider, count)
