"""The ledgers that the topics of a cluster list, for code that is about to forget a ledger.

Owns: `ListedLedgers`. Invariant: a topic lists a ledger as long as its messages may be needed. So a
listed ledger without a row is damage, and nothing of it may be forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.runtime import Corrupt

from .record import make_listed_and_gone, topic_rows

__all__ = ["ListedLedgers"]


class ListedLedgers:
    """The lists of all topics. Every method may raise StorageError."""

    def __init__(self, metadata: Metadata) -> None:
        self._rows = topic_rows(metadata)

    async def all(self) -> Mapping[int, str] | None:
        """Return all listed ledgers, each with its topic, as of a moment ago. None: the row of a
        topic is damaged, so the list is not complete."""
        scan = self._rows.scan()
        found = {span.ledger: one.topic async for one in scan for span in one.spans}
        return None if scan.damaged else found

    async def damage(self, topic: str, ledger: int) -> Corrupt | None:
        """Return the fault of a ledger without a row, which a topic listed a moment ago.

        Return None if the topic does not list the ledger any more.
        """
        try:
            record = await self._rows.read(topic)
        except Corrupt as error:
            return error
        is_listed = record is not None and record.lists(ledger)
        return make_listed_and_gone(topic, ledger) if is_listed else None
