"""The file that says whose a directory is, and what must be in it.

Owns: `Identity`, its encoding. Invariants: `boot` rises with every start; `segments` names every
file that may have acknowledged entries, before the first of them is acknowledged; `sequence` is one
that was durable when this was written.
"""

from __future__ import annotations

import msgspec

from .envelope import unwrap, wrap
from .intervals import Intervals

__all__ = ["IDENTITY", "IDENTITY_BYTES_MAX", "Identity", "identity_bytes", "identity_in"]

IDENTITY = "identity"
IDENTITY_BYTES_MAX = 1 << 20
MAGIC = b"MSbookie"


class Identity(msgspec.Struct, frozen=True):
    """A directory.

    `directory`: 32 hex digits, by which ensembles name the bookie; `cluster`: whose it is;
    `segments`: from … to, of which one ends where journal goes on.
    """

    directory: str
    cluster: str
    boot: int = 0
    sequence: int = 0
    segments: tuple[tuple[int, int], ...] = ()

    @property
    def last_segment(self) -> int:
        return self.segments[-1][1] if self.segments else 0

    def with_segment(self, number: int) -> Identity:
        found = Intervals(self.segments)
        found.add(number)
        return msgspec.structs.replace(self, segments=tuple(found))

    def without_segment(self, number: int) -> Identity:
        found = Intervals(self.segments)
        found.remove(number)
        return msgspec.structs.replace(self, segments=tuple(found))


def identity_bytes(identity: Identity) -> bytes:
    return wrap(MAGIC, msgspec.json.encode(identity) + b"\n")


def identity_in(data: bytes) -> Identity:
    """Raises NotWhole, Newer."""
    return msgspec.json.decode(unwrap(MAGIC, data), type=Identity)
