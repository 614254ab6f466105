"""Keeps the shards of a queue alike: the owner of shard 0 tells the others its settings, and finds
out when no message is left where it belonged before.

Owns: `Spreading`. Not: what a layout means (`core.shards`).
Invariants: each layout is told to every shard, again until it answers, also by the next owner; a
change of the number of shards is over only after each shard has said, in this layout, that it has
no strays, and then every shard gives leases of higher numbers than any had, so that the tokens of
a value that moved rise; a shard that is not needed any more is deleted before that, empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from millstream.providers.priority.core.errors import PriorityQueueNotFound
from millstream.providers.priority.core.results import Moving
from millstream.providers.priority.core.settings import QueueSettings
from millstream.providers.priority.core.shards import shard_name
from millstream.runtime import MillstreamError
from millstream.runtime.extending import Backoff, LineBudget, Tasks

__all__ = ["Shard", "Spreading"]

log = logging.getLogger("millstream.priority")
T = TypeVar("T")
RETRY = Backoff(first_s=0.05, ceiling_s=5.0)


class Shard(Protocol):
    """The owner of a shard."""

    async def adopt(self, settings: QueueSettings, floor: int, /) -> Moving:
        """Take over the queue's settings, and give leases of higher numbers than `floor`; what is
        on its way to another shard."""
        ...

    async def delete(self) -> None:
        """Delete the shard."""
        ...


class Spreading:
    """The shards of one queue.

    Args:
        shard: the owner of a shard, by its name; its calls are bounded in time.
        settle: says that a layout has no strays, in shard 0; answers its settings then.
    """

    def __init__(
        self,
        queue: str,
        tasks: Tasks,
        period_s: float,
        shard: Callable[[str], Shard],
        settle: Callable[[int], Awaitable[QueueSettings]],
    ) -> None:
        self._queue = queue
        self._tasks = tasks
        self._period_s = period_s
        self._shard = shard
        self._settle = settle
        self._lines = LineBudget()
        self._task: asyncio.Task[None] | None = None
        self._layout = 0

    def begin(self, settings: QueueSettings) -> None:
        """Tell these settings to all shards, if they are later than what was told."""
        if settings.layout > self._layout:
            self._layout = settings.layout
            self.stop()
            self._task = self._tasks.start(self._run(settings))

    def stop(self) -> None:
        """Tell nobody any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, settings: QueueSettings) -> None:
        while True:
            moving = await self._tell_all(settings, 0)
            if not settings.shards_before:
                return
            if not any(one.has_strays for one in moving):
                break
            await asyncio.sleep(self._period_s)
        await self._tell_all(settings, max(one.leases for one in moving))
        for number in range(settings.shards, settings.shards_before):
            await self._delete(number)
        self._task = None  # what follows begins another one
        await self._settle_layout(settings.layout)

    async def _tell_all(self, settings: QueueSettings, floor: int) -> list[Moving]:
        """Every shard has the settings; what is on its way in each."""
        numbers = range(max(settings.shards, settings.shards_before))
        told = [self._tell(number, settings, floor) for number in numbers]
        return await asyncio.gather(*told)

    async def _tell(self, number: int, settings: QueueSettings, floor: int) -> Moving:
        shard = self._shard(shard_name(self._queue, number))
        return await self._until_done(number, lambda: shard.adopt(settings, floor))

    async def _delete(self, number: int) -> None:
        shard = self._shard(shard_name(self._queue, number))
        with suppress(PriorityQueueNotFound):  # it was, by an owner before this one
            await self._until_done(number, shard.delete)

    async def _settle_layout(self, layout: int) -> None:
        await self._until_done(0, lambda: self._settle(layout))

    async def _until_done(self, number: int, call: Callable[[], Awaitable[T]]) -> T:
        failures = 0
        while True:
            try:
                return await call()
            except PriorityQueueNotFound:
                raise
            except MillstreamError as error:
                failures += 1
                pause_s = RETRY.whole_s(failures)
                what = f"{type(error).__name__}: {error}; tried again in {pause_s:g} s"
                left_out = self._lines.take(asyncio.get_running_loop().time())
                if left_out is not None and failures > 1:
                    text = "queue %r: shard %d does not know its settings: %s%s"
                    log.warning(text, self._queue, number, what, left_out)
                await asyncio.sleep(pause_s)
