"""The SQL statements of the embedded store; each function is one piece of work on a connection.

Owns the meaning of the tables in `schema.PRIORITY`. Transactions belong to the writer.

Invariants: a function that changes a queue first checks the owner's epoch, in the same transaction.
A refused function changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
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
from millstream.providers.priority.core.core import QueueRows
from millstream.providers.priority.core.errors import OwnerLost, PriorityQueueNotFound
from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.settings import QueueSettings, SettingsRow
from millstream.runtime import StorageError

from .contract import StoredEvent
from .hold import TAKEN_OVER
from .schema import INLINE_BYTES_MAX, NUMBER_MAX, SEQUENCE_MAX, key_range, message_key

__all__ = ["Acquired", "acquire", "commit", "delete", "drop", "events", "forget_events", "load"]

DROPPED_AT_ONCE = 2_000
"""Rows of deleted queues that one transaction deletes."""

_pack = msgspec.msgpack.Encoder().encode
_metadata = msgspec.msgpack.Decoder(Metadata).decode
_settings = msgspec.json.Decoder(QueueSettings).decode
_event = msgspec.msgpack.Decoder(ChangeEvent).decode
_plain = msgspec.msgpack.Decoder().decode

_INSERT = f"INSERT INTO message VALUES ({', '.join('?' * 22)})"
_UPDATE = (
    "UPDATE message SET first_priority = ?, priority = ?, state = ?, version = ?,"
    " attempts_left = ?, due_ms = ?, changed_ms = ?, epoch = ?, leased_version = ?, worker = ?,"
    " ended = ?, reason = ?, freed = ? WHERE key = ?"
)
_LOAD = (
    "SELECT message.*, payload.payload FROM message LEFT JOIN payload USING (key)"
    " WHERE message.key BETWEEN ? AND ? ORDER BY message.key"
)


class Loaded(NamedTuple):
    """The rows from which an owner opens a queue.

    `rows` are read when they are taken, within one transaction.
    """

    rows: QueueRows
    next_due_ms: int | None


class Acquired(NamedTuple):
    """A queue's number in its file, and the epoch of its owner."""

    number: int
    epoch: int


def acquire(
    queue: str, create: QueueSettings | None, now_ms: int, connection: sqlite3.Connection
) -> Acquired:
    """Raise the epoch, and create the queue if it is missing. Raises PriorityQueueNotFound."""
    found = connection.execute(
        "SELECT number, owner, settings IS NULL FROM queue WHERE name = ?", (queue,)
    ).fetchone()
    if (found is None or found[2]) and create is None:
        raise PriorityQueueNotFound(queue, "there is no such queue")
    if found is None:
        _check_numbers(queue, connection)
        number = _insert(queue, Counters(), 0, connection)
        found = (number, 0, True)
    number, owner, is_absent = found
    connection.execute("UPDATE queue SET owner = owner + 1 WHERE number = ?", (number,))
    if is_absent:
        connection.execute(
            "UPDATE queue SET settings_version = 1, settings = ?, now_ms = ? WHERE number = ?",
            (msgspec.json.encode(create), now_ms, number),
        )
    return Acquired(number, owner + 1)


def _insert(queue: str, counters: Counters, owner: int, connection: sqlite3.Connection) -> int:
    """Insert a row without settings, under a number that was never used."""
    cursor = connection.execute(
        "INSERT INTO queue (name, owner, settings_version, sequence, leases, layout, now_ms,"
        " ahead_ms) VALUES (?, ?, 0, ?, ?, ?, ?, ?)",
        (queue, owner, *counters),
    )
    assert cursor.lastrowid is not None, "an insert has a row"
    return cursor.lastrowid


def _check_numbers(queue: str, connection: sqlite3.Connection) -> None:
    """Raise StorageError if the file has no number for another queue."""
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'queue'").fetchone()
    if found is not None and found[0] >= NUMBER_MAX:
        raise StorageError(f"queue {queue!r}: its file has had {NUMBER_MAX} queues, the maximum")


