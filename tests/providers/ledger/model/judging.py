"""What must hold in every state, and of every move.

Owns: the invariants of spec/ledger.md 4.30 to 4.34 and 10.11 that concern the protocol; each says
which. Not: what a bookie promises of its disk (I11 to I13, I20 to I25: tests of the bookie).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.providers.ledger.inspection import EntryDamaged, LedgerRecord, LedgerState
from millstream.providers.ledger.protocol.append_core import AppendCore
from millstream.providers.ledger.protocol.entry import unpack

from .world import LEDGER, Left, State

if TYPE_CHECKING:
    from .actors import Draft, Model, Recovery


class Violation(AssertionError):
    """Something that must hold does not."""


def must(holds: bool, text: str) -> None:
    if not holds:
        raise Violation(text)


# --- moves ---


def judge_change(before: LedgerRecord, after: LedgerRecord) -> None:
    """I8, I9, I10: what a record may become."""
    starts = [fragment.first for fragment in after.fragments]
    must(starts == sorted(set(starts)), "I8: the starts of fragments rise")
    must(after.term >= before.term, "I9: terms never fall")
    states = list(LedgerState)
    must(states.index(before.state) <= states.index(after.state), "I9: states go one way")
    if before.state is LedgerState.CLOSED:
        must(after == before, "I9: an end is final")
    if after.state is LedgerState.RECOVERING:
        must(after.fragments == before.fragments, "I10: who recovers changes bookies at the end")
    kept = before.fragments[:-1]
    must(after.fragments[: len(kept)] == kept, "I8: former fragments stay as they are")


def judge_step(before: AppendCore, after: AppendCore) -> None:
    """I2, I5, I6: what is confirmed rises, and stands still while bookies are changed."""
    must(before.confirmed <= after.confirmed < after.next_entry, "I5: what is confirmed rises")
    must(after.complete <= after.confirmed, "I5: what is complete is confirmed")
    if before.is_changing and after.is_changing:
        must(before.confirmed == after.confirmed, "I6: nothing is confirmed during a change")


def judge_end(draft: Draft, recovery: Recovery, last: int) -> None:
    """I14: so many of the write set of the next entry are fenced, and have it not."""
    mail, record = draft.mail, draft.mail.records[recovery.record]
    if mail.records[draft.record].term > record.term:
        return  # another one may have written it since; this one cannot store its end
    entry, fragment = last + 1, record.fragments[-1]
    holders = [fragment.bookies[place] for place in record.quorum.write_set(entry)]
    bookies = [mail.bookies[draft.bookies[draft.model.at[name]]] for name in holders]
    deny = [b for b in bookies if b.term >= record.term and b.has(entry) is None]
    lost = lost_copies(draft.model, draft.left)
    must(len(deny) + lost >= record.quorum.denials, "I14: the end is proved by those who deny")


# --- states ---


def lost_copies(model: Model, left: tuple[int, ...]) -> int:
    """So many bookies may have lost copies, or have one that is damaged."""
    bounds = model.shape.bounds
    restored, hurt = bounds.restores - left[Left.RESTORES], bounds.damages - left[Left.DAMAGES]
    return restored + hurt


def judge(model: Model, state: State) -> None:
    """What must hold in a state, by what was confirmed, the record and the bookies."""
    record, writer = model.record_of(state), model.writer_of(state)
    is_closed = record.state is LedgerState.CLOSED
    if is_closed:
        must(writer.confirmed <= record.last, "I15, 4.30: a confirmed entry is behind the end")
    lost = lost_copies(model, state.left)
    complete = record.complete if is_closed else writer.complete
    upto = max(writer.confirmed, record.last if is_closed else writer.confirmed)
    for entry in range(upto + 1):
        found = list(copies(model, state, record, entry))
        where = f"entry {entry} is on {len(found)} of {record.holders(entry)}"
        rule = "I17: before the end" if entry > writer.confirmed else "I7: confirmed"
        must(len(found) >= record.quorum.ack - lost, f"{rule}, {where}")
        is_enough = entry > complete or len(found) >= record.quorum.write - lost
        must(is_enough, f"D7: complete, {where}")
        must(len(set(found)) <= 1, f"I1, I16: copies of {entry} differ")


def copies(model: Model, state: State, record: LedgerRecord, entry: int) -> Iterator[bytes]:
    """Whole copies of an entry on the bookies that the record names."""
    for name in record.holders(entry):
        bookie = model.mail.bookies[state.bookies[model.at[name]]]
        number = bookie.has(entry)
        if number is None:
            continue
        try:
            yield unpack(model.mail.packed[number], LEDGER, entry).payload
        except EntryDamaged:
            continue


def judge_rest(model: Model, state: State) -> None:
    """4.34, I32: where nothing more can happen the ledger has an end."""
    record = model.record_of(state)
    must(record.state is LedgerState.CLOSED, "I32: nothing more happens, and there is no end")
    length = sum(len(f"{entry}" * 3) for entry in range(record.last + 1))
    must(record.length == length, "the length is that of all payloads")
