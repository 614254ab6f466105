"""The tables of the embedded store's files, and how things are written in their columns.

A message's key is its queue's number and its sequence in one whole number, so that the messages of
a queue lie side by side and no index beside the table is needed. Payloads of more than
`INLINE_BYTES_MAX` have a table of their own: the row of a message is written anew with each change,
they are written once.
Invariants: a number is never given twice in a file, also not after its queue was deleted.
"""

from __future__ import annotations

import sqlite3

import xxhash

from millstream.runtime import Env
from millstream.runtime.database import Schema

__all__ = ["FILES", "OURS", "PRIORITY", "file_index", "key_range", "message_key"]

FILES = 8
OURS = ("priority-",)
INLINE_BYTES_MAX = 1_024
"""Bytes of a payload in the row of its message; the next page of the file begins at some 4,096."""
KEY_SEQUENCE_BITS = 40
SEQUENCE_MAX = (1 << KEY_SEQUENCE_BITS) - 1
"""Messages that ever were in one queue."""
NUMBER_MAX = (1 << 63 - KEY_SEQUENCE_BITS) - 1
"""Queues that ever were in one file."""


def file_index(queue: str) -> int:
    """Which file holds the queue. Frozen: files on disk depend on it."""
    return xxhash.xxh3_64_intdigest(queue.encode()) % FILES


def message_key(number: int, sequence: int) -> int:
    """The key of a message, by its queue's number."""
    return (number << KEY_SEQUENCE_BITS) | sequence


def key_range(number: int) -> tuple[int, int]:
    """The least and the highest key of a queue's messages."""
    return message_key(number, 0), message_key(number, SEQUENCE_MAX)


def _fill(connection: sqlite3.Connection, env: Env) -> None:
    """There is nothing at first."""


# `queue`: `owner` is the epoch of who owns it; `settings` NULL: it was deleted, and what must not
# go back is kept for the next of its name. `leases`: how many were given.
# `dropped`: numbers of deleted queues, whose rows go step by step.
PRIORITY = Schema(
    2,
    (
        "CREATE TABLE queue (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,"
        " owner INTEGER NOT NULL, settings_version INTEGER NOT NULL, settings BLOB,"
        " sequence INTEGER NOT NULL, leases INTEGER NOT NULL, layout INTEGER NOT NULL,"
        " now_ms INTEGER NOT NULL, ahead_ms INTEGER NOT NULL,"
        " next_due_ms INTEGER)",
        "CREATE INDEX queue_due ON queue (next_due_ms) WHERE next_due_ms IS NOT NULL",
        "CREATE TABLE message (key INTEGER PRIMARY KEY, id TEXT NOT NULL, payload BLOB,"
        " metadata BLOB, created_ms INTEGER NOT NULL, attempts INTEGER NOT NULL,"
        " lease_ms INTEGER, invisible_ms INTEGER, own_attempts INTEGER, first_priority INTEGER,"
        " priority INTEGER NOT NULL, state INTEGER NOT NULL, version INTEGER NOT NULL,"
        " attempts_left INTEGER NOT NULL, due_ms INTEGER NOT NULL, changed_ms INTEGER NOT NULL,"
        " epoch INTEGER NOT NULL, leased_version INTEGER NOT NULL, worker TEXT NOT NULL,"
        " ended TEXT NOT NULL, reason TEXT NOT NULL, freed BLOB NOT NULL)",
        "CREATE TABLE payload (key INTEGER PRIMARY KEY, payload BLOB NOT NULL)",
        "CREATE TABLE session (queue INTEGER NOT NULL, session TEXT NOT NULL,"
        " acknowledged INTEGER NOT NULL, used_ms INTEGER NOT NULL, PRIMARY KEY (queue, session))"
        " WITHOUT ROWID",
        "CREATE TABLE answer (queue INTEGER NOT NULL, session TEXT NOT NULL,"
        " number INTEGER NOT NULL, what TEXT NOT NULL, answer BLOB NOT NULL,"
        " PRIMARY KEY (queue, session, number)) WITHOUT ROWID",
        "CREATE TABLE event (position INTEGER PRIMARY KEY AUTOINCREMENT, event BLOB NOT NULL)",
        "CREATE TABLE dropped (number INTEGER PRIMARY KEY)",
    ),
    _fill,
    OURS,
)