def load(queue: str, acquired: Acquired, connection: sqlite3.Connection) -> Loaded:
    """Return all rows of a queue. Raises OwnerLost."""
    number, epoch = acquired
    found = connection.execute(
        "SELECT settings_version, settings, sequence, leases, layout, now_ms, ahead_ms,"
        " next_due_ms FROM queue WHERE number = ? AND owner = ?",
        (number, epoch),
    ).fetchone()
    if found is None or found[1] is None:
        raise OwnerLost(queue, TAKEN_OVER)
    version, settings, *counters, due_ms = found
    rows = QueueRows(
        SettingsRow(version, _settings(settings)),
        Counters(*counters),
        _messages(number, connection),
        _sessions(number, connection),
        _answers(number, connection),
    )
    return Loaded(rows, due_ms)


def _messages(number: int, connection: sqlite3.Connection) -> Iterator[MessageRow]:
    mask = SEQUENCE_MAX
    for found in connection.execute(_LOAD, key_range(number)):
        key, id, payload, metadata, *rest, aside = found
        pairs = _metadata(metadata) if metadata is not None else ()
        if payload is None:
            payload = aside or b""  # the payload was freed
        yield MessageRow(id, key & mask, payload, pairs, *rest)


def _sessions(number: int, connection: sqlite3.Connection) -> Iterator[SessionRow]:
    found = connection.execute(
        "SELECT session, acknowledged, used_ms FROM session WHERE queue = ?", (number,)
    )
    return (SessionRow(*columns) for columns in found)


def _answers(queue: int, connection: sqlite3.Connection) -> Iterator[AnswerRow]:
    found = connection.execute(
        "SELECT session, number, what, answer FROM answer WHERE queue = ?", (queue,)
    )
    return (
        AnswerRow(session, number, what, _plain(answer)) for session, number, what, answer in found
    )


def commit(
    queue: str,
    acquired: Acquired,
    changes: Changes | None,
    next_due_ms: int | None,
    connection: sqlite3.Connection,
) -> None:
    """Store the changes of a queue, completely or not at all, and the time of its next due work.

    `changes=None` stores only the time; `next_due_ms=None` stores that no work is due. Raises
    OwnerLost or StorageError before it changes anything.
    """
    number, epoch = acquired
    if changes is not None and changes.counters.sequence > SEQUENCE_MAX:
        raise StorageError(f"queue {queue!r} has had {SEQUENCE_MAX} messages, the maximum")
    cursor = connection.execute(
        "UPDATE queue SET next_due_ms = ? WHERE number = ? AND owner = ?",
        (next_due_ms, number, epoch),
    )
    if cursor.rowcount != 1:
        raise OwnerLost(queue, TAKEN_OVER)
    if changes is not None:
        _put_head(number, changes, connection)
        _put_messages(number, changes, connection)
        _put_requests(number, changes, connection)
        events = [(_pack(event),) for event in changes.events]
        connection.executemany("INSERT INTO event (event) VALUES (?)", events)


def _put_head(number: int, changes: Changes, connection: sqlite3.Connection) -> None:
    connection.execute(
        "UPDATE queue SET sequence = ?, leases = ?, layout = ?, now_ms = ?, ahead_ms = ?"
        " WHERE number = ?",
        (*changes.counters, number),
    )
    if changes.settings is not None:
        version, settings = changes.settings
        connection.execute(
            "UPDATE queue SET settings_version = ?, settings = ? WHERE number = ?",
            (version, msgspec.json.encode(settings), number),
        )


def _put_messages(number: int, changes: Changes, connection: sqlite3.Connection) -> None:
    gone = [(message_key(number, sequence),) for _, sequence in changes.deleted]
    if gone:
        connection.executemany("DELETE FROM message WHERE key = ?", gone)
        connection.executemany("DELETE FROM payload WHERE key = ?", gone)
    aside = []
    first = []
    for row in changes.inserted:
        id, sequence, payload, metadata, *rest = row
        key, pairs = message_key(number, sequence), _pack(metadata) if metadata else None
        is_long = len(payload) > INLINE_BYTES_MAX
        if is_long:
            aside.append((key, payload))
        first.append((key, id, None if is_long else payload, pairs, *rest))
    connection.executemany(_INSERT, first)
    if aside:
        connection.executemany("INSERT INTO payload VALUES (?, ?)", aside)
    again = [(*row[9:], message_key(number, row.sequence)) for row in changes.updated]
    connection.executemany(_UPDATE, again)
    freed = [(message_key(number, row.sequence),) for row in changes.updated if row.freed]
    if freed:
        connection.executemany("UPDATE message SET payload = NULL WHERE key = ?", freed)
        connection.executemany("DELETE FROM payload WHERE key = ?", freed)


