"""The index file of a segment that is no longer written.

Owns: `Sealed` and its encoding. Invariant: the file has the places of all entries of its segment,
including damaged ones, and the complete state at its end. So a segment with such a file is not read
at a start.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import msgspec

from .envelope import NotWhole, unwrap, wrap
from .runs import Runs, places_bytes, places_in
from .state import DirectoryState, state_in

__all__ = [
    "INDEX_BYTES_MAX",
    "LedgerPlaces",
    "Sealed",
    "ledger_places",
    "pack_sealed",
    "unpack_sealed",
]

MAGIC = b"MSsegidx"
INDEX_BYTES_MAX = 1 << 30
"""A larger index file counts as damaged."""


class LedgerPlaces(msgspec.Struct, frozen=True, array_like=True):
    """A ledger in one segment. `size_bytes` and `confirmed` are as in the index. `runs`: the first
    entry, and 8 bytes for each place."""

    ledger: int
    size_bytes: int
    confirmed: int
    runs: list[tuple[int, bytes]]

    def places(self) -> Iterator[tuple[int, array[int]]]:
        for base, data in self.runs:
            yield base, places_in(data)


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """The content of a segment: its first and last frame (`last` -1: none), the end of the last
    one, the number of damaged entries, and `state`."""

    directory: str
    segment: int
    first: int
    previous: int
    last: int
    check: int
    end: int
    ledgers: list[LedgerPlaces]
    state: bytes
    damaged: int = 0

    def state_of(self) -> DirectoryState:
        """Return the state. Raises NotWhole, Newer."""
        return state_in(self.state)


def ledger_places(ledger: int, size_bytes: int, confirmed: int, runs: Runs) -> LedgerPlaces:
    stored = [(base, places_bytes(places)) for base, places in runs]
    return LedgerPlaces(ledger, size_bytes, confirmed, stored)


def pack_sealed(sealed: Sealed) -> bytes:
    """Return the content of an index file."""
    return wrap(MAGIC, msgspec.msgpack.encode(sealed))


def unpack_sealed(data: bytes, directory: str, segment: int) -> Sealed:
    """Read an index file. Raises NotWhole, also for another directory or segment; Newer."""
    found = msgspec.msgpack.decode(unwrap(MAGIC, data), type=Sealed)
    if (found.directory, found.segment) != (directory, segment):
        raise NotWhole(f"the index is of segment {found.segment} of directory {found.directory}")
    found.state_of()
    return found
