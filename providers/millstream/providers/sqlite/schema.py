"""The schemas of the SQLite files, and the names of the files in a directory."""

from __future__ import annotations

import sqlite3

from millstream.runtime import Env
from millstream.runtime.database import Schema

__all__ = ["MEMBERSHIP", "OPERATOR", "OURS", "SECRET", "STATE"]

SECRET = "millstream.secret"
OPERATOR = "millstream.operator"
OURS = (SECRET, OPERATOR, "membership.db", "state-")


def _fill_state(connection: sqlite3.Connection, env: Env) -> None:
    connection.execute("INSERT INTO floor VALUES (0, 0)")


def _fill_membership(connection: sqlite3.Connection, env: Env) -> None:
    # Milliseconds, so that a new table is ahead of the fences of an earlier cluster.
    connection.execute("INSERT INTO version VALUES (0, ?)", (int(env.wall_s() * 1000),))


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
