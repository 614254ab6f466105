"""Requests of this silo and others to the topics that this silo writes.

Owns: the target `$ledger/<provider>`, its answers, and the requests to a topic of this silo. Not:
the topics (`desk`), the callers (`writers`). Invariant: an answer that the queue is written
elsewhere means that nothing was done.
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
    "LedgerTarget",
    "WriterAnswer",
    "WriterReason",
    "append_here",
    "let_go_here",
    "retain_here",
]

READER = "reader/"
"""The beginning of the names of cursors that keep messages for readers other than the owner."""


class WriterReason(Enum):
    """Why a request was refused."""

    NOT_HERE = "not here"
    FULL = "full"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"
    REFUSED = "refused"


ERRORS: dict[WriterReason, type[MillstreamError]] = {
    WriterReason.FULL: QueueFull,
    WriterReason.UNAVAILABLE: QueueUnavailable,
    WriterReason.UNKNOWN: PublishUnknown,
    WriterReason.REFUSED: ConfigError,
}


class WriterAnswer(msgspec.Struct, frozen=True):
    """The numbers of the messages, or why the request was refused."""

    numbers: list[int | None] = msgspec.field(default_factory=list)
    reason: WriterReason | None = None
    text: str = ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether another silo writes the queue."""
        return self.reason is WriterReason.NOT_HERE

    def check(self) -> list[int | None]:
        """Return the numbers. Raises QueueFull, QueueUnavailable, PublishUnknown, ConfigError."""
        if self.reason is None:
            return self.numbers
        raise ERRORS[self.reason](self.text)


class LedgerTarget(SystemTarget):
    """Serves requests of other silos to topics that this one writes."""

    target_name = "$ledger"

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.adapters = 0  # the adapters that share it, in this silo

    async def append(self, queue: str, messages: list[TopicMessage]) -> WriterAnswer:
        """Append messages; answer once they are durable."""
        return await append_here(self.desk, queue, messages)

    async def retain(self, queue: str, reader: str, number: int | None) -> WriterAnswer:
        """Keep messages for a reader; answer once that is durable."""
        return await retain_here(self.desk, queue, reader, number)

    async def let_go(self, queue: str, reader: str) -> WriterAnswer:
        """Keep nothing more for a reader."""
        return await let_go_here(self.desk, queue, reader)


async def append_here(desk: Desk, queue: QueueId, messages: Sequence[TopicMessage]) -> WriterAnswer:
    """Append to a topic of this silo."""

    async def append(topic: Topic) -> WriterAnswer:
        return WriterAnswer(await topic.append(messages))

    return await _ask(desk, queue, append)


async def retain_here(desk: Desk, queue: QueueId, reader: str, number: int | None) -> WriterAnswer:
    """Keep messages for `reader`, in a topic that this silo writes: those from `number` on.

    None: keep all that the topic still has. A repeated call can raise the number, but not lower it.
    """

    async def retain(topic: Topic) -> WriterAnswer:
        cursor = await topic.cursors.open(READER + reader)
        cursor.acknowledge((number or 0) - 1)
        await cursor.flush()
        return WriterAnswer()

    return await _ask(desk, queue, retain)


async def let_go_here(desk: Desk, queue: QueueId, reader: str) -> WriterAnswer:
    """Keep nothing more for this reader in a topic of this silo."""

    async def let_go(topic: Topic) -> WriterAnswer:
        await topic.cursors.drop(READER + reader)
        return WriterAnswer()

    return await _ask(desk, queue, let_go)


async def _ask(
    desk: Desk, queue: QueueId, ask: Callable[[Topic], Awaitable[WriterAnswer]]
) -> WriterAnswer:
    topic = desk.topic(queue)
    if topic is None:
        return WriterAnswer(reason=WriterReason.NOT_HERE, text=desk.refusal(queue))
    try:
        return await ask(topic)
    except QueueFenced:
        return WriterAnswer(reason=WriterReason.NOT_HERE)
    except QueueFull as error:
        return WriterAnswer(reason=WriterReason.FULL, text=str(error))
    except (QueueUnavailable, StorageError) as error:
        return WriterAnswer(reason=WriterReason.UNAVAILABLE, text=str(error))
    except PublishUnknown as error:
        return WriterAnswer(reason=WriterReason.UNKNOWN, text=str(error))
    except ConfigError as error:
        return WriterAnswer(reason=WriterReason.REFUSED, text=str(error))
