"""Rows of PostgreSQL as values of Millstream, and the reverse.

This module owns the encoding of keys, etags, members and reminders. It has no I/O.

Invariant: the order of keys as bytes is the order of their texts in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.runtime import Etag, MemberRow, ReminderRow, StorageError, TableView

__all__ = [
    "KEY_BYTES_MAX",
    "check_key",
    "encode_member",
    "etag_number",
    "key_range",
    "reminder_of",
    "view_of",
]

KEY_BYTES_MAX = 2_500
"""The most bytes of a key. An entry of an index of PostgreSQL has at most 2,704."""
ETAG_DIGITS_MAX = 18

encode_member = msgspec.msgpack.Encoder().encode
"""Returns the stored form of a `MemberRow`."""
_decode_member = msgspec.msgpack.Decoder(MemberRow).decode


def check_key(what: str, *texts: str) -> tuple[bytes, ...]:
    """Return the parts of a key as bytes.

    Raises StorageError if they have more than KEY_BYTES_MAX bytes together.
    """
    parts = tuple(text.encode() for text in texts)
    size = sum(map(len, parts))
    if size > KEY_BYTES_MAX:
        raise StorageError(
            f"{what} has {size} bytes, and PostgreSQL indexes {KEY_BYTES_MAX}: use a shorter key"
        )
    return parts


def etag_number(etag: Etag) -> int:
    """Return the stored form of an etag; -1, which is never stored, for other text."""
    is_number = etag.isdecimal() and len(etag) <= ETAG_DIGITS_MAX
    number = int(etag) if is_number else -1
    return number if str(number) == etag else -1


def key_range(prefix: str, after: str) -> tuple[bytes, bytes, bytes | None]:
    """Return the bounds of a scan: keys from the first on, above the second, below the third.

    No byte of UTF-8 is 255, so a prefix with its last byte raised by one is above all its keys.
    The third bound is None for the empty prefix.
    """
    low = prefix.encode()
    high = low[:-1] + bytes([low[-1] + 1]) if low else None
    return low, after.encode(), high


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
