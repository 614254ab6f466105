"""What can go wrong with ledgers. A class says what the caller does next.

    LedgerError
    ├── LedgerFenced         another one took the ledger over: stop writing it for good
    ├── LedgerClosed         it has an end: write another one
    ├── LedgerGone           it was deleted: forget it
    ├── EntriesGivenUp       a person accepted their loss: go on behind them
    ├── NotEnoughBookies     try again when more bookies can be written
    ├── NotRecoverable       too few bookies know an entry: bring them back, then try again
    │   └── NoCopyLeft       no bookie that answers can change that: a person must act
    ├── EntryDamaged         what is stored is not what was written: read it elsewhere
    ├── DirectoryRefused     a person must look at the directory that is named
    │   └── DirectoryInUse   another bookie has it: wait until it ends
    └── BookieError          one bookie did not do it: another one may
        ├── BookieAway       it did not answer; whether it did its work is unknown
        ├── BookieReadOnly   its disk is full: write elsewhere, read here
        └── BookieOverloaded it did nothing: try again later

Invariants: attributes hold plain values, since errors cross processes as answers.
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
    """A ledger cannot do what was asked."""


class LedgerFenced(LedgerError):
    """A higher term was seen: what was under way may or may not be in the ledger.

    Attributes: `term`, the one that was seen.
    """

    term: int

    def __init__(self, what: str, term: int) -> None:
        self.term = term
        super().__init__(what)


class LedgerClosed(LedgerError):
    """The ledger has an end: nothing is appended to it any more."""


class LedgerGone(LedgerError):
    """There is no such ledger, or it was deleted."""


class EntriesGivenUp(LedgerError):
    """These entries of a ledger are lost, and a person accepted that.

    Attributes: `ledger`; `first`, `last`: all of them, so the entries beside them are not.
    """

    ledger: int
    first: int
    last: int

    def __init__(self, ledger: int, first: int, last: int) -> None:
        self.ledger, self.first, self.last = ledger, first, last
        what = f"entry {first}" if first == last else f"entries {first} to {last}"
        super().__init__(f"ledger {ledger}: {what} were given up: their loss was accepted")


class NotEnoughBookies(LedgerError):
    """Fewer bookies can be written than an acknowledgement needs."""


class NotRecoverable(LedgerError):
    """Whether an entry exists cannot be decided: too few of its bookies answered, or know."""


class NoCopyLeft(NotRecoverable):
    """Every bookie that may have an entry has answered, and none can read it: waiting is no help.

    The text says where the damage is, and what can be done.
    """

    def __init__(self, ledger: int, entry: int, faults: Iterable[str]) -> None:
        self.ledger, self.entry = ledger, entry
        why = "; ".join(faults)
        super().__init__(
            f"ledger {ledger}: entry {entry} cannot be read anywhere: {why}. What can be done: put "
            "the file back as it was, from a backup; if nobody can, `millstream ledger recover "
            f"{ledger} --accept-loss` gives up what is lost"
        )


class EntryDamaged(LedgerError):
    """An entry's check does not fit its bytes, or it is another entry."""


class DirectoryRefused(LedgerError):
    """A directory is foreign, newer, emptied, older than it was, or damaged: it is not used.

    The text names file and offset, and says what can be done.
    """


class DirectoryInUse(DirectoryRefused):
    """Another bookie, of this process or another, has the directory."""


class BookieError(LedgerError):
    """One bookie did not do what was asked."""


class BookieAway(BookieError):
    """It cannot be reached, stopped, or started anew meanwhile."""


class BookieReadOnly(BookieError):
    """It has no room for entries; it reads, fences, and takes what is written by a recovery."""


class BookieOverloaded(BookieError):
    """It holds as many bytes that are not yet on disk as it may."""
