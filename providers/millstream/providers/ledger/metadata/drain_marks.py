"""The mark of a bookie that is to be emptied.

Owns: `mark_draining`. Not: emptying the bookie (`recovery`, which acts on the mark). Invariant: a
bookie is marked only while enough other bookies can take entries. Each of its entries can then be
copied to a bookie that does not have the entry yet.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millstream.providers.ledger.protocol.errors import BookieAway, NotEnoughBookies

from .bookies import BookieRecord, bookie_rows
from .ledgers import ledger_rows
from .metadata import Metadata

__all__ = ["mark_draining"]


def is_anywhere(silo: str) -> bool:
    """Whether a row names a silo."""
    return bool(silo)


async def mark_draining(
    metadata: Metadata,
    bookie: str,
    is_draining: bool = True,
    is_live: Callable[[str], bool] = is_anywhere,
) -> BookieRecord:
    """Mark a bookie as draining, or remove the mark; return its row. Repeating it does no harm.

    Args:
        metadata: the rows of ledgers and bookies.
        bookie: the UUID of its directory.
        is_draining: True sets the mark, False removes it.
        is_live: whether a silo, by its address, is alive. The default trusts the rows.

    Raises BookieAway: there is no such bookie; NotEnoughBookies: too few others can take its
    entries; Corrupt: the row of a ledger is damaged, so the number of needed bookies is unknown;
    StorageError.
    """
    rows = bookie_rows(metadata)
    if is_draining:
        known = [record async for record in rows.scan()]  # damaged rows do not count
        places = {record.place for record in known if record.bookie == bookie}
        others = [
            record.bookie
            for record in known
            if record.bookie != bookie
            and record.place in places  # entries are copied within a directory group only
            and record.is_writable
            and not record.is_draining
            and is_live(record.silo)
        ]
        needed = await widest_with(metadata, bookie)
        if len(others) < needed:
            text = f"bookie {bookie} has entries of ledgers that are spread over {needed} bookies: "
            text += "draining needs as many other bookies of its directory group that run, have "
            text += f"free disk space and are not being drained, but there are {len(others)}"
            raise NotEnoughBookies(f"{text}; start more bookies first")

    def mark(found: BookieRecord | None) -> BookieRecord:
        if found is None:
            raise BookieAway(f"there is no bookie {bookie}; `millstream ledger bookies` lists all")
        return msgspec.structs.replace(found, is_draining=is_draining)

    return await rows.update(bookie, mark)


async def widest_with(metadata: Metadata, bookie: str) -> int:
    """Return the number of bookies of the widest fragment that contains a bookie, or 0 if none
    does. Raises Corrupt if a damaged row may belong to a wider fragment."""
    widest, scan = 0, ledger_rows(metadata).scan()
    async for record in scan:
        for fragment in record.fragments:
            if bookie in fragment.bookies:
                widest = max(widest, len(fragment.bookies))
    for error in scan.damaged.values():
        raise error
    return widest
