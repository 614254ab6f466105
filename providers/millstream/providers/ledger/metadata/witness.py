"""The witness of a row: a second row that says how new the first one must be.

Owns: `Witness`, `witness_key`, `refuse_older`. Pure. Not: reading and writing the two (`rows`).

A row alone cannot show that it is the newest version. If a part of the store was restored from an
older copy, the old row is whole, and its check passes. So a witness holds a generation that the row
has reached. A pinned write stores the row first and the witness second, and reports success only
then; other writes leave the witness unchanged. Before a new row is written, a witness of generation
0 is stored, which demands nothing. A deletion first marks the witness (generation 0), then removes
the row, then the witness.

Invariants: a row is never older than its witness, unless an old copy was restored. While a witness
has a generation above 0, its row exists. The keys of the two have different XXH3-64 parities. So a
store that spreads keys by this hash over an even number of files, such as the SQLite store, never
has both in one file.
"""

from __future__ import annotations

import msgspec
from xxhash import xxh3_64_intdigest

from millstream.runtime import Corrupt
from millstream.runtime.extending import Sealed, show_text

__all__ = ["NO_BIRTH", "Witness", "refuse_older", "witness_key"]

NO_BIRTH = 0
"""The birth in a witness that knows no row yet."""


class Witness(msgspec.Struct, frozen=True, array_like=True):
    """A row has reached `generation`; `birth` tells the row from earlier ones with the same key.

    `is_going`: the row is deleted, though it may still be there.
    """

    key: str
    generation: int
    birth: int
    is_going: bool = False

    def is_met_by(self, row: Sealed | None) -> bool:
        """Whether the row is at least as new as it must be."""
        if self.birth == NO_BIRTH or self.is_going:
            return True
        return row is not None and row.birth == self.birth and row.generation >= self.generation

    def knows(self, new: Witness) -> bool:
        """Whether the witness knows this version, a later one, or another creation of the row."""
        if self.is_going or self.birth == NO_BIRTH:
            return self.is_going
        return self.birth != new.birth or self.generation >= new.generation


def witness_key(scope: str, key: str) -> str:
    """Return the key of a row's witness. The hashes of the two keys differ in the lowest bit.

    Args:
        scope: the beginning of all keys of the row's cluster.
        key: the key of the row, which begins so.
    """
    name, salt = key.removeprefix(scope), 0
    lowest = xxh3_64_intdigest(key.encode()) & 1
    while True:
        found = f"{scope}witness/{salt}/{name}"
        if xxh3_64_intdigest(found.encode()) & 1 != lowest:
            return found
        salt += 1


def refuse_older(witness: Witness, at: str, row: Sealed | None) -> None:
    """Raise Corrupt unless the row is as new as its witness, which is stored under the key `at`."""
    if witness.is_met_by(row):
        return
    known = f"its witness, row {show_text(at)}, knows generation {witness.generation}"
    if row is None:
        text = f"row {show_text(witness.key)} is missing: {known}"
    elif row.birth != witness.birth:
        text = f"row {show_text(witness.key)} is of an earlier creation, but {known} of a later one"
    else:
        text = f"row {show_text(witness.key)} has generation {row.generation}, but {known}"
    raise Corrupt(
        f"{text}: the file that holds the row is an older copy; stop all processes that use the "
        "store, and restore the whole store from its newest backup"
    )
