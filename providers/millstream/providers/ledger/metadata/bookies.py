"""The rows of bookies: what each last said of itself.

Owns: `BookieRecord`, `bookie_rows`, `instance_of`. Not: who is alive (the members of the cluster
say that), and when a bookie writes its row. Invariant: `boot` and `high_water` of one directory
never go back; a directory that has less was restored from an older copy.
"""

from __future__ import annotations

import msgspec

from .metadata import Metadata, key_part
from .rows import RecordRows

__all__ = ["BookieRecord", "bookie_rows", "instance_of"]


class BookieRecord(msgspec.Struct, frozen=True, array_like=True):
    """One bookie, which is one directory.

    `bookie`: the UUID of its directory. `silo`: address of the silo that runs it; "" while none
    does. `boot`: so many times it was started. `high_water`: the sequence of its journal up to
    which it surely has everything. `said_s`: wall time of its last word, in seconds since 1970.
    `place`: bookies of one place take new ledgers together: the directory's path, if silos share
    it; the template of the paths, if each has its own. `owner`: the name of the silo whose
    directory it is; "": of whichever has its lock. `is_draining`: a person wants it emptied: it
    takes no new ledgers, and what it has is copied elsewhere.
    """

    bookie: str
    silo: str = ""
    boot: int = 0
    is_writable: bool = False
    free_bytes: int = 0
    high_water: int = 0
    said_s: float = 0.0
    place: str = ""
    operation: str = ""
    owner: str = ""
    is_draining: bool = False


def bookie_rows(metadata: Metadata) -> RecordRows[str, BookieRecord]:
    """The records of bookies, by UUID."""
    return RecordRows(metadata, "bookies/", BookieRecord, key_part)


class Instance(msgspec.Struct, frozen=True, array_like=True):
    """A name that a state store gets once, for each scope, and that no other store's rows have.

    Directories are bound to it, so numbers of ledgers that were begun anew, in another store, never
    meet entries of the former ones (BookKeeper's instance id, spec/ledger.md 5.7.1).
    """

    name: str
    operation: str = ""


async def instance_of(metadata: Metadata, fresh: str) -> str:
    """The name of the rows; `fresh` if they have none yet. Raises StorageError."""
    rows: RecordRows[str, Instance] = RecordRows(metadata, "", Instance, str, is_witnessed=True)

    def give_name(known: Instance | None) -> Instance:
        return known or Instance(fresh)

    return (await rows.update("instance", give_name)).name
