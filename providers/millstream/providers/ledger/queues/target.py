"""What is asked of the topics that this silo writes, by this silo and by others.

Owns: the target `$ledger/<provider>`, its answers, and how a topic of this silo is asked. Not: the
topics (`desk`), who asks (`writers`). Invariant: an answer that the queue is written elsewhere
means that nothing was done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

import msgspec

from millstream.providers.ledger.topic.form import TopicMessage
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import (
    ConfigError,
    MillstreamError,
    PublishUnknown,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
    StorageError,
)
from millstream.runtime.extending import SystemTarget
from millstream.streams import QueueId

from .desk import Desk

__all__ = [
    "READER",
    "Answer",
    "LedgerTarget",
    "Reason",
    "append_here",
    "let_go_here",
    "retain_here",
]

READER = "reader/"
"""Begins the names of cursors that retain messages for readers beside the owner."""


class Reason(Enum):
    """Why something was not done."""

    NOT_HERE = "not here"
    FULL = "full"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"
    REFUSED = "refused"


ERRORS: dict[Reason, type[MillstreamError]] = {
    Reason.FULL: QueueFull,
    Reason.UNAVAILABLE: QueueUnavailable,
    Reason.UNKNOWN: PublishUnknown,
    Reason.REFUSED: ConfigError,
}


class Answer(msgspec.Struct, frozen=True):
    """It was done, and these are the numbers of messages; or why it was not."""

    numbers: list[int | None] = msgspec.field(default_factory=list)
    reason: Reason | None = None
    text: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Another silo writes the queue."""
        return self.reason is Reason.NOT_HERE

    def check(self) -> list[int | None]:
        """The numbers. Raises QueueFull, QueueUnavailable, PublishUnknown, ConfigError."""
        if self.reason is None:
            return self.numbers
        raise ERRORS[self.reason](self.text)


class LedgerTarget(SystemTarget):
    """Does what other silos ask of topics that this one writes."""

    target_name = "$ledger"

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.adapters = 0  # that share it, in this silo

    async def append(self, queue: str, messages: list[TopicMessage]) -> Answer:
        """Append messages; answers once they are durable."""
        return await append_here(self.desk, queue, messages)

    async def retain(self, queue: str, reader: str, number: int | None) -> Answer:
        """Keep messages for a reader; answers once that is durable."""
        return await retain_here(self.desk, queue, reader, number)

    async def let_go(self, queue: str, reader: str) -> Answer:
        """Keep nothing for a reader."""
        return await let_go_here(self.desk, queue, reader)


async def append_here(desk: Desk, queue: QueueId, messages: Sequence[TopicMessage]) -> Answer:
    """Append to a topic of this silo."""

    async def append(topic: Topic) -> Answer:
        return Answer(await topic.append(messages))

    return await _asked(desk, queue, append)


async def retain_here(desk: Desk, queue: QueueId, reader: str, number: int | None) -> Answer:
    """Keep the messages of a topic of this silo from `number` on; None: all that it has."""

    async def retain(topic: Topic) -> Answer:
        cursor = await topic.cursor(READER + reader)
        cursor.acknowledge((number or 0) - 1)
        await cursor.flush()
        return Answer()

    return await _asked(desk, queue, retain)


async def let_go_here(desk: Desk, queue: QueueId, reader: str) -> Answer:
    """Keep nothing for this reader in a topic of this silo."""

    async def let_go(topic: Topic) -> Answer:
        await topic.drop_cursor(READER + reader)
        return Answer()

    return await _asked(desk, queue, let_go)


async def _asked(desk: Desk, queue: QueueId, ask: Callable[[Topic], Awaitable[Answer]]) -> Answer:
    topic = desk.topic(queue)
    if topic is None:
        return Answer(reason=Reason.NOT_HERE, text=desk.refusal(queue))
    try:
        return await ask(topic)
    except QueueFenced:
        return Answer(reason=Reason.NOT_HERE)
    except QueueFull as error:
        return Answer(reason=Reason.FULL, text=str(error))
    except (QueueUnavailable, StorageError) as error:
        return Answer(reason=Reason.UNAVAILABLE, text=str(error))
    except PublishUnknown as error:
        return Answer(reason=Reason.UNKNOWN, text=str(error))
    except ConfigError as error:
        return Answer(reason=Reason.REFUSED, text=str(error))
