"""The errors of ledgers. Each class tells the caller what to do next.

    LedgerError
    ├── LedgerFenced         another process took the ledger over: stop writing it for good
    ├── LedgerClosed         the ledger is closed: write another one
    ├── LedgerGone           the ledger was deleted: forget it
    ├── EntriesGivenUp       an operator accepted their loss: continue after them
    ├── NotEnoughBookies     try again when more bookies can be written
    ├── NotRecoverable       too few bookies know an entry: bring them back, then try again
    │   └── NoCopyLeft       no bookie that answers can change that: an operator must act
    ├── EntryDamaged         the stored bytes are not the written ones: read another replica
    ├── DirectoryRefused     an operator must look at the directory that is named
    │   └── DirectoryInUse   another bookie has the directory: wait until that bookie ends
    └── BookieError          one bookie failed: another one may succeed
        ├── BookieAway       the bookie did not answer; whether it did its work is unknown
        ├── BookieReadOnly   the bookie's disk is full: write elsewhere, read here
        └── BookieOverloaded the bookie did nothing: try again later

Invariant: attributes hold plain values, since errors cross processes as answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.runtime import MillstreamError

__all__ = [
    "BookieAway",
    "BookieError",
    "BookieOverloaded",
    "BookieReadOnly",
    "DirectoryInUse",
    "DirectoryRefused",
    "EntriesGivenUp",
    "EntryDamaged",
    "LedgerClosed",
    "LedgerError",
    "LedgerFenced",
    "LedgerGone",
    "NoCopyLeft",
    "NotEnoughBookies",
    "NotRecoverable",
]


class LedgerError(MillstreamError):
    """An operation on a ledger has failed."""


class LedgerFenced(LedgerError):
    """A higher term was seen. Entries in flight may or may not be in the ledger.

    Attributes: `term`: the higher term.
    """

    term: int

    def __init__(self, what: str, term: int) -> None:
        self.term = term
        super().__init__(what)


class LedgerClosed(LedgerError):
    """The ledger is closed. No more entries are appended to it."""


class LedgerGone(LedgerError):
    """The ledger does not exist, or was deleted."""


class EntriesGivenUp(LedgerError):
    """These entries of a ledger are lost, and an operator accepted that.

    Attributes: `ledger`; `first`, `last`: the whole range, so the entries before it and after it
    are not lost.
    """

    ledger: int
    first: int
    last: int

    def __init__(self, ledger: int, first: int, last: int) -> None:
        self.ledger, self.first, self.last = ledger, first, last
        what = f"entry {first}" if first == last else f"entries {first} to {last}"
        super().__init__(f"ledger {ledger}: an operator accepted the loss of {what}")


class NotEnoughBookies(LedgerError):
    """Fewer bookies can be written than an ack quorum needs."""


class NotRecoverable(LedgerError):
    """It is unknown whether an entry exists: too few of its bookies answered, or know."""


class NoCopyLeft(NotRecoverable):
    """Every bookie that may have an entry has answered, and none can read it: retries cannot help.

    The text says where the damage is, and how to repair it.
    """

    def __init__(self, ledger: int, entry: int, faults: Iterable[str]) -> None:
        self.ledger, self.entry = ledger, entry
        why = "; ".join(faults)
        super().__init__(
            f"ledger {ledger}: entry {entry} has no readable replica: {why}. What can be done: "
            "restore the file from a backup; if there is no backup, accept the loss with "
            f"`millstream ledger recover {ledger} --accept-loss`"
        )


class EntryDamaged(LedgerError):
    """The check of an entry fails, or it is another entry."""


class DirectoryRefused(LedgerError):
    """A directory is not used: it is foreign, newer, emptied, older than before, or damaged.

    The text names the file, the offset and a remedy.
    """


class DirectoryInUse(DirectoryRefused):
    """Another bookie uses the directory, in this process or another process."""


class BookieError(LedgerError):
    """One bookie failed a request."""


class BookieAway(BookieError):
    """The bookie cannot be reached, has stopped, or was started again in the meantime."""


class BookieReadOnly(BookieError):
    """The bookie refuses an append, because its disk is full or its directory lost records.
    It still answers reads, fences ledgers, and stores the entries that a recovery writes."""


class BookieOverloaded(BookieError):
    """The bookie has as many unsynced bytes, or waiting calls, as it may have."""
