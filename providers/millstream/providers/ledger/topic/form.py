"""The messages of a topic as the payload of an entry.

Owns: `TopicMessage`, `StoredMessage`, `EntryHead`, packing. Not: the entry around it
(`protocol.entry`), which has the check. Invariants: numbers of messages are consecutive from entry
to entry and from ledger to ledger. Times never go back within a topic. Each payload says where the
newest snapshot of producers is, so an owner finds it from the last entry.

    0  first number u64 | count u32 | time in ms i64 | entry of the newest snapshot i64 | kind u8
    29 kind 0: [[payload, producer, sequence], ...]
       kind 1: [[producer, highest sequence, its number], ...]; its `first` is the next number

All integers are little-endian. The part after the head is MessagePack.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, TypeVar

import msgspec

from millstream.providers.ledger.protocol.entry import NOTHING
from millstream.providers.ledger.protocol.errors import EntryDamaged

__all__ = [
    "FRAME_BYTES",
    "MESSAGE_BYTES",
    "NO_SNAPSHOT",
    "EntryHead",
    "EntryKind",
    "KnownProducer",
    "StoredMessage",
    "TopicMessage",
    "ceil_ms",
    "head_of",
    "messages_of",
    "pack",
    "producers_of",
    "size_of",
]

T = TypeVar("T")

HEAD = Struct("<QIqqB")
FRAME_BYTES = HEAD.size + 5
"""The bytes of an entry in addition to its messages: the head, and the length of the list."""
MESSAGE_BYTES = 24
"""The largest number of bytes of a message in addition to its payload and the producer's name."""
NO_SNAPSHOT = NOTHING
"""No producer was known when the ledger began, and there was no snapshot since."""


class EntryKind(IntEnum):
    """The kind of the part after the head."""

    MESSAGES = 0
    SNAPSHOT = 1


class TopicMessage(NamedTuple):
    """A message. `producer` and `seq` are given together, so that a repeated message is stored only
    once.

    Sequences of one producer rise. A message with the producer "" has no sequence.
    """

    payload: bytes
    producer: str = ""
    seq: int = 0


class StoredMessage(NamedTuple):
    """A message with its number in the topic, and the wall time of its append."""

    number: int
    time_ms: int
    message: TopicMessage


class KnownProducer(NamedTuple):
    """A producer, its highest accepted sequence, and the number of the message that had it."""

    producer: str
    seq: int
    number: int


class EntryHead(NamedTuple):
    """The fields before the messages of an entry."""

    first: int
    messages: int
    time_ms: int
    snapshot: int
    kind: int = EntryKind.MESSAGES

    @property
    def end(self) -> int:
        """The number after its last message."""
        return self.first + self.messages


ENCODER = msgspec.msgpack.Encoder()
MESSAGES = msgspec.msgpack.Decoder(list[TopicMessage])
PRODUCERS = msgspec.msgpack.Decoder(list[KnownProducer])


def ceil_ms(time_s: float) -> int:
    """Return the first millisecond that is not before a time with microseconds."""
    return -(-round(time_s * 1e6) // 1000)


def size_of(message: TopicMessage) -> int:
    """Return the largest number of bytes that a message takes in an entry."""
    producer = message.producer
    name = len(producer) if producer.isascii() else len(producer.encode())
    return len(message.payload) + name + MESSAGE_BYTES


def pack(head: EntryHead, body: Sequence[TopicMessage] | Sequence[KnownProducer]) -> bytes:
    """Return the payload of an entry."""
    return HEAD.pack(*head) + ENCODER.encode(body)


def head_of(payload: bytes) -> EntryHead:
    """Return the fields before the messages. Raises EntryDamaged."""
    if len(payload) < HEAD.size:
        raise EntryDamaged(f"a topic entry has {len(payload)} bytes; its header has {HEAD.size}")
    return EntryHead(*HEAD.unpack_from(payload))


def messages_of(payload: bytes) -> list[TopicMessage]:
    """Return the messages of an entry; a snapshot has none. Raises EntryDamaged."""
    head = head_of(payload)
    if head.kind != EntryKind.MESSAGES:
        return []
    messages = decode(MESSAGES, payload)
    if len(messages) != head.messages:
        text = f"the entry with message {head.first} has {len(messages)} messages"
        raise EntryDamaged(f"{text}, but its header says {head.messages}")
    return messages


def producers_of(payload: bytes) -> list[KnownProducer]:
    """Return the content of a snapshot. Raises EntryDamaged."""
    return decode(PRODUCERS, payload)


def decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes) -> T:
    """Decode the part after the head."""
    try:
        return decoder.decode(memoryview(payload)[HEAD.size :])
    except msgspec.MsgspecError as error:
        raise EntryDamaged(f"a topic entry cannot be decoded: {error}") from error
