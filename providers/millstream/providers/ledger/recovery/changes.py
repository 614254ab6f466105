"""The changes that copying makes in the record of a ledger, as functions from record to record.

Owns: the claim of the process that copies, and the change after a copy. Pure. Invariants: a bookie
is named in a fragment only after all entries of its place were copied to it under the claim that
the record still has. So the bookie has dropped none of them in the meantime. Repeating a change
does no harm. Starts, ends and terms do not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millstream.providers.ledger.protocol.errors import LedgerError
from millstream.providers.ledger.protocol.record import Claim, LedgerRecord

from .needs import Vacancy

__all__ = ["ClaimLost", "claim", "mark_checked", "move", "release", "widen"]


class ClaimLost(LedgerError):
    """Another process copies this ledger: leave the ledger to that process."""


def claim(record: LedgerRecord, token: str, bookies: Sequence[str]) -> LedgerRecord:
    """Claim that entries are copied to these bookies from now on. An earlier claim ends, and its
    copies do not count."""
    return msgspec.structs.replace(record, claim=Claim(token, tuple(bookies)))


def release(record: LedgerRecord, token: str) -> LedgerRecord:
    """End a claim: nothing more is copied under it."""
    if record.claim is None or record.claim.token != token:
        return record
    return msgspec.structs.replace(record, claim=None)


def move(record: LedgerRecord, token: str, vacancy: Vacancy, new: str) -> LedgerRecord:
    """Give a place to a bookie that has all of its entries. Raises ClaimLost."""
    at = next(i for i, one in enumerate(record.fragments) if one.first == vacancy.span.first)
    fragment = record.fragments[at]
    bookies = list(fragment.bookies)
    if bookies[vacancy.place] == new:
        return release(record, token)
    check_claim(record, token)
    if bookies != list(vacancy.span.bookies):
        raise ClaimLost(f"ledger {record.ledger} was re-replicated by another silo meanwhile")
    bookies[vacancy.place] = new
    changed = msgspec.structs.replace(fragment, bookies=tuple(bookies))
    fragments = (*record.fragments[:at], changed, *record.fragments[at + 1 :])
    return msgspec.structs.replace(record, fragments=fragments, claim=None)


def widen(
    record: LedgerRecord, token: str, before: LedgerRecord, more: Mapping[int, Sequence[str]]
) -> LedgerRecord:
    """Add bookies to each fragment, by its first entry. They have all entries of the fragment.

    `before`: the record for which they were chosen. Raises ClaimLost.
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
    """Record that all entries up to this one are on all of their bookies."""
    return msgspec.structs.replace(record, complete=max(record.complete, upto))


def check_claim(record: LedgerRecord, token: str) -> None:
    """Raise ClaimLost unless the record has this claim."""
    if record.claim is None or record.claim.token != token:
        raise ClaimLost(f"ledger {record.ledger} is re-replicated by another silo")
