"""The stored form of priority queues in PostgreSQL, and the values of a commit. Pure.

A message is one row under the number of its queue and its sequence. Its body and payload are
written once, and its state is written with each change. A payload that was freed is NULL.

Invariant: rows are read back equal to those that were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from millstream.providers.priority.core.changes import (
    AnswerRow,
    ChangeEvent,
    Counters,
    MessageRow,
    SessionRow,
)
from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.settings import QueueSettings, SettingsRow

__all__ = [
    "QueueHead",
    "pack_answers",
    "pack_event",
    "pack_inserted",
    "pack_sessions",
    "pack_settings",
    "pack_updated",
    "queue_head",
    "unpack_answer",
    "unpack_event",
    "unpack_message",
]

_pack = msgspec.msgpack.Encoder().encode
_body = msgspec.msgpack.Decoder(
    tuple[str, Metadata, int, int, int | None, int | None, int | None]
).decode
_state = msgspec.msgpack.Decoder(
    tuple[int | None, int, int, int, int, int, int, int, int, str, str, str, bytes]
).decode
_plain = msgspec.msgpack.Decoder().decode
_settings = msgspec.json.Decoder(QueueSettings).decode

pack_event = _pack
"""Returns the stored form of an event."""
unpack_event = msgspec.msgpack.Decoder(ChangeEvent).decode
"""Returns an event."""


class QueueHead(NamedTuple):
    """The row of a queue, as its new owner gets it.

    Attributes:
        number: The number under which the rows of the queue are stored.
        epoch: The number of the ownership.
        settings: The settings.
        counters: The counters.
        due_ms: The time of the next due work. None: there is none.
    """

    number: int
    epoch: int
    settings: SettingsRow
    counters: Counters
    due_ms: int | None


def queue_head(columns: Sequence[Any]) -> QueueHead:
    """Return the head of a queue from its columns."""
    number, epoch, version, settings, *counters, due_ms = columns
    row = SettingsRow(version, _settings(settings))
    return QueueHead(number, epoch, row, Counters(*counters), due_ms)


def pack_settings(settings: QueueSettings) -> bytes:
    """Return the stored form of settings."""
    return msgspec.json.encode(settings)


def pack_inserted(
    rows: Sequence[MessageRow],
) -> tuple[list[int], list[bytes], list[bytes | None], list[bytes]]:
    """Return the columns of new messages: sequences, bodies, payloads and states.

    The body has the fields that never change, without the payload.
    """
    bodies = [_pack((row.id, *row[3:9])) for row in rows]
    payloads = [bytes(row.payload) or None for row in rows]
    return [row.sequence for row in rows], bodies, payloads, [_pack(row[9:]) for row in rows]


def pack_updated(rows: Sequence[MessageRow]) -> tuple[list[int], list[bytes], list[bool]]:
    """Return the columns of changed messages: sequences, states, and whether the payload is
    freed.
    """
    states = [_pack(row[9:]) for row in rows]
    return [row.sequence for row in rows], states, [bool(row.freed) for row in rows]


def pack_sessions(rows: Sequence[SessionRow]) -> tuple[list[bytes], list[int], list[int]]:
    """Return the columns of sessions."""
    names = [row.session.encode() for row in rows]
    return names, [row.acknowledged for row in rows], [row.used_ms for row in rows]


def pack_answers(rows: Sequence[AnswerRow]) -> tuple[list[bytes], list[int], list[bytes]]:
    """Return the columns of answers."""
    names = [row.session.encode() for row in rows]
    return names, [row.number for row in rows], [_pack((row.what, row.answer)) for row in rows]


def unpack_message(columns: Sequence[Any]) -> MessageRow:
    """Return a message from its sequence, body, payload and state."""
    sequence, body, payload, state = columns
    id, *fixed = _body(body)
    return MessageRow._make((id, sequence, payload or b"", *fixed, *_state(state)))


def unpack_answer(columns: Sequence[Any]) -> AnswerRow:
    """Return an answer from its session, number and content."""
    session, number, packed = columns
    what, answer = _plain(packed)
    return AnswerRow(session.decode(), number, what, answer)
