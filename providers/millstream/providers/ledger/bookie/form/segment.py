"""Files of the journal: their names, their first sector, and places in them.

Owns: names and heads of segments, and `place_of`. Invariants: a segment names its directory and its
number. Its frames begin in its second sector, and can be checked even if the first one is damaged.
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
    """The directory and the number of a segment."""

    directory: str
    segment: int


def segment_name(number: int) -> str:
    return f"{number:0{DIGITS}d}.seg"


def index_name(number: int) -> str:
    return f"{number:0{DIGITS}d}.idx"


def number_in(name: str, suffix: str = ".seg") -> int | None:
    """Return the number of the segment that a file of this name belongs to. None: the name is not
    that of a segment's file."""
    digits = name.removesuffix(suffix)
    is_one = name.endswith(suffix) and len(digits) == DIGITS and digits.isdecimal()
    return int(digits) if is_one and digits.isascii() else None


def head_bytes(directory: str, number: int) -> bytes:
    """Return the first sector of a segment."""
    data = wrap(MAGIC, msgspec.json.encode(SegmentHead(directory, number)))
    assert len(data) <= SECTOR_BYTES, len(data)
    return data.ljust(SECTOR_BYTES, b"\0")


def head_in(sector: bytes) -> SegmentHead:
    """Return the content of the first sector. Raises NotWhole, Newer."""
    return msgspec.json.decode(unwrap(MAGIC, sector), type=SegmentHead)


def seed_of(directory: str, number: int) -> int:
    """Return the seed of the checks of a segment's frames."""
    return xxh3_64_intdigest(f"{directory}/{number}".encode())


def place_of(segment: int, offset: int) -> int:
    """Return segment and offset in 64 bits; 0 is not a place."""
    assert 0 < segment < 1 << 32 and 0 < offset < 1 << OFFSET_BITS, (segment, offset)
    return segment << OFFSET_BITS | offset


def segment_of(place: int) -> int:
    return place >> OFFSET_BITS


def offset_of(place: int) -> int:
    return place & ((1 << OFFSET_BITS) - 1)
