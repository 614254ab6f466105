"""The tables of the embedded store's files, and the form of their columns.

A message's key is one whole number, made of its queue's number and its sequence. So the messages of
a queue are adjacent, and no other index is needed.

Payloads above `INLINE_BYTES_MAX` have a table of their own and are written once, while the row of a
message is written with each change.

Invariant: a number is never given twice in a file, even if its queue was deleted.
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
"""Payload bytes in the row of a message.

A row above about 4,096 bytes needs another page of the file.
"""
KEY_SEQUENCE_BITS = 40
SEQUENCE_MAX = (1 << KEY_SEQUENCE_BITS) - 1
"""Messages that one queue can ever have."""
NUMBER_MAX = (1 << 63 - KEY_SEQUENCE_BITS) - 1
"""Queues that one file can ever have."""


def file_index(queue: str) -> int:
    """The file of a queue. Frozen, because stored data depends on it."""
    return xxhash.xxh3_64_intdigest(queue.encode()) % FILES


def message_key(number: int, sequence: int) -> int:
    """The key of a message, from its queue's number."""
    return (number << KEY_SEQUENCE_BITS) | sequence


def key_range(number: int) -> tuple[int, int]:
    """The smallest and the largest key of a queue's messages."""
    return message_key(number, 0), message_key(number, SEQUENCE_MAX)


def _fill(connection: sqlite3.Connection, env: Env) -> None:
    """Do nothing: a new file is empty."""


# `queue.owner` is the epoch of the owner. `queue.settings` is NULL for a deleted queue, whose
# counters are kept for the next queue of the name. `queue.leases` is the number of leases given.
# `dropped` has the numbers of deleted queues, whose rows are deleted step by step.
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
