"""A message of a topic as a program sees it, and its position.

Owns: `Position`, `Start`, `LedgerMessage`, and the stored form of a message: MessagePack, [key,
value].
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
    """The place of a message in a topic. A message keeps its position for ever.

    Positions of one partition are ordered. Messages of a partition have the numbers 1, 2, 3, ...

    Attributes:
        partition: the partition, from 0.
        number: the number of the message within its partition, from 1.
    """

    partition: int
    number: int


Start = Literal["earliest", "latest"] | datetime | Position | Sequence[Position]
"""Where reading begins.

- `"earliest"`: at the oldest message that is kept.
- `"latest"`: at the next message that is produced.
- a `datetime` with a time zone: at the first message that was produced at that time or later.
- a `Position`, or a list with one for each partition: at that message. A partition that is not
  named begins at its oldest message.
"""


@dataclass(frozen=True, slots=True)
class LedgerMessage:
    """A stored message.

    Attributes:
        position: the place of the message, which never changes.
        key: the key that it was produced with; None: it has none.
        value: the bytes.
        enqueued_s: the wall time when it was appended, in seconds since 1970. Times never go back
            within a partition.
        producer: the name of its producer; "": none was given.
        sequence: the producer's number of the message; 0: none was given.
    """

    position: Position
    key: str | None
    value: bytes
    enqueued_s: float
    producer: str = ""
    sequence: int = 0


def in_topic(key: str | None, value: bytes, producer: str, sequence: int) -> TopicMessage:
    """Return a message in its stored form. Raises TypeError, ValueError."""
    if key is not None:
        check_said("key", key)
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"the value of a message is a {type(value).__name__}; it must be bytes")
    check_said("producer", producer)
    if type(sequence) is not int:
        raise TypeError(f"sequence is {show_text(repr(sequence))}; it must be a whole number")
    if not producer and sequence:
        raise ValueError(f"sequence is {sequence}, without a producer: give the producer, too")
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise ValueError(f"sequence is {sequence}; it must be 0 to {SEQUENCE_MAX}")
    return TopicMessage(ENCODER.encode((key, value)), producer, sequence)


def check_said(what: str, text: object) -> None:
    """Raise TypeError for a value that could not be read back as a text."""
    if type(text) is not str:
        or_none = ", or None" if what == "key" else ""
        raise TypeError(
            f"the {what} of a message is {show_text(repr(text))}; it must be text{or_none}"
        )
    if not text.isascii():
        check_text(f"the {what} of a message", text)


def check_position(value: object) -> None:
    """Raise TypeError for a value that is not a position."""
    if not (
        isinstance(value, tuple) and len(value) == 2 and all(type(part) is int for part in value)
    ):
        text = f"a position is {show_text(repr(value))}"
        raise TypeError(f"{text}; it must be a Position of two whole numbers: partition, number")


def out_of_topic(partition: int, stored: StoredMessage) -> LedgerMessage:
    """Return a stored message as a program reads it."""
    payload, producer, sequence = stored.message
    key, value = CONTENT.decode(payload)
    position = Position(partition, stored.number)
    return LedgerMessage(position, key, value, stored.time_ms / 1000, producer, sequence)
