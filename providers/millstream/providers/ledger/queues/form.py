"""Messages of streams as messages of a topic, and back.

Owns: the stored form of a stream's message in a topic. The payload is MessagePack: [namespace, key,
[item, ...], {header: value}].
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.providers.ledger.topic.form import StoredMessage, TopicMessage
from millstream.streams import OutMessage, QueueMessage, StreamId, Token

__all__ = ["in_topic", "out_of_topic"]

Content = tuple[str, str, list[bytes], dict[str, str]]
ENCODER = msgspec.msgpack.Encoder()
CONTENT: msgspec.msgpack.Decoder[Content] = msgspec.msgpack.Decoder(Content)


def in_topic(message: OutMessage) -> TopicMessage:
    """Return a stream's message as a message of a topic."""
    content: tuple[Any, ...] = (*message.stream, list(message.items), dict(message.headers))
    payload = ENCODER.encode(content)
    if message.mark is None:
        return TopicMessage(payload)
    return TopicMessage(payload, message.mark.producer, message.mark.seq)


def out_of_topic(stored: StoredMessage, era: int) -> QueueMessage:
    """Return a stored message as the runtime reads it. The token has its number."""
    namespace, key, items, headers = CONTENT.decode(stored.message.payload)
    return QueueMessage(
        stream=StreamId(namespace, key),
        token=Token(era, stored.number),
        items=items,
        headers=headers,
        enqueued_s=stored.time_ms / 1000,
    )
