"""The topics that this silo writes, for one provider.

Owns: `Desk`. Not: requests of other silos (`target`), finding the writer of a queue (`writers`).
Invariants: at most one topic of a queue is open here. The owner of a queue's epoch e opens its
topic in an epoch from e * 1024 to e * 1024 + 1023, which is higher than any before. A publisher
does the same while the queue has no owner. So every later owner has a higher epoch than both.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Protocol

from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import QueueFenced, QueueUnavailable
from millstream.runtime.extending import Tasks
from millstream.streams import QueueId

__all__ = ["Desk", "Opens"]

KEPT_S = 30.0
"""An owner whose read has failed returns sooner than this."""
EPOCHS_BETWEEN = 1024
"""The number of topic epochs for each epoch of a queue."""


class Opens(Protocol):
    """Opens topics. Raises QueueFenced, QueueUnavailable."""

    async def open(self, queue: QueueId, epoch: int, /) -> Topic: ...
    async def last_epoch(self, queue: QueueId, /) -> int:
        """Return the epoch in which the queue's topic was opened last. Raises QueueUnavailable."""
        ...


class Desk:
    """The open topics of one provider in one silo."""

    def __init__(self, opens: Opens, tasks: Tasks) -> None:
        self._opens = opens
        self._tasks = tasks
        self._topics: dict[QueueId, Topic] = {}
        self._kept: dict[QueueId, asyncio.TimerHandle] = {}
        self._refusals: dict[QueueId, str] = {}
        self._changing: defaultdict[QueueId, asyncio.Lock] = defaultdict(asyncio.Lock)

    def topic(self, queue: QueueId) -> Topic | None:
        """Return the queue's topic, if this silo writes it."""
        topic = self._topics.get(queue)
        return None if topic is None or topic.has_ended else topic

    def refusal(self, queue: QueueId) -> str:
        """Return why the queue's topic could not be opened here.

        The text is empty if the topic was opened, or if nothing tried to open it.
        """
        return self._refusals.get(queue, "")

    async def own(self, queue: QueueId, epoch: int) -> Topic:
        """Open a queue's topic for its owner, or return the one that was kept for it. Raises
        QueueFenced, QueueUnavailable."""
        kept = self._kept.pop(queue, None)
        if kept is not None:
            kept.cancel()
            topic = self.topic(queue)
            if topic is not None and topic.epoch // EPOCHS_BETWEEN == epoch:
                return topic
        last = await self._opens.last_epoch(queue)
        return await self._open(queue, self._next(queue, last, epoch))

    async def stand_in(self, queue: QueueId) -> Topic | None:
        """Open the topic of a queue without an owner.

        Return None if another process was faster. Raises QueueUnavailable.
        """
        last = await self._opens.last_epoch(queue)
        try:
            return await self._open(queue, self._next(queue, last, last // EPOCHS_BETWEEN))
        except QueueFenced:
            return None

    def _next(self, queue: QueueId, last: int, epoch: int) -> int:
        """Return the next epoch of a topic within the epoch of its queue. Raises QueueFenced,
        QueueUnavailable."""
        if last // EPOCHS_BETWEEN > epoch:
            text = f"{queue}: the topic was opened in epoch {last // EPOCHS_BETWEEN}"
            raise QueueFenced(f"{text}, and epoch {epoch} is older")
        first = epoch * EPOCHS_BETWEEN
        if last == first + EPOCHS_BETWEEN - 1:
            text = (
                f"{queue}: the topic was opened {EPOCHS_BETWEEN} times in epoch {epoch}, the limit"
            )
            raise QueueUnavailable(f"{text}; the next owner continues")
        return max(first, last + 1)

    async def _open(self, queue: QueueId, epoch: int) -> Topic:
        async with self._changing[queue]:
            found = self._topics.get(queue)
            if found is not None:
                if found.epoch > epoch:
                    text = f"{queue} is written in epoch {found.epoch}; epoch {epoch} is older"
                    raise QueueFenced(text)
                await self._close(queue, found)
            try:
                topic = await self._opens.open(queue, epoch)
            except QueueUnavailable as error:
                self._refusals[queue] = str(error)
                raise
            self._refusals.pop(queue, None)
            self._topics[queue] = topic
            return topic

    def keep(self, queue: QueueId, topic: Topic) -> None:
        """Keep a topic open for appends after its owner's read has failed. If the owner does not
        return for `KEPT_S`, the topic is closed."""

        def leave() -> None:
            self._kept.pop(queue, None)
            self._tasks.start(self.leave(queue, topic))

        self._kept[queue] = self._tasks.call_later(KEPT_S, leave)

    async def leave(self, queue: QueueId, topic: Topic) -> None:
        """Close a topic in order, unless another object has replaced it for this queue."""
        async with self._changing[queue]:
            if self._topics.get(queue) is topic:
                await self._close(queue, topic)

    async def _close(self, queue: QueueId, topic: Topic) -> None:
        del self._topics[queue]
        await topic.aclose()

    async def aclose(self) -> None:
        """Close all topics."""
        for kept in self._kept.values():
            kept.cancel()
        await asyncio.gather(*[self.leave(*one) for one in list(self._topics.items())])
