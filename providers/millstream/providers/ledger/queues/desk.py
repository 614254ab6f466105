"""The topics that this silo writes, for one provider.

Owns: `Desk`, and the target `$ledger/<provider>` by which other silos append here. Not: finding
out who writes a queue (`publishing`). Invariants: of one queue one topic is open here at most; the
owner of a queue's epoch e opens its topic in an epoch of e * 1024 to e * 1024 + 1023, higher than
any before; a publisher does so too while nobody owns it; so every later owner comes before both.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec

from millstream.providers.ledger.topic.form import TopicMessage
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import (
    PublishUnknown,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
    StreamError,
)
from millstream.runtime.extending import SystemTarget, Tasks
from millstream.streams import QueueId

__all__ = ["Answer", "Desk", "LedgerTarget", "Opens", "Reason"]

KEPT_S = 30.0
"""An owner whose read has failed comes again sooner."""
EPOCHS_BETWEEN = 1024
"""Epochs of a topic for each epoch of its queue."""


class Opens(Protocol):
    """Opens topics. Raises QueueFenced, QueueUnavailable."""

    async def open(self, queue: QueueId, epoch: int, /) -> Topic: ...
    async def last_epoch(self, queue: QueueId, /) -> int:
        """The epoch in which the queue's topic was opened last. Raises QueueUnavailable."""
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
        """The queue's topic, if this silo writes it."""
        topic = self._topics.get(queue)
        return None if topic is None or topic.has_ended else topic

    def refusal(self, queue: QueueId) -> str:
        """Why the queue's topic could not be opened here; "": it was, or nobody tried."""
        return self._refusals.get(queue, "")

    async def own(self, queue: QueueId, epoch: int) -> Topic:
        """Open a queue's topic for its owner; one that was kept for it is the same. Raises
        QueueFenced, QueueUnavailable."""
        kept = self._kept.pop(queue, None)
        if kept is not None:
            kept.cancel()
            topic = self.topic(queue)
            if topic is not None and topic.epoch // EPOCHS_BETWEEN == epoch:
                return topic
        first, last = epoch * EPOCHS_BETWEEN, await self._opens.last_epoch(queue)
        return await self._open(queue, max(first, self._next(queue, last, epoch)))

    async def stand_in(self, queue: QueueId) -> Topic | None:
        """Open it while nobody owns it; None: another one was faster. Raises QueueUnavailable."""
        last = await self._opens.last_epoch(queue)
        try:
            return await self._open(queue, self._next(queue, last, last // EPOCHS_BETWEEN))
        except QueueFenced:
            return None

    def _next(self, queue: QueueId, last: int, epoch: int) -> int:
        """The next epoch of a topic; in that of the queue. Raises QueueFenced, QueueUnavailable."""
        if last // EPOCHS_BETWEEN > epoch:
            text = f"{queue}: its topic was opened in epoch {last // EPOCHS_BETWEEN}"
            raise QueueFenced(f"{text}, epoch {epoch} is over")
        if (last + 1) % EPOCHS_BETWEEN == 0:
            text = f"{queue}: its topic was opened {EPOCHS_BETWEEN} times in epoch {epoch}"
            raise QueueUnavailable(f"{text}; another owner goes on")
        return last + 1

    async def _open(self, queue: QueueId, epoch: int) -> Topic:
        async with self._changing[queue]:
            found = self._topics.get(queue)
            if found is not None:
                if found.epoch > epoch:
                    text = f"{queue} is written in epoch {found.epoch}, not {epoch}"
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
        """Let a topic be appended to while its owner, whose read has failed, comes again; if it
        does not come for `KEPT_S`, the topic is closed."""

        def leave() -> None:
            self._kept.pop(queue, None)
            self._tasks.start(self.leave(queue, topic))

        self._kept[queue] = self._tasks.call_later(KEPT_S, leave)

    async def leave(self, queue: QueueId, topic: Topic) -> None:
        """Close a topic in order, unless another one took its place."""
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


class Reason(Enum):
    """Why messages were not appended."""

    NOT_HERE = "not here"
    FULL = "full"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"


ERRORS: dict[Reason, type[StreamError]] = {
    Reason.FULL: QueueFull,
    Reason.UNAVAILABLE: QueueUnavailable,
    Reason.UNKNOWN: PublishUnknown,
}


class Answer(msgspec.Struct, frozen=True):
    """The numbers of messages, or why there are none."""

    numbers: list[int | None] = msgspec.field(default_factory=list)
    reason: Reason | None = None
    text: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Another silo writes the queue."""
        return self.reason is Reason.NOT_HERE

    def check(self) -> list[int | None]:
        """The numbers. Raises QueueFull, QueueUnavailable, PublishUnknown."""
        if self.reason is None:
            return self.numbers
        raise ERRORS[self.reason](self.text)


class LedgerTarget(SystemTarget):
    """Takes what other silos append to topics that this one writes."""

    target_name = "$ledger"

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.adapters = 0  # that share it, in this silo

    async def append(self, queue: str, messages: list[TopicMessage]) -> Answer:
        """Append messages; answers once they are durable."""
        return await append_here(self.desk, queue, messages)


async def append_here(desk: Desk, queue: QueueId, messages: Sequence[TopicMessage]) -> Answer:
    """Append to a topic of this silo."""
    topic = desk.topic(queue)
    if topic is None:
        return Answer(reason=Reason.NOT_HERE, text=desk.refusal(queue))
    try:
        return Answer(await topic.append(messages))
    except QueueFenced:
        return Answer(reason=Reason.NOT_HERE)
    except QueueFull as error:
        return Answer(reason=Reason.FULL, text=str(error))
    except QueueUnavailable as error:
        return Answer(reason=Reason.UNAVAILABLE, text=str(error))
    except PublishUnknown as error:
        return Answer(reason=Reason.UNKNOWN, text=str(error))
