"""Messages of a queue in memory, in the forms that are sent between silos and stored.

This module owns the forms and their conversion. An entry with an empty namespace stands for an
acknowledged message, because no stream has an empty namespace.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.streams import OutMessage, ProducerMark, QueueMessage, StreamId, Token

from .eras import Eras

__all__ = [
    "NumberedMessages",
    "QueuedMessage",
    "StoredQueue",
    "make_queued",
    "make_stored",
    "messages_of",
    "out_message",
]


class QueuedMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message on its way to or from the queue's silo; `producer` and `seq` are set only to it."""

    namespace: str
    key: str
    items: list[bytes]
    headers: dict[str, str] | None
    producer: str
    seq: int
    enqueued_s: float
    era: int = 0  # of its token, if it differs from the content's

    @property
    def is_gone(self) -> bool:
        """Whether this entry stands for an acknowledged message, as an empty namespace shows."""
        return not self.namespace


class NumberedMessages(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive messages of one era; the first has number `first_seq`."""

    era: int
    first_seq: int
    messages: list[QueuedMessage]


class StoredQueue(msgspec.Struct, array_like=True, frozen=True):
    """The stored row of a queue. `is_clean`: the content was stored with it.

    `holder` is the activation that has the content while the row is not clean. `is_anew`: earlier
    content was lost, and no message has been acknowledged since.
    """

    era: int
    is_clean: bool
    start: int
    epoch: int
    chunks: int
    holder: str = ""
    producers: dict[str, int] = {}
    eras: Eras | None = None
    is_anew: bool = False


GONE = QueuedMessage("", "", [], None, "", 0, 0.0)
"""Stands for a message that is acknowledged before older ones are."""


def make_queued(message: OutMessage, enqueued_s: float) -> QueuedMessage:
    """Convert a message for sending to the queue's silo."""
    mark = message.mark
    return QueuedMessage(
        *message.stream,
        list(message.items),
        dict(message.headers) or None,
        "" if mark is None else mark.producer,
        0 if mark is None else mark.seq,
        enqueued_s,
    )


def out_message(message: QueuedMessage) -> OutMessage:
    """Convert a message that arrived in the queue's silo."""
    mark = ProducerMark(message.producer, message.seq) if message.producer else None
    stream = StreamId(message.namespace, message.key)
    return OutMessage(stream, message.items, message.headers or {}, mark)


def make_stored(messages: Iterable[QueueMessage | None]) -> list[QueuedMessage]:
    """Convert stored messages (None: acknowledged) for sending or storing."""
    return [
        GONE
        if message is None
        else QueuedMessage(
            *message.stream,
            list(message.items),
            dict(message.headers) or None,
            "",
            0,
            message.enqueued_s,
            message.token.era,
        )
        for message in messages
    ]


def messages_of(found: NumberedMessages) -> list[QueueMessage | None]:
    """Convert to messages of the contract, with None for acknowledged ones."""
    return [
        None
        if message.is_gone
        else QueueMessage(
            StreamId(message.namespace, message.key),
            Token(message.era or found.era, found.first_seq + at),
            message.items,
            message.headers or {},
            message.enqueued_s,
        )
        for at, message in enumerate(found.messages)
    ]
