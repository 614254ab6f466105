"""The identity file of a directory, and the list of its segments.

Owns: `Identity` and its encoding. Invariants: `boot` rises with every start. `segments` lists every
file that may have acknowledged entries, before the first of them is acknowledged. `sequence` was
durable when the file was written.
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
    """The identity of a directory.

    `directory`: 32 hex digits, by which ensembles name the bookie. `cluster`: the cluster that it
    belongs to. `segments`: pairs of first and last. The journal continues in the last segment.
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
    """Return the identity from the bytes of its file. Raises NotWhole, Newer."""
    return msgspec.json.decode(unwrap(MAGIC, data), type=Identity)
