"""Distribution of a queue's settings to its shards.

The owner of shard 0 sends the settings to all shards. When the number of shards changes, it also
finds out when no shard has strays. A stray is a message that may belong to another shard.

Owns `Spreading`. The meaning of layouts is in `core.shards`.

Invariants:

- The owner sends each layout to every shard, and repeats this until the shard answers. If the owner
  is replaced, the next owner continues.
- A change of the number of shards ends only after each shard has reported, in this layout, that it
  has no strays.
- Before the change ends, every shard gives leases with numbers above all earlier ones. So the
  tokens of an exclusivity value that moves to another shard rise.
- Before the change ends, the shards that are no longer needed are deleted. They are empty by then.
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
        """Take over the queue's settings, and give later leases numbers above `floor`.

        Returns the messages that may belong to another shard.
        """
        ...

    async def delete(self) -> None:
        """Delete the shard."""
        ...


class Spreading:
    """The shards of one queue.

    Args:
        queue: Name of the queue.
        tasks: The group in which the work runs.
        period_s: How often shards are asked for strays, in seconds.
        shard: Returns the owner of a shard by name; its calls have a time limit.
        settle: Records in shard 0 that a layout has no strays, and returns its settings.
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
        """Send the settings to all shards, unless their layout was sent before.

        A layout has a number, which rises with each change. Settings whose layout number is not
        above the last sent one have no effect.
        """
        if settings.layout > self._layout:
            self._layout = settings.layout
            self.stop()
            self._task = self._tasks.start(self._run(settings))

    def stop(self) -> None:
        """Stop sending settings to shards."""
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
        self._task = None  # the next settings start another task
        await self._settle_layout(settings.layout)

    async def _tell_all(self, settings: QueueSettings, floor: int) -> list[Moving]:
        """Send the settings to every shard, and return the answers with the strays.

        A stray is a message that may belong to another shard.
        """
        numbers = range(max(settings.shards, settings.shards_before))
        told = [self._tell(number, settings, floor) for number in numbers]
        return await asyncio.gather(*told)

    async def _tell(self, number: int, settings: QueueSettings, floor: int) -> Moving:
        shard = self._shard(shard_name(self._queue, number))
        return await self._until_done(number, lambda: shard.adopt(settings, floor))

    async def _delete(self, number: int) -> None:
        shard = self._shard(shard_name(self._queue, number))
        with suppress(PriorityQueueNotFound):  # an earlier owner has deleted it
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
                what = f"{type(error).__name__}: {error}; next attempt in {pause_s:g} s"
                left_out = self._lines.take(asyncio.get_running_loop().time())
                if left_out is not None and failures > 1:
                    text = "queue %r: shard %d did not accept its settings: %s%s"
                    log.warning(text, self._queue, number, what, left_out)
                await asyncio.sleep(pause_s)
