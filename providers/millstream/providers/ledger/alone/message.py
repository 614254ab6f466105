"""A message of a managed topic, as a program sees it, and where it is.

Owns: `Position`, `Start`, `LedgerMessage`, and how they are in a topic: MessagePack, [key, value].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from millstream.providers.ledger.topic.form import StoredMessage, TopicMessage
from millstream.runtime.extending import check_text, show_text

__all__ = ["LedgerMessage", "Position", "Start", "check_position", "in_topic", "out_of_topic"]

SEQUENCE_MAX = (1 << 63) - 1
Content = tuple[str | None, bytes]
ENCODER = msgspec.msgpack.Encoder()
CONTENT: msgspec.msgpack.Decoder[Content] = msgspec.msgpack.Decoder(Content)


class Position(NamedTuple):
    """A place in a managed topic: messages of a partition have the numbers 1, 2, 3, ... ."""

    partition: int
    number: int


Start = Literal["earliest", "latest"] | datetime | Position | Sequence[Position]
"""Where reading begins: with the oldest message that is kept, with the next one, with the first at
or after a time, or at a position (of a partition that is not named, with the oldest)."""


@dataclass(frozen=True, slots=True)
class LedgerMessage:
    """A stored message.

    Attributes:
        position: where it is; it stays there for ever.
        key: as it was produced with; None: without one.
        value: the bytes.
        enqueued_s: wall time of its append, in seconds since 1970; it never goes back within a
            partition.
        producer, sequence: who produced it, and its number there; "" and 0: nobody said.
    """

    position: Position
    key: str | None
    value: bytes
    enqueued_s: float
    producer: str = ""
    sequence: int = 0


def in_topic(key: str | None, value: bytes, producer: str, sequence: int) -> TopicMessage:
    """On its way into a topic. Raises TypeError, ValueError."""
    if key is not None:
        check_said("key", key)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"the value of a message is a {type(value).__name__}; it must be bytes")
    check_said("producer", producer)
    if type(sequence) is not int:
        raise TypeError(f"sequence is {show_text(repr(sequence))}; it must be a whole number")
    if not producer and sequence:
        raise ValueError(f"sequence is {sequence}, without a producer: name it, too")
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise ValueError(f"sequence is {sequence}; it must be 0 to {SEQUENCE_MAX}")
    return TopicMessage(ENCODER.encode((key, value)), producer, sequence)


def check_said(what: str, text: object) -> None:
    """Raise TypeError for what would be stored, and not be read back as a text."""
    if type(text) is not str:
        or_none = ", or None" if what == "key" else ""
        raise TypeError(
            f"the {what} of a message is {show_text(repr(text))}; it must be a text{or_none}"
        )
    if not text.isascii():
        check_text(f"the {what} of a message", text)


def check_position(value: object) -> None:
    """Raise TypeError for what is no place in a topic."""
    if not (
        isinstance(value, tuple) and len(value) == 2 and all(type(part) is int for part in value)
    ):
        text = f"a place is {show_text(repr(value))}"
        raise TypeError(f"{text}; it must be a Position of two whole numbers: partition, number")


def out_of_topic(partition: int, stored: StoredMessage) -> LedgerMessage:
    """As it is read."""
    payload, producer, sequence = stored.message
    key, value = CONTENT.decode(payload)
    position = Position(partition, stored.number)
    return LedgerMessage(position, key, value, stored.time_ms / 1000, producer, sequence)
