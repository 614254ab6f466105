"""Messages of an in-memory queue as they are sent between silos, and as they are stored.

Owns: the forms and how they become what a queue holds. Invariant: what is in the place of a message
that is done has an empty namespace, which no stream has.
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
    """A message on its way to the queue's silo, or from it; `producer` and `seq` only to it."""

    namespace: str
    key: str
    items: list[bytes]
    headers: dict[str, str] | None
    producer: str
    seq: int
    enqueued_s: float
    era: int = 0  # of its token, where that is not the content's

    @property
    def is_gone(self) -> bool:
        """Does it stand in the place of a message that is done? No stream has an empty name."""
        return not self.namespace


class NumberedMessages(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive messages of one era; the first has number `first_seq`."""

    era: int
    first_seq: int
    messages: list[QueuedMessage]


class StoredQueue(msgspec.Struct, array_like=True, frozen=True):
    """What outlives an activation; `is_clean`: its content was stored with it.

    `holder`: the activation that has the content, while it is not clean. `is_anew`: what was there
    before this era was lost, and nothing is done since.
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
"""In the place of a message that is done before older ones are."""


def make_queued(message: OutMessage, enqueued_s: float) -> QueuedMessage:
    """A message that is sent to the queue's silo."""
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
    """A message that has come to the queue's silo."""
    mark = ProducerMark(message.producer, message.seq) if message.producer else None
    stream = StreamId(message.namespace, message.key)
    return OutMessage(stream, message.items, message.headers or {}, mark)


def make_stored(messages: Iterable[QueueMessage | None]) -> list[QueuedMessage]:
    """Messages that are held (None: one that is done), to be sent or stored."""
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
    """Messages as the contract has them; None in the place of one that is done."""
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
