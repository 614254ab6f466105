"""What copying changes in the record of a ledger, as functions from record to record.

Owns: the claim of who copies, and what follows a copy. Pure. Invariants: a bookie is named in a
fragment only after everything that its place has was copied to it under the claim that the record
still has, so no bookie has dropped any of it meanwhile; the same change again is harmless; starts,
ends and terms stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millstream.providers.ledger.protocol.errors import LedgerError
from millstream.providers.ledger.protocol.record import Claim, LedgerRecord

from .needs import Vacancy

__all__ = ["ClaimLost", "claim", "mark_checked", "move", "release", "widen"]


class ClaimLost(LedgerError):
    """Another one copies this ledger: leave it to that."""


def claim(record: LedgerRecord, token: str, bookies: Sequence[str]) -> LedgerRecord:
    """Entries are copied to these bookies from now on; whoever copied any before has to stop."""
    return msgspec.structs.replace(record, claim=Claim(token, tuple(bookies)))


def release(record: LedgerRecord, token: str) -> LedgerRecord:
    """Nothing more is copied under this claim."""
    if record.claim is None or record.claim.token != token:
        return record
    return msgspec.structs.replace(record, claim=None)


def move(record: LedgerRecord, token: str, vacancy: Vacancy, new: str) -> LedgerRecord:
    """A bookie has everything of a place, which is its own from now on. Raises ClaimLost."""
    at = next(i for i, one in enumerate(record.fragments) if one.first == vacancy.span.first)
    fragment = record.fragments[at]
    bookies = list(fragment.bookies)
    if bookies[vacancy.place] == new:
        return release(record, token)
    check_claim(record, token)
    if bookies != list(vacancy.span.bookies):
        raise ClaimLost(f"ledger {record.ledger} was copied by another silo meanwhile")
    bookies[vacancy.place] = new
    changed = msgspec.structs.replace(fragment, bookies=tuple(bookies))
    fragments = (*record.fragments[:at], changed, *record.fragments[at + 1 :])
    return msgspec.structs.replace(record, fragments=fragments, claim=None)


def widen(
    record: LedgerRecord, token: str, before: LedgerRecord, more: Mapping[int, Sequence[str]]
) -> LedgerRecord:
    """Each fragment has more bookies, by its first entry; all of them have all of its entries.

    `before`: the record as it was when they were chosen. Raises ClaimLost.
    """
    if all(set(more[one.first]) <= set(one.bookies) for one in record.fragments):
        return release(record, token)
    check_claim(record, token)
    assert record.fragments == before.fragments and record.quorum == before.quorum
    fragments = tuple(
        msgspec.structs.replace(one, bookies=(*one.bookies, *more[one.first]))
        for one in record.fragments
    )
    copies = len(fragments[0].bookies)
    quorum = record.quorum._replace(ensemble=copies, write=copies)
    is_enough = record.wanted is None or copies >= record.wanted.write
    wanted = None if is_enough else record.wanted
    return msgspec.structs.replace(
        record, fragments=fragments, quorum=quorum, wanted=wanted, claim=None
    )


def mark_checked(record: LedgerRecord, upto: int) -> LedgerRecord:
    """All entries up to this one are on all of their bookies."""
    return msgspec.structs.replace(record, complete=max(record.complete, upto))


def check_claim(record: LedgerRecord, token: str) -> None:
    """Raise ClaimLost unless the record has this claim."""
    if record.claim is None or record.claim.token != token:
        raise ClaimLost(f"ledger {record.ledger} is copied by another silo")
