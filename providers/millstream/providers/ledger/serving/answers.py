"""The errors of bookies, on their way to another process.

Owns: `Refusal`. An error of a bookie is an expected answer, so it is sent as a value. The caller
can so distinguish it from an error of the call itself, after which the outcome is unknown.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from millstream.providers.ledger.protocol.errors import (
    BookieAway,
    BookieOverloaded,
    BookieReadOnly,
    LedgerError,
    LedgerFenced,
)

__all__ = ["Refusal", "refusal_of"]


class ErrorKind(Enum):
    """The kind of the error."""

    FENCED = "fenced"
    READ_ONLY = "read only"
    OVERLOADED = "overloaded"
    AWAY = "away"


CLASSES: dict[type[LedgerError], ErrorKind] = {
    BookieReadOnly: ErrorKind.READ_ONLY,
    BookieOverloaded: ErrorKind.OVERLOADED,
    BookieAway: ErrorKind.AWAY,
}


class Refusal(msgspec.Struct, frozen=True):
    """An error as a value."""

    reason: ErrorKind
    text: str
    term: int = 0

    def error(self) -> LedgerError:
        """Return the error."""
        if self.reason is ErrorKind.FENCED:
            return LedgerFenced(self.text, self.term)
        cls = next(cls for cls, reason in CLASSES.items() if reason is self.reason)
        return cls(self.text)


def refusal_of(error: LedgerError) -> Refusal:
    """Return an error of a bookie as a value. An unexpected error counts as BookieAway."""
    if isinstance(error, LedgerFenced):
        return Refusal(ErrorKind.FENCED, str(error), error.term)
    reason = CLASSES.get(type(error))
    return Refusal(reason or ErrorKind.AWAY, str(error))
