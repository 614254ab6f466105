"""Rows of PostgreSQL as values of Millstream, and the reverse.

This module owns the encoding of members and reminders, and has no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.runtime import MemberRow, ReminderRow, TableView

__all__ = [
    "encode_member",
    "reminder_of",
    "view_of",
]

encode_member = msgspec.msgpack.Encoder().encode
"""Returns the stored form of a `MemberRow`."""
_decode_member = msgspec.msgpack.Decoder(MemberRow).decode


def view_of(rows: Sequence[tuple[int, bytes | None, float | None]]) -> TableView:
    """Return the view of rows of version, member and heartbeat. A table without members has one
    row, in which the others are None.
    """
    members = tuple(
        msgspec.structs.replace(_decode_member(row), alive_s=alive_s)
        for _, row, alive_s in rows
        if row is not None
    )
    return TableView(rows[0][0], members)


def reminder_of(columns: Sequence[Any]) -> ReminderRow:
    """Return the reminder of a row."""
    grain, name, bucket, due_ms, data, etag = columns
    return ReminderRow(grain.decode(), name.decode(), bucket, due_ms, bytes(data), str(etag))
