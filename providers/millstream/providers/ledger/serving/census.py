"""The list of existing ledgers, by which bookies find out which of their entries are still needed.

Owns: `Census`. Not: the deletion of entries (`bookie.collection`).

Invariants:

- A ledger counts as deleted only if three facts hold. A read of its row, made after the bookie
  asked, finds no row. No topic lists it. Its number was given out by these rows. So if older rows
  were restored, ledgers that they do not know are kept.
- A ledger with a damaged row is kept. While the row of a topic is damaged, all ledgers are kept.
- The number below which there are no ledgers is proved one by one (`LedgerIds.oldest`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.metadata.bookies import instance_of
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.runtime import Corrupt
from millstream.runtime.extending import Clock

__all__ = ["Census", "fresh_name"]

log = logging.getLogger("millstream.ledger")

NAME_BITS = 2.0**32


class Listed(Protocol):
    """The ledgers that topics list. Every method may raise StorageError."""

    async def all(self) -> Mapping[int, str] | None:
        """Return all listed ledgers, each with its topic, as of a moment ago. None: not all are
        known."""
        ...

    async def damage(self, topic: str, ledger: int, /) -> Corrupt | None:
        """Return the fault of a ledger whose metadata row is missing.

        None: the topic does not list the ledger any more."""
        ...


class Census:
    """The rows of ledgers, for bookies. Every method may raise StorageError.

    Args:
        listed: a ledger that a topic lists is not deleted, even if it has no row.
        cluster: the name of the cluster.
    """

    def __init__(
        self, metadata: Metadata, ids: LedgerIds, listed: Listed, cluster: str, clock: Clock
    ) -> None:
        self._metadata = metadata
        self._rows = ledger_rows(metadata)
        self._listed = listed
        self._ids = ids
        self._cluster = cluster
        self._clock = clock

    async def cluster(self) -> str:
        """Return the name of the cluster and that of its rows, to which a directory is bound."""
        rows = await instance_of(self._metadata, fresh_name(self._clock))
        return f"{self._cluster} (rows {rows})"

    async def next_ledger(self) -> int:
        """Return a number that no ledger has or had until now."""
        return await self._ids.free()

    async def avoid(self, bookie: Bookie, path: str) -> None:
        """Make sure that no new ledger gets a number that a bookie has entries of. The rows may
        have been restored from a backup that is older than the directory."""
        number = max(bookie.store.ledgers(), default=0)
        free = await self._ids.avoid(number)
        if free is not None:
            log.error(
                "%s: the directory has entries of ledger %d, but the row %s knew no ledger from %d "
                "on: the rows are older than the directory; no number up to %d is reused",
                path,
                number,
                self._metadata.key("counter"),
                free,
                number,
            )

    async def collect(self, bookie: Bookie) -> None:
        """Let a bookie forget deleted ledgers, and drop entries that are elsewhere. Also raises
        BookieError."""
        free, kept, elsewhere = await self._ids.free(), set[int](), set[int]()
        scan = self._rows.scan()
        async for record in scan:
            kept.add(record.ledger)
            if not record.needs(bookie.name):
                elsewhere.add(record.ledger)
        kept |= set(map(int, scan.damaged))
        listed = await self._listed.all()

        async def is_gone(ledger: int) -> bool:
            # a scan may be a moment old: ledgers in it are kept, and others are looked up
            if listed is None or ledger >= free or ledger in kept or await self._has_row(ledger):
                return False
            return ledger not in listed or not await self._is_damaged(listed[ledger], ledger)

        async def is_elsewhere(ledger: int) -> bool:
            return ledger in elsewhere and await self._has_row(ledger, without=bookie.name)

        known = 0 if listed is None else min(kept | listed.keys(), default=None)
        await bookie.collect(is_gone, await self._ids.oldest(known), is_elsewhere)

    async def _has_row(self, ledger: int, without: str = "") -> bool:
        """Whether a ledger has a row, damaged or not. With `without`: whether it has a whole row
        that does not need this bookie."""
        try:
            record = await self._rows.read(ledger)
        except Corrupt as error:
            self._rows.tell(ledger, error)
            return not without
        return record is not None and not (without and record.needs(without))

    async def _is_damaged(self, topic: str, ledger: int) -> bool:
        """Whether a topic lists a ledger whose row is gone."""
        damage = await self._listed.damage(topic, ledger)
        if damage is not None:
            log.error("%s; the entries of the ledger are kept", damage)
        return damage is not None


def fresh_name(clock: Clock) -> str:
    """Return 32 random hex digits."""
    return "".join(f"{int(clock.uniform(0.0, NAME_BITS)):08x}" for _ in range(4))
