"""Walking over the frames of one segment, whether they are damaged or not.

Owns: `Walk`, `Walked`, `bytes_at`. Not: the meaning of a missing frame. Only a caller that knows
the following segments can tell a torn end from damage. Invariants: a frame is yielded only if its
check passes and its sequence is above that of the frame before. Sectors that cannot be read count
as damaged, and the search continues after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.providers.ledger.protocol.entry import HEAD_BYTES, head_of, is_whole
from millstream.providers.ledger.protocol.errors import EntryDamaged
from millstream.runtime.extending import DiskFile

from .frame import (
    FRONT_BYTES,
    MAGIC,
    SECTOR_BYTES,
    Front,
    RecordKind,
    Row,
    front_bytes_of,
    front_of,
)
from .segment import FRAMES_START
from .state import is_state

__all__ = ["Walk", "Walked", "bytes_at", "is_entry"]

WINDOW_BYTES = 1 << 20


class Walked(NamedTuple):
    """A frame that was found. `lost_before`: frames between the previous frame and it are missing.

    `bad`: the indexes of records with damaged bodies; `bodies` has all of them.
    """

    offset: int
    front: Front
    lost_before: bool
    bodies: tuple[bytes, ...]
    bad: tuple[int, ...]


class Walk:
    """Iterates over the whole frames of a segment, in order, and passes over damaged parts.

    `end`: the end of the last frame that was yielded. `has_unreadable`: a sector in the bodies of
    this frame, or after the frame, cannot be read, so it is unknown whether that sector was ever
    written.
    """

    __slots__ = ("_chain", "_file", "_seed", "_size_bytes", "end", "has_unreadable")

    def __init__(self, file: DiskFile, seed: int) -> None:
        self._file = file
        self._seed = seed
        self._size_bytes = file.size_bytes
        self._chain: tuple[int, int] | None = None
        self.end = FRAMES_START
        self.has_unreadable = False

    def __iter__(self) -> Iterator[Walked]:
        while (found := self._next()) is not None:
            offset, front = found
            follows = self._chain is None or self._chain == (front.sequence - 1, front.previous)
            lost = offset != self.end or not follows
            self.has_unreadable = False
            self._chain = (front.sequence, front.check)
            self.end = offset + front.length
            yield self._make_walked(offset, front, lost)

    def _next(self) -> tuple[int, Front] | None:
        """Return the frame at the end, or the first one after it."""
        front = self._front_at(self.end)
        if front is not None:
            return self.end, front
        for offset in self._candidates(self.end):
            front = self._front_at(offset)
            if front is not None:
                return offset, front
        return None

    def _front_at(self, offset: int) -> Front | None:
        size = front_bytes_of(self._read(offset, FRONT_BYTES))
        if not size or offset + size > self._size_bytes:
            return None
        front = front_of(self._seed, self._read(offset, size))
        is_later = self._chain is None or (front is not None and front.sequence > self._chain[0])
        return front if is_later else None

    def _candidates(self, start: int) -> Iterator[int]:
        """Yield sectors that begin like a frame."""
        for at in range(start, self._size_bytes, WINDOW_BYTES):
            data = self._read(at, WINDOW_BYTES)
            found = data.find(MAGIC)
            while found >= 0:
                if found % SECTOR_BYTES == 0:
                    yield at + found
                found = data.find(MAGIC, found + 1)

    def _make_walked(self, offset: int, front: Front, lost: bool) -> Walked:
        data = memoryview(self._read(offset, front.length))
        bodies = tuple(bytes(data[row.start : row.start + row.size]) for row in front.rows)
        bad = [at for at, row in enumerate(front.rows) if not is_right(row, bodies[at])]
        return Walked(offset, front, lost, bodies, tuple(bad))

    def _read(self, offset: int, size: int) -> bytes:
        data, is_whole = bytes_at(self._file, offset, size)
        self.has_unreadable = self.has_unreadable or not is_whole
        return data


def bytes_at(file: DiskFile, offset: int, size: int) -> tuple[bytes, bool]:
    """Return the bytes, with zeros for unreadable sectors, and whether all were readable."""
    try:
        return file.read_at(offset, size), True
    except OSError:
        if size <= SECTOR_BYTES:
            return bytes(size), False
    first = SECTOR_BYTES - offset % SECTOR_BYTES
    starts = [offset, *range(offset + first, offset + size, SECTOR_BYTES)]
    stops = [*starts[1:], offset + size]
    parts = [
        bytes_at(file, start, stop - start)[0] for start, stop in zip(starts, stops, strict=True)
    ]
    return b"".join(parts), False


def is_right(row: Row, body: bytes) -> bool:
    """Whether a body fits its record."""
    if row.kind == RecordKind.ENTRY:
        return is_entry(row.ledger, row.entry, body)
    if row.kind == RecordKind.STATE:
        return is_state(body)
    return len(body) == row.size


def is_entry(ledger: int, entry: int, body: bytes) -> bool:
    """Whether the bytes are this entry, whole."""
    if len(body) < HEAD_BYTES:
        return False
    try:
        head = head_of(body)
    except EntryDamaged:
        return False
    return (head.ledger, head.entry) == (ledger, entry) and is_whole(body)
