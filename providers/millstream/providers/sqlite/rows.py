"""The statements of the state files: each function is one operation on a connection.

Owns: what `schema.STATE` tables mean. Invariants: a write is one statement that also checks etag
and fence, or checks before it changes; so a refusal changes nothing.
"""

from __future__ import annotations

import sqlite3
from itertools import takewhile

from millstream.runtime import Etag, Row
from millstream.runtime.extending import refuse_stale

__all__ = ["delete", "find", "find_range", "insert", "update"]


def _number(etag: Etag) -> int:
    """The stored form of an etag; -1, which is never stored, for text that is none of ours."""
    number = int(etag) if etag.isdecimal() and len(etag) < 19 else -1
    return number if str(number) == etag else -1


def find(connection: sqlite3.Connection, key: str) -> Row | None:
    """The row of a key."""
    found = connection.execute(
        "SELECT data, etag, fence FROM rows WHERE key = ?", (key,)
    ).fetchone()
    return None if found is None else Row(found[0], str(found[1]), found[2])


def find_range(
    connection: sqlite3.Connection, prefix: str, after: str, limit: int
) -> list[tuple[str, Row]]:
    """Rows of a prefix after a key, in key order. Keys of one prefix lie side by side."""
    found = connection.execute(
        "SELECT key, data, etag, fence FROM rows WHERE key >= ? AND key > ? ORDER BY key LIMIT ?",
        (prefix, after, max(limit, 0)),
    )
    inside = takewhile(lambda columns: columns[0].startswith(prefix), found.fetchall())
    return [(key, Row(data, str(etag), fence)) for key, data, etag, fence in inside]


def insert(key: str, data: bytes, fence: int, connection: sqlite3.Connection) -> Etag:
    """Store a row that must not exist. Raises Conflict."""
    made = connection.execute(
        "INSERT INTO rows SELECT ?, etag + 1, ?, ? FROM floor WHERE true"
        " ON CONFLICT DO NOTHING RETURNING etag",
        (key, fence, data),
    ).fetchone()
    if made is None:
        refuse_stale(key, find(connection, key), None, fence)
        raise AssertionError(f"{key}: not inserted, yet absent")
    return str(made[0])


def update(key: str, data: bytes, expect: Etag, fence: int, connection: sqlite3.Connection) -> Etag:
    """Replace a row of the expected etag and no higher fence. Raises Conflict."""
    number = _number(expect)
    cursor = connection.execute(
        "UPDATE rows SET data = ?, etag = etag + 1, fence = ?"
        " WHERE key = ? AND etag = ? AND fence <= ?",
        (data, fence, key, number, fence),
    )
    if cursor.rowcount != 1:
        refuse_stale(key, find(connection, key), expect, fence)
        raise AssertionError(f"{key}: not updated, yet as expected")
    return str(number + 1)


def delete(key: str, expect: Etag, fence: int, connection: sqlite3.Connection) -> None:
    """Delete a row of the expected etag and no higher fence. Raises Conflict."""
    refuse_stale(key, find(connection, key), expect, fence)
    connection.execute("UPDATE floor SET etag = max(etag, ?)", (_number(expect),))
    connection.execute("DELETE FROM rows WHERE key = ?", (key,))
