"""Which rows these are: a name that a state store gets once, for each scope.

Owns: `instance_of`. Invariant: directories are bound to it, so numbers of ledgers that were begun
anew, in another store, never meet entries of the former ones (BookKeeper's instance id, spec/
ledger.md 5.7.1).
"""

from __future__ import annotations

import msgspec

from .metadata import Metadata
from .rows import RecordRows

__all__ = ["instance_of"]


class Instance(msgspec.Struct, frozen=True, array_like=True):
    """A name that no other store's rows have."""

    name: str
    operation: str = ""


async def instance_of(metadata: Metadata, fresh: str) -> str:
    """The name of the rows; `fresh` if they have none yet. Raises StorageError."""
    rows: RecordRows[str, Instance] = RecordRows(metadata, "", Instance, str, is_witnessed=True)

    def give_name(known: Instance | None) -> Instance:
        return known or Instance(fresh)

    return (await rows.update("instance", give_name)).name
