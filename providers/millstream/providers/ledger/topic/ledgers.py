"""What a topic needs of ledgers.

Owns: the contracts `Ledgers`, `TopicLedgerWriter`, `TopicLedgerReader`, and `delete_unlisted`. The
real ones are in `handle`; tests have one in memory.
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
        """The last entry that is on an ack quorum, with all before it; -1: none yet."""
        ...

    @property
    def failed(self) -> Exception | None:
        """Why nothing more can be appended: LedgerFenced, LedgerClosed, NotEnoughBookies."""
        ...

    @property
    def trouble(self) -> str:
        """Why bookies of this ledger do not answer now, in their own words; "": all do."""
        ...

    @property
    def is_short(self) -> bool:
        """Would a new ledger have copies that this one has not, with the bookies of now?"""
        ...

    def append(self, payload: bytes, /) -> Future[int]:
        """Append an entry: its number, once it is confirmed; futures end in the order of entries.

        A cancelled future does not take the entry back. Ends with LedgerFenced or LedgerClosed:
        the entry may or may not be in the ledger; NotEnoughBookies: the same, after
        `enqueue_wait_s`. Raises what `failed` has, at once, with nothing appended.
        """
        ...

    async def close(self) -> LedgerRecord:
        """Give the ledger its end behind what is confirmed, and fail what is not.

        Again returns the same. Raises LedgerFenced, LedgerClosed (another one gave it another
        end), StorageError.
        """
        ...

    async def aclose(self) -> None:
        """Let go of it, as a crash would: it stays open, and is recovered by who needs it."""
        ...


class TopicLedgerReader(Protocol):
    """Reads one ledger, without disturbing its writer."""

    @property
    def record(self) -> LedgerRecord:
        """The ledger's row, as this reader has read it last."""
        ...

    async def read(self, first: int, entries_max: int, bytes_max: int, /) -> Sequence[Entry]:
        """Confirmed entries from `first` on, checked, one at least; [] if there is none yet.

        Raises LedgerGone, NotRecoverable (no bookie that has it answered), EntryDamaged (all
        copies are), EntriesGivenUp (the loss of this one was accepted: read behind them).
        """
        ...

    async def wait(self, confirmed: int, wait_s: float, /) -> int:
        """The last confirmed entry, as soon as it is above `confirmed`, or after `wait_s`."""
        ...

    async def aclose(self) -> None: ...


class Ledgers(Protocol):
    """Ledgers of one cluster."""

    async def create(
        self, quorum: Quorum | None, topic: str, /, first: int = 0, owner: tuple[int, int] = (0, 0)
    ) -> TopicLedgerWriter:
        """A new, empty ledger; None: with the usual quorum.

        Args:
            first: the number that its first message will have in the topic.
            owner: the opening of the topic that makes it (`TopicRecord.owner`).

        Raises NotEnoughBookies, StorageError.
        """
        ...

    async def recover(self, ledger: int, /) -> LedgerRecord:
        """Fence whoever writes it, and give it an end; its record, which is closed.

        Every entry that was confirmed to its writer is in it. Raises NotRecoverable,
        NotEnoughBookies, LedgerGone, StorageError: try again.
        """
        ...

    async def reader(self, ledger: int, /) -> TopicLedgerReader:
        """Raises LedgerGone, StorageError."""
        ...

    async def delete(self, ledger: int, /) -> None:
        """Delete it for good; again is harmless. Raises StorageError."""
        ...


async def delete_unlisted(ledgers: Ledgers, ledger: int) -> None:
    """Delete a ledger that no topic lists any more; if that fails, `Topics.sweep` finds it."""
    try:
        await ledgers.delete(ledger)
    except (LedgerError, StorageError):
        pass
