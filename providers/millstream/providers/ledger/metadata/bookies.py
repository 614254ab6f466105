"""The rows of bookies: the last report of each bookie about itself.

Owns: `BookieRecord`, `bookie_rows`, `instance_of`. Not: which silos are alive (the members of the
cluster), and when a bookie writes its row. Invariant: `boot` and `high_water` of one directory
never go back. A directory with lower values was restored from an older copy.
"""

from __future__ import annotations

import msgspec

from .metadata import Metadata, key_part
from .rows import RecordRows

__all__ = ["BookieRecord", "bookie_rows", "instance_of"]


class BookieRecord(msgspec.Struct, frozen=True, array_like=True):
    """One bookie, which is one directory.

    `bookie`: the UUID of its directory. `silo`: the address of the silo that runs it; "": none
    does. `boot`: how often it was started. `high_water`: its journal is complete up to this
    sequence. `said_s`: the wall time of its last report, in seconds since 1970. `place`: the
    name of its directory group (see `serving.home`). `owner`: the name of the silo whose directory
    it is; "": of the silo that holds its lock. `is_draining`: an operator wants to empty it. It
    takes no new ledgers, and its entries are copied elsewhere.
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
    """Return the records of bookies, by UUID."""
    return RecordRows(metadata, "bookies/", BookieRecord, key_part)


class Instance(msgspec.Struct, frozen=True, array_like=True):
    """A name that the rows of one scope in one store get once. No other rows have it.

    Directories are bound to this name (BookKeeper's instance id). So the ledgers of a new store,
    whose numbers begin again, never meet the entries of an older store.
    """

    name: str
    operation: str = ""


async def instance_of(metadata: Metadata, fresh: str) -> str:
    """Return the name of the rows; it becomes `fresh` if they have none. Raises StorageError."""
    rows: RecordRows[str, Instance] = RecordRows(metadata, "", Instance, str, is_witnessed=True)

    def give_name(known: Instance | None) -> Instance:
        return known or Instance(fresh)

    return (await rows.update("instance", give_name)).name
