"""The schemas of the SQLite files, and the names of the files in a directory."""

from __future__ import annotations

import sqlite3

from millstream.runtime import Env
from millstream.runtime.database import Schema

__all__ = ["MEMBERSHIP", "OPERATOR", "OURS", "REMINDERS", "SECRET", "STATE"]

SECRET = "millstream.secret"
OPERATOR = "millstream.operator"
OURS = (SECRET, OPERATOR, "membership.db", "reminders.db", "state-")


def _fill_state(connection: sqlite3.Connection, env: Env) -> None:
    connection.execute("INSERT INTO floor VALUES (0, 0)")


def _fill_membership(connection: sqlite3.Connection, env: Env) -> None:
    # Milliseconds, so that a new table is ahead of the fences of an earlier cluster.
    connection.execute("INSERT INTO version VALUES (0, ?)", (int(env.wall_s() * 1000),))


def _fill_reminders(connection: sqlite3.Connection, env: Env) -> None:
    connection.execute("INSERT INTO counter VALUES (0, 0)")


# `floor` is the highest etag of a cleared row, so that a new row of the key never reuses an etag.
STATE = Schema(
    2,
    (
        "CREATE TABLE rows (key TEXT PRIMARY KEY, etag INTEGER NOT NULL, fence INTEGER NOT NULL,"
        " data BLOB NOT NULL) WITHOUT ROWID",
        "CREATE TABLE floor (one INTEGER PRIMARY KEY CHECK (one = 0), etag INTEGER NOT NULL)",
    ),
    _fill_state,
    OURS,
)
# `alive_s` is a separate column, because a heartbeat must not write back an old status or vote.
MEMBERSHIP = Schema(
    2,
    (
        "CREATE TABLE version (one INTEGER PRIMARY KEY CHECK (one = 0), version INTEGER NOT NULL)",
        "CREATE TABLE members (silo TEXT PRIMARY KEY, row BLOB NOT NULL, alive_s REAL NOT NULL)",
    ),
    _fill_membership,
    OURS,
)
# `counter` gives the etags, so a new row of a key never reuses one.
REMINDERS = Schema(
    1,
    (
        "CREATE TABLE counter (one INTEGER PRIMARY KEY CHECK (one = 0), etag INTEGER NOT NULL)",
        "CREATE TABLE reminders (grain TEXT NOT NULL, name TEXT NOT NULL, bucket INTEGER NOT NULL,"
        " due_ms INTEGER, data BLOB NOT NULL, etag INTEGER NOT NULL, PRIMARY KEY (grain, name))"
        " WITHOUT ROWID",
        "CREATE INDEX due ON reminders (due_ms, grain, name, bucket) WHERE due_ms IS NOT NULL",
    ),
    _fill_reminders,
    OURS,
)
