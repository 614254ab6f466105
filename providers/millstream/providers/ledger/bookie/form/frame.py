"""One frame of a journal: the bytes of one group commit.

Owns: `JournalRecord`, `Frame`, `Front`, encoding and decoding. Invariants: a frame begins and ends
at a multiple of 512 bytes, so a torn frame never damages a sector of its predecessor. A frame
contains the check of the frame before it. Its own check covers head and table. It begins with a
seed that only its segment has, so a copy of a frame, in a payload or elsewhere, is never accepted
as a frame. Bodies carry checks of their own.

    0  magic u32 | version u16 | reserved u16 | length u32, with padding | records u32 |
       sequence u64 | check of the frame before u64
    32 check u64: XXH3-64, with the segment's seed, of the 32 bytes before it and the table
    40 table, 24 bytes each: kind u8 | reserved, 3 bytes | body's size u32 | ledger u64 | entry i64
       bodies in the table's order, then zeros
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64

__all__ = [
    "FRONT_BYTES",
    "MAGIC",
    "SECTOR_BYTES",
    "Frame",
    "Front",
    "JournalRecord",
    "RecordKind",
    "Row",
    "frame_of",
    "front_of",
    "length_of",
]

SECTOR_BYTES = 512
MAGIC = b"MSfr"
VERSION = 1

HEAD = Struct("<4sHHIIQQ")
CHECK = Struct("<Q")
ROW = Struct("<BxxxIQq")
FRONT_BYTES = HEAD.size + CHECK.size
JOINED_MAX_BYTES = 32_768
"""A frame up to this size is written as one piece, since a copy is cheaper than many pieces."""


class RecordKind(IntEnum):
    """The kind of a record. The body of an entry is the packed entry. A fence has its term in
    `entry`. A tombstone (FORGET) covers the ledgers from `ledger` to `entry`. The body of a state
    is a `DirectoryState`. After LEAVE, entries of a ledger that were here may be missing."""

    ENTRY = 1
    FENCE = 2
    FORGET = 3
    STATE = 4
    LEAVE = 5


KINDS = frozenset(RecordKind)


class JournalRecord(NamedTuple):
    """A record to be written."""

    kind: int
    ledger: int
    entry: int
    body: bytes = b""


class Row(NamedTuple):
    """A record that was written, with the size of its body and its place in the frame."""

    kind: int
    ledger: int
    entry: int
    start: int
    size: int


class Frame(NamedTuple):
    """A frame to be written: its pieces, its check, its length, and where each body begins."""

    parts: Sequence[bytes]
    check: int
    length: int
    starts: Sequence[int]


class Front(NamedTuple):
    """Head and table of a frame that was read and has passed its check."""

    sequence: int
    previous: int
    check: int
    length: int
    rows: tuple[Row, ...]


def length_of(count: int, body_bytes: int) -> int:
    """Return the length of a frame with so many records."""
    return -(-(FRONT_BYTES + ROW.size * count + body_bytes) // SECTOR_BYTES) * SECTOR_BYTES


def frame_of(seed: int, sequence: int, previous: int, records: Sequence[JournalRecord]) -> Frame:
    """Make a frame. Large bodies are not copied."""
    at = FRONT_BYTES + ROW.size * len(records)
    starts, table = [], []
    for kind, ledger, entry, body in records:
        table.append(ROW.pack(kind, len(body), ledger, entry))
        starts.append(at)
        at += len(body)
    length = -(-at // SECTOR_BYTES) * SECTOR_BYTES
    head = HEAD.pack(MAGIC, VERSION, 0, length, len(records), sequence, previous)
    rows = b"".join(table)
    check = front_check(seed, head, rows)
    bodies = [record.body for record in records if record.body]
    parts = [head, CHECK.pack(check), rows, *bodies, bytes(length - at)]
    if length <= JOINED_MAX_BYTES:
        parts = [b"".join(parts)]
    return Frame(parts, check, length, starts)


def front_bytes_of(data: bytes | memoryview, at: int = 0) -> int:
    """Return the size of head and table of the frame at an offset, or 0 if there is no frame."""
    if len(data) - at < FRONT_BYTES:
        return 0
    magic, version, _, length, count, _, _ = HEAD.unpack_from(data, at)
    front: int = FRONT_BYTES + ROW.size * count
    if magic != MAGIC or version != VERSION or length % SECTOR_BYTES or front > length:
        return 0
    return front


def front_of(seed: int, front: bytes | memoryview) -> Front | None:
    """Decode exactly the bytes of a head and a table; None if they fail their check."""
    view = memoryview(front)
    _, _, _, length, _, sequence, previous = HEAD.unpack_from(view)
    (check,) = CHECK.unpack_from(view, HEAD.size)
    if check != front_check(seed, view[: HEAD.size], view[FRONT_BYTES:]):
        return None
    rows, start = [], len(view)
    for kind, size, ledger, entry in ROW.iter_unpack(view[FRONT_BYTES:]):
        rows.append(Row(kind, ledger, entry, start, size))
        start += size
    assert length_of(len(rows), start - len(view)) == length, (length, start)
    assert all(row.kind in KINDS for row in rows), rows
    return Front(sequence, previous, check, length, tuple(rows))


def front_check(seed: int, head: bytes | memoryview, table: bytes | memoryview) -> int:
    seal = xxh3_64(head, seed=seed)
    seal.update(table)
    check: int = seal.intdigest()
    return check
