"""Messages on their way into a queue and out of it.

Owns: the values that plug-ins are given and give, and how many bytes they count for. Invariant: all
are frozen; items are encoded MessagePack values, which no provider looks into.
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
"""What a message has beside its texts and items, at most: lengths, a sequence, two times."""
VALUE_HEAD_BYTES = 5
"""What MessagePack writes before a text or an item, at most."""


@dataclass(frozen=True, slots=True)
class ProducerMark:
    """Identifies a message of a producer, so that sending it twice stores it once."""

    producer: str
    seq: int


class OutMessage(msgspec.Struct, frozen=True):
    """Items of one stream on their way into a queue; `items` are encoded MessagePack values."""

    stream: StreamId
    items: Sequence[bytes]
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    mark: ProducerMark | None = None


class QueueMessage(msgspec.Struct, frozen=True):
    """A stored message: `token` is that of its first item (index 0); item i has index i.

    `enqueued_s`: wall clock, for lag figures. `attempt`: how often it was given out, this time
    included; 0: the provider does not count. `lease_s`: what was left of its lease when `read`
    returned; 0: none. `is_last`: the queue gives it out no more if this attempt fails, so it is
    given up then.
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
    """The largest message that a queue accepts; a larger one is refused for good.

    `bytes_max`: bytes, as `message_bytes` counts them. `items_max`: items.
    """

    bytes_max: int = sys.maxsize
    items_max: int = sys.maxsize

    def refusal(self, message: OutMessage) -> str:
        """Why queues with these limits refuse a message; empty: they accept it."""
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
    """What a `QueueReader` found: read on at `next`; `at_end`: nothing is stored behind it yet."""

    messages: Sequence[QueueMessage]
    next: Token
    at_end: bool


def headers_bytes(headers: Mapping[str, str] | None) -> int:
    """Bytes of a message's headers."""
    return text_bytes(headers) + text_bytes(headers.values()) if headers else 0


def content_bytes(items: Sequence[bytes], headers: Mapping[str, str] | None) -> int:
    """What a message counts for against every limit of bytes: items and headers."""
    size = len(items[0]) if len(items) == 1 else sum(map(len, items))
    return size + headers_bytes(headers) if headers else size


def message_bytes(message: OutMessage) -> int:
    """At least what a message takes in a queue, where it is written as MessagePack.

    Counts items, headers, the names of its stream and of its producer, and the lengths before them.
    """
    items, headers, mark = message.items, message.headers, message.mark
    names = message.stream if mark is None else (*message.stream, mark.producer)
    values = len(items) + 2 * len(headers)
    return (
        HEAD_BYTES + text_bytes(names) + content_bytes(items, headers) + VALUE_HEAD_BYTES * values
    )
