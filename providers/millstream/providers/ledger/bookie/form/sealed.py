"""The index file of a segment that is not written any more.

Owns: `Sealed`, its encoding. Invariants: it has the places of all entries of its segment, also of
damaged ones, and the complete state at its end; so a segment with such a file is not read at start.
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
"""A larger index file is taken for damaged."""


class LedgerPlaces(msgspec.Struct, frozen=True, array_like=True):
    """A ledger in one segment; `size_bytes` and `confirmed` as in the index, `runs`: first entry,
    and 8 bytes per place."""

    ledger: int
    size_bytes: int
    confirmed: int
    runs: list[tuple[int, bytes]]

    def places(self) -> Iterator[tuple[int, array[int]]]:
        for base, data in self.runs:
            yield base, places_in(data)


class Sealed(msgspec.Struct, frozen=True, array_like=True):
    """What is in a segment: first and last frame (`last` -1: none), where the last ends, whether
    frames or entries were lost in it, and `state`."""

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
        """Raises NotWhole, Newer."""
        return state_in(self.state)


def ledger_places(ledger: int, size_bytes: int, confirmed: int, runs: Runs) -> LedgerPlaces:
    stored = [(base, places_bytes(places)) for base, places in runs]
    return LedgerPlaces(ledger, size_bytes, confirmed, stored)


def pack_sealed(sealed: Sealed) -> bytes:
    """An index file's content."""
    return wrap(MAGIC, msgspec.msgpack.encode(sealed))


def unpack_sealed(data: bytes, directory: str, segment: int) -> Sealed:
    """Raises NotWhole, also for that of another directory or segment; Newer."""
    found = msgspec.msgpack.decode(unwrap(MAGIC, data), type=Sealed)
    if (found.directory, found.segment) != (directory, segment):
        raise NotWhole(f"it is that of segment {found.segment} of directory {found.directory}")
    found.state_of()
    return found
