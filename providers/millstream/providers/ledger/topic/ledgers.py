"""The contract between a topic and its ledgers.

Owns: the contracts `Ledgers`, `TopicLedgerWriter`, `TopicLedgerReader`, and `delete_unlisted`. The
real implementations are in `handle`; tests have one in memory.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from typing import Protocol

from millstream.providers.ledger.protocol.entry import Entry
from millstream.providers.ledger.protocol.errors import LedgerError
from millstream.providers.ledger.protocol.quorum import Quorum
from millstream.providers.ledger.protocol.record import LedgerRecord
from millstream.runtime import StorageError

__all__ = ["Ledgers", "TopicLedgerReader", "TopicLedgerWriter", "delete_unlisted"]


class TopicLedgerWriter(Protocol):
    """The only writer of one ledger."""

    @property
    def ledger(self) -> int: ...
    @property
    def confirmed(self) -> int:
        """The last entry that is on an ack quorum, with all entries before it; at first -1."""
        ...

    @property
    def failed(self) -> Exception | None:
        """Why nothing more can be appended: LedgerFenced, LedgerClosed, NotEnoughBookies. None: the
        ledger takes entries."""
        ...

    @property
    def trouble(self) -> str:
        """Why bookies of this ledger do not answer now, in their own words, or "" if all of them
        answer."""
        ...

    @property
    def is_short(self) -> bool:
        """Whether a new ledger would have more replicas, with the bookies of now."""
        ...

    def append(self, payload: bytes, /) -> Future[int]:
        """Append an entry. The future has its number once it is confirmed; futures end in order.

        A cancelled future does not take the entry back. It fails with LedgerFenced or LedgerClosed:
        the entry may or may not be in the ledger; NotEnoughBookies: the same, after
        `HandleOptions.unconfirmed_max_s`. Raises the error in `failed` at once, with nothing
        appended.
        """
        ...

    async def close(self) -> LedgerRecord:
        """Close the ledger after its last confirmed entry; entries that are not confirmed fail.

        A second call returns the same record. Raises LedgerFenced, LedgerClosed (it was closed with
        another end), StorageError.
        """
        ...

    async def aclose(self) -> None:
        """End like a crash: the ledger stays open, and is recovered when it is needed."""
        ...


class TopicLedgerReader(Protocol):
    """Reads one ledger without disturbing its writer."""

    @property
    def record(self) -> LedgerRecord:
        """The ledger's row, as this reader has read it last."""
        ...

    async def read(self, first: int, entries_max: int, bytes_max: int, /) -> Sequence[Entry]:
        """Return confirmed entries from `first` on, checked, at least one; [] if there is none yet.

        Raises LedgerGone, NotRecoverable (no bookie that has the entry answered), EntryDamaged (all
        replicas are damaged), EntriesGivenUp (the loss of this entry was accepted: read after it).
        """
        ...

    async def wait(self, confirmed: int, wait_s: float, /) -> int:
        """Return the last confirmed entry, as soon as it is above `confirmed`, or after
        `wait_s`."""
        ...

    async def aclose(self) -> None: ...


class Ledgers(Protocol):
    """The ledgers of one cluster."""

    async def create(
        self, quorum: Quorum | None, topic: str, /, first: int = 0, owner: tuple[int, int] = (0, 0)
    ) -> TopicLedgerWriter:
        """Make a new, empty ledger. `quorum` None: the quorum of the options.

        Args:
            first: the number that its first message will have in the topic.
            owner: the opening of the topic that makes it (`TopicRecord.owner`).

        Raises NotEnoughBookies, StorageError.
        """
        ...

    async def recover(self, ledger: int, /) -> LedgerRecord:
        """Fence the writer of a ledger and close the ledger; return its closed record.

        The ledger then has every entry that was confirmed to its writer. Raises NotRecoverable,
        NotEnoughBookies, LedgerGone, StorageError: try again.
        """
        ...

    async def reader(self, ledger: int, /) -> TopicLedgerReader:
        """Return a reader. Raises LedgerGone, StorageError."""
        ...

    async def delete(self, ledger: int, /) -> None:
        """Delete a ledger for good. Repeating it does no harm. Raises StorageError."""
        ...


async def delete_unlisted(ledgers: Ledgers, ledger: int) -> None:
    """Delete a ledger that no topic lists any more. If that fails, `Topics.sweep` finds it."""
    try:
        await ledgers.delete(ledger)
    except (LedgerError, StorageError):
        pass
