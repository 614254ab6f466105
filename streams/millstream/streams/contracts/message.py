"""Messages on their way into a queue and out of it.

Owns: the values that plug-ins take and return, and how their bytes are counted. Invariants: all are
frozen. Items are encoded MessagePack values, which providers do not decode.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from millstream.runtime.extending import text_bytes

from .identity import StreamId
from .token import Token

__all__ = [
    "MessageLimits",
    "OutMessage",
    "Page",
    "ProducerMark",
    "QueueMessage",
    "content_bytes",
    "headers_bytes",
    "message_bytes",
]

HEAD_BYTES = 48
"""The largest size of a message apart from its texts and items: lengths, a sequence, two times."""
VALUE_HEAD_BYTES = 5
"""The largest size of the header that MessagePack writes before a text or an item."""


@dataclass(frozen=True, slots=True)
class ProducerMark:
    """Identifies a message of a producer, so that a provider with `DEDUP` stores a repeated message
    once.

    Attributes:
        producer: name of the producer.
        seq: number of the message; it rises with each message of the producer.
    """

    producer: str
    seq: int


class OutMessage(msgspec.Struct, frozen=True):
    """Items of one stream on their way into a queue: the argument of `QueueAdapter.enqueue`.

    Attributes:
        stream: the stream.
        items: the events, as encoded MessagePack values.
        headers: headers that all the items share.
        mark: identifies the message for deduplication; None: the message has no number.
    """

    stream: StreamId
    items: Sequence[bytes]
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    mark: ProducerMark | None = None


class QueueMessage(msgspec.Struct, frozen=True):
    """A stored message: the answer of `QueueReceiver.read`.

    Attributes:
        stream: the stream.
        token: the token of the first item, with index 0. The item at place i has the index i.
        items: the events, as they were enqueued.
        headers: the headers, as they were enqueued.
        enqueued_s: wall clock time of acceptance in seconds; it is used for lag figures only.
        attempt: how often the queue has handed the message out, this time included. 0: the provider
            does not count attempts.
        lease_s: remaining seconds of the lease when `read` returned. 0: the message has no lease.
        is_last: the queue will not hand the message out again; if this attempt fails, the runtime
            gives its events up.
    """

    stream: StreamId
    token: Token
    items: Sequence[bytes]
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    enqueued_s: float = 0.0
    attempt: int = 0
    lease_s: float = 0.0
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """The largest message that the queues of an adapter accept; larger messages are refused for
    good.

    An adapter returns it from `message_limits` (`LimitsMessages`). Bytes count the items, the
    headers, the names of stream and producer, 5 more for each item and header text, and 48 for the
    message. A message written as MessagePack takes at most that many bytes.

    Attributes:
        bytes_max: largest size of a message in bytes; unlimited by default.
        items_max: largest number of items in a message; unlimited by default.
    """

    bytes_max: int = sys.maxsize
    items_max: int = sys.maxsize

    def refusal(self, message: OutMessage) -> str:
        """Return the reason why a message exceeds these limits, or "" if the message is within
        them.

        Args:
            message: the message.
        """
        items, size = len(message.items), message_bytes(message)
        if size > self.bytes_max:
            return (
                f"a message of {size} bytes (items, headers, names of its stream and producer, and "
                f"{VALUE_HEAD_BYTES} bytes more for each of them); its queue accepts "
                f"{self.bytes_max}"
            )
        if items > self.items_max:
            return f"a message of {items} items; its queue accepts {self.items_max}"
        return ""


class Page(NamedTuple):
    """The answer of `QueueReader.read_from`.

    Attributes:
        messages: the messages found.
        next: the position where the next call continues.
        at_end: no message is stored after `next` yet.
    """

    messages: Sequence[QueueMessage]
    next: Token
    at_end: bool


def headers_bytes(headers: Mapping[str, str] | None) -> int:
    """Bytes of a message's headers."""
    return text_bytes(headers) + text_bytes(headers.values()) if headers else 0


def content_bytes(items: Sequence[bytes], headers: Mapping[str, str] | None) -> int:
    """The size that a message counts for in every limit of bytes: items and headers."""
    size = len(items[0]) if len(items) == 1 else sum(map(len, items))
    return size + headers_bytes(headers) if headers else size


def message_bytes(message: OutMessage) -> int:
    """The largest size of a message in a queue that writes it as MessagePack.

    Counts items, headers, the names of its stream and of its producer, and the lengths before them.
    """
    items, headers, mark = message.items, message.headers, message.mark
    names = message.stream if mark is None else (*message.stream, mark.producer)
    values = len(items) + 2 * len(headers)
    return (
        HEAD_BYTES + text_bytes(names) + content_bytes(items, headers) + VALUE_HEAD_BYTES * values
    )
