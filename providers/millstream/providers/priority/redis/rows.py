"""The stored form of rows in Redis, and the arguments of the commit script. Pure.

A message is in two hashes under its sequence. Its body is written once, and again without the
payload when that is freed. Its state is written with each change.

Owns the stored form. Keys are in `keys`, and reading is in `loading`.

Invariant: rows are read back equal to those that were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from millstream.providers.priority.core.changes import (
    AnswerRow,
    ChangeEvent,
    Changes,
    Counters,
    MessageRow,
    SessionRow,
)
from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.settings import QueueSettings, SettingsRow

__all__ = [
    "Head",
    "Value",
    "answer_of",
    "commit_lists",
    "event_of",
    "head_of",
    "message_of",
    "pack_settings",
    "payload_bytes",
    "session_of",
]

Value = bytes | str | int
BODY_FIELDS = 9
"""Fields of a `MessageRow` that never change, including the sequence."""

_pack = msgspec.msgpack.Encoder().encode
_state = msgspec.msgpack.Decoder(
    tuple[int, int | None, int, int, int, int, int, int, int, int, str, str, str, bytes]
).decode
_body = msgspec.msgpack.Decoder(
    tuple[str, bytes, Metadata, int, int, int | None, int | None, int | None]
).decode
_session = msgspec.msgpack.Decoder(tuple[int, int]).decode
_plain = msgspec.msgpack.Decoder().decode
_event = msgspec.msgpack.Decoder(ChangeEvent).decode
_settings = msgspec.json.Decoder(QueueSettings).decode


class Head(NamedTuple):
    """The answer to the acquisition of a queue."""

    epoch: int
    settings: SettingsRow
    counters: Counters
    due_ms: int | None


def head_of(found: Sequence[bytes | None]) -> Head:
    """The head, from the fields in the order of the script."""
    epoch, version, settings, *numbers, due_ms = found
    assert epoch is not None and version is not None and settings is not None
    counters = Counters(*(int(number or 0) for number in numbers))
    row = SettingsRow(int(version), _settings(settings))
    return Head(int(epoch), row, counters, None if due_ms is None else int(due_ms))


def pack_settings(settings: QueueSettings) -> bytes:
    return msgspec.json.encode(settings)


# -- commits


def commit_lists(changes: Changes | None) -> list[Value]:
    """The argument lists of the script, each after its length.

    Their order: fields of the head; deleted sequences; bodies; states; ended sessions; ended
    answers; sessions; answers; events.
    """
    if changes is None:
        return [0] * 9
    lists: list[Value] = []
    rows = (*changes.inserted, *changes.updated)
    put(lists, head_fields(changes))
    put(lists, [sequence for _, sequence in changes.deleted])
    bodies = (*changes.inserted, *(row for row in changes.updated if row.freed))
    put(lists, pairs((row.sequence, pack_body(row)) for row in bodies))
    put(lists, pairs((row.sequence, pack_state(row)) for row in rows))
    put(lists, list(changes.sessions_ended))
    put(lists, [answer_field(session, number) for session, number in changes.answers_ended])
    put(lists, pairs((row.session, _pack(row[1:])) for row in changes.sessions))
    put(lists, pairs((answer_field(*row[:2]), _pack(row[2:])) for row in changes.answers))
    put(lists, [_pack(event) for event in changes.events])
    return lists


def head_fields(changes: Changes) -> list[Value]:
    sequence, leases, layout, now_ms, ahead_ms = changes.counters
    fields: list[Value] = ["sequence", sequence, "leases", leases, "layout", layout]
    fields += ["now_ms", now_ms, "ahead_ms", ahead_ms]
    if changes.settings is not None:
        version, settings = changes.settings
        fields += ["settings_version", version, "settings", pack_settings(settings)]
    return fields


def put(lists: list[Value], values: Sequence[Value]) -> None:
    lists.append(len(values))
    lists += values


def pairs(found: Iterable[tuple[Value, Value]]) -> list[Value]:
    return [value for pair in found for value in pair]


def pack_body(row: MessageRow) -> bytes:
    return _pack((row.id, *row[2:BODY_FIELDS]))


def pack_state(row: MessageRow) -> bytes:
    return _pack((len(row.payload), *row[BODY_FIELDS:]))


def answer_field(session: str, number: int) -> str:
    """The field of an answer. The number is first, because a session's name may be any text."""
    return f"{number}:{session}"


# -- reads


def payload_bytes(state: bytes) -> int:
    """Bytes of a message's payload, from its state."""
    return _state(state)[0]


def message_of(sequence: int, state: bytes, body: bytes) -> MessageRow:
    _, *changing = _state(state)
    id, *fixed = _body(body)
    return MessageRow._make((id, sequence, *fixed, *changing))


def session_of(session: bytes, packed: bytes) -> SessionRow:
    return SessionRow(session.decode(), *_session(packed))


def answer_of(field: bytes, packed: bytes) -> AnswerRow:
    number, _, session = field.decode().partition(":")
    what, answer = _plain(packed)
    return AnswerRow(session, int(number), what, answer)


def event_of(fields: Mapping[bytes, bytes]) -> ChangeEvent:
    return _event(fields[b"e"])
