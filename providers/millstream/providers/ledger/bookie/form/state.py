"""The state of a bookie apart from its entries: fences, tombstones, ledgers that others have, and
doubt.

Owns: `DirectoryState`. Invariants: fences only rise. A tombstone stays for ever, and replaces the
fence. The bound of doubt never falls. The state is small, so every segment begins with all of it,
and its index ends with all of it. No segment is needed to understand another.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .envelope import Newer, NotWhole, unwrap, wrap
from .frame import RecordKind, Row
from .intervals import Intervals

__all__ = [
    "DOUBT_ALL",
    "FENCES_MAX",
    "TERM_MAX",
    "DirectoryState",
    "is_state",
    "state_bytes",
    "state_in",
]

MAGIC = b"MSbkstat"
FENCES_MAX = 1 << 20
"""The largest number of existing ledgers with fences in one bookie."""
TERM_MAX = (1 << 63) - 1
"""The term of a deleted ledger. No term is higher."""
DOUBT_ALL = (1 << 63) - 1


class StateParts(msgspec.Struct, frozen=True, array_like=True):
    """A state in its stored form."""

    doubt_below: int
    ledgers: list[int]
    terms: list[int]
    forgotten: list[tuple[int, int]]
    left: list[int] = []


class DirectoryState:
    """Fences {ledger: term}, deleted ledgers, ledgers whose entries were dropped because others
    have them, and the ledger below which no missing entry may be denied."""

    __slots__ = ("doubt_below", "fences", "forgotten", "left")

    def __init__(self) -> None:
        self.doubt_below = 0
        self.fences: dict[int, int] = {}
        self.forgotten = Intervals()
        self.left: set[int] = set()

    def term_of(self, ledger: int) -> int:
        """Return the fence of a ledger, or 0 if it has none. Adds below the fence are refused."""
        if ledger in self.forgotten:
            return TERM_MAX
        return self.fences.get(ledger, 0)

    def fence(self, ledger: int, term: int) -> None:
        if term > self.term_of(ledger):
            self.fences[ledger] = term

    def forget(self, first: int, last: int) -> None:
        """Record that the ledgers from `first` to `last` were deleted."""
        self.forgotten.add(first, last)
        for ledger in list_fenced(self.fences, first, last):
            del self.fences[ledger]
        self.left -= {ledger for ledger in self.left if first <= ledger <= last}

    def denies(self, ledger: int) -> bool:
        """Whether a missing entry of a ledger was certainly never here."""
        is_whole = ledger not in self.left and ledger not in self.forgotten
        return is_whole and ledger >= self.doubt_below

    def doubt(self, below: int) -> None:
        self.doubt_below = max(self.doubt_below, below)

    def apply(self, row: Row) -> None:
        """Apply a record, in the order of the journal. The loader handles records of a whole
        state."""
        if row.kind == RecordKind.FENCE:
            self.fence(row.ledger, row.entry)
        elif row.kind == RecordKind.FORGET:
            self.forget(row.ledger, row.entry)
        elif row.kind == RecordKind.LEAVE:
            self.left.add(row.ledger)


def list_fenced(fences: dict[int, int], first: int, last: int) -> Iterable[int]:
    if last - first < len(fences):
        return [ledger for ledger in range(first, last + 1) if ledger in fences]
    return [ledger for ledger in fences if first <= ledger <= last]


def state_bytes(state: DirectoryState) -> bytes:
    """Return a state in its envelope."""
    fences = state.fences
    parts = StateParts(
        state.doubt_below,
        list(fences),
        list(fences.values()),
        list(state.forgotten),
        sorted(state.left),
    )
    return wrap(MAGIC, msgspec.msgpack.encode(parts))


def state_in(data: bytes) -> DirectoryState:
    """Read a state. Raises NotWhole, Newer."""
    parts = msgspec.msgpack.decode(unwrap(MAGIC, data), type=StateParts)
    if len(parts.ledgers) != len(parts.terms):
        raise NotWhole(f"{len(parts.ledgers)} ledgers, but {len(parts.terms)} terms")
    state = DirectoryState()
    state.doubt_below = parts.doubt_below
    state.fences = dict(zip(parts.ledgers, parts.terms, strict=True))
    state.forgotten = Intervals(parts.forgotten)
    state.left = set(parts.left)
    return state


def is_state(data: bytes) -> bool:
    """Whether the state can be read."""
    try:
        state_in(data)
    except (NotWhole, Newer):
        return False
    return True
