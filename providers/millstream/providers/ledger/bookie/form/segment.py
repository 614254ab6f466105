"""Files of the journal: their names, their first sector, where in them something is.

Owns: names and heads of segments, and `place_of`. Invariants: a segment says whose it is and which;
its frames begin in its second sector, and can be checked also when its first is damaged.
"""

from __future__ import annotations

import msgspec
from xxhash import xxh3_64_intdigest

from .envelope import unwrap, wrap
from .frame import SECTOR_BYTES

__all__ = [
    "FRAMES_START",
    "SegmentHead",
    "head_bytes",
    "head_in",
    "index_name",
    "number_in",
    "offset_of",
    "place_of",
    "seed_of",
    "segment_name",
    "segment_of",
]

MAGIC = b"MSsegmnt"
FRAMES_START = SECTOR_BYTES
OFFSET_BITS = 32
DIGITS = 16


class SegmentHead(msgspec.Struct, frozen=True):
    """Whose a segment is, and which."""

    directory: str
    segment: int


def segment_name(number: int) -> str:
    return f"{number:0{DIGITS}d}.seg"


def index_name(number: int) -> str:
    return f"{number:0{DIGITS}d}.idx"


def number_in(name: str, suffix: str = ".seg") -> int | None:
    """The number of the segment that a file of this name belongs to."""
    digits = name.removesuffix(suffix)
    is_one = name.endswith(suffix) and len(digits) == DIGITS and digits.isdecimal()
    return int(digits) if is_one and digits.isascii() else None


def head_bytes(directory: str, number: int) -> bytes:
    """The first sector of a segment."""
    data = wrap(MAGIC, msgspec.json.encode(SegmentHead(directory, number)))
    assert len(data) <= SECTOR_BYTES, len(data)
    return data.ljust(SECTOR_BYTES, b"\0")


def head_in(sector: bytes) -> SegmentHead:
    """What the first sector says. Raises NotWhole, Newer."""
    return msgspec.json.decode(unwrap(MAGIC, sector), type=SegmentHead)


def seed_of(directory: str, number: int) -> int:
    """What the checks of a segment's frames begin with."""
    return xxh3_64_intdigest(f"{directory}/{number}".encode())


def place_of(segment: int, offset: int) -> int:
    """Segment and offset in 64 bits; 0 is no place."""
    assert 0 < segment < 1 << 32 and 0 < offset < 1 << OFFSET_BITS, (segment, offset)
    return segment << OFFSET_BITS | offset


def segment_of(place: int) -> int:
    return place >> OFFSET_BITS


def offset_of(place: int) -> int:
    return place & ((1 << OFFSET_BITS) - 1)