def _put_requests(number: int, changes: Changes, connection: sqlite3.Connection) -> None:
    gone = [(number, session) for session in changes.sessions_ended]
    if gone:
        connection.executemany("DELETE FROM session WHERE queue = ? AND session = ?", gone)
    connection.executemany(
        "DELETE FROM answer WHERE queue = ? AND session = ? AND number = ?",
        [(number, *key) for key in changes.answers_ended],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO session VALUES (?, ?, ?, ?)",
        [(number, *row) for row in changes.sessions],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO answer VALUES (?, ?, ?, ?, ?)",
        [(number, *row[:3], _pack(row.answer)) for row in changes.answers],
    )


def delete(queue: str, acquired: Acquired, connection: sqlite3.Connection) -> None:
    """Delete the queue; its rows are dropped later. Raises the errors of `commit`."""
    number, epoch = acquired
    _check_numbers(queue, connection)
    found = connection.execute(
        "SELECT sequence, leases, layout FROM queue WHERE number = ? AND owner = ?", acquired
    ).fetchone()
    if found is None:
        raise OwnerLost(queue, TAKEN_OVER)
    connection.execute("DELETE FROM queue WHERE number = ?", (number,))
    connection.execute("INSERT INTO dropped VALUES (?)", (number,))
    _insert(queue, Counters(*found), epoch, connection)


def drop(connection: sqlite3.Connection) -> bool:
    """Delete some rows of deleted queues, and return whether there are more."""
    found = connection.execute("SELECT min(number) FROM dropped").fetchone()
    number = found[0]
    if number is None:
        return False
    room = DROPPED_AT_ONCE
    for table in ("message", "payload"):
        room -= connection.execute(
            f"DELETE FROM {table} WHERE key IN"
            f" (SELECT key FROM {table} WHERE key BETWEEN ? AND ? LIMIT ?)",
            (*key_range(number), room),
        ).rowcount
    if room:
        connection.execute("DELETE FROM session WHERE queue = ?", (number,))
        connection.execute("DELETE FROM answer WHERE queue = ?", (number,))
        connection.execute("DELETE FROM dropped WHERE number = ?", (number,))
    return True


def due(until_ms: int, after: str, limit: int, connection: sqlite3.Connection) -> list[str]:
    """Return the names of queues with work due at `until_ms` or earlier, in order: those after the
    name `after`, at most `limit`. The index `queue_due` is small, because few queues have such
    work."""
    found = connection.execute(
        "SELECT name FROM queue INDEXED BY queue_due WHERE next_due_ms <= ? AND name > ?"
        " ORDER BY name LIMIT ?",
        (until_ms, after, limit),
    )
    return [name for (name,) in found]


def names(prefix: str, after: str, limit: int, connection: sqlite3.Connection) -> list[str]:
    """Return the names of existing queues that begin with `prefix`, in order: those after the name
    `after`, from at most `limit` rows."""
    found = connection.execute(
        "SELECT name FROM queue WHERE name >= ? AND name > ? AND settings IS NOT NULL"
        " ORDER BY name LIMIT ?",
        (prefix, after, limit),
    )
    return [name for (name,) in found if name.startswith(prefix)]


def events(after: int, limit: int, connection: sqlite3.Connection) -> list[StoredEvent]:
    """Return events of this file's outbox after a position."""
    found = connection.execute(
        "SELECT position, event FROM event WHERE position > ? ORDER BY position LIMIT ?",
        (after, limit),
    )
    return [StoredEvent(position, _event(event)) for position, event in found]


def forget_events(through: int, connection: sqlite3.Connection) -> int:
    """Delete events up to and including a position, and return the number of the others."""
    connection.execute("DELETE FROM event WHERE position <= ?", (through,))
    return events_stored(connection)


def events_stored(connection: sqlite3.Connection) -> int:
    """The number of events in the outbox. Positions have gaps only at the beginning."""
    found = connection.execute(
        "SELECT (SELECT max(position) FROM event) - (SELECT min(position) FROM event) + 1"
    ).fetchone()
    return found[0] or 0
