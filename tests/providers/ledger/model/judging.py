"""The invariants of every state and of every move.

Owns: the invariants of the protocol, each with its number in the message.
docs/internals/ledger_mutations.md explains the main ones. The tests of the bookie check a bookie's
promises about its disk.
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
    """An invariant does not hold."""


def must(holds: bool, text: str) -> None:
    if not holds:
        raise Violation(text)


# --- moves ---


def judge_change(before: LedgerRecord, after: LedgerRecord) -> None:
    """I8, I9, I10: check a change of the record."""
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
    """I2, I5, I6: confirmed entries only increase, and none is confirmed during a replacement."""
    must(before.confirmed <= after.confirmed < after.next_entry, "I5: what is confirmed rises")
    must(after.complete <= after.confirmed, "I5: what is complete is confirmed")
    if before.is_changing and after.is_changing:
        must(before.confirmed == after.confirmed, "I6: nothing is confirmed during a change")


def judge_end(draft: Draft, recovery: Recovery, last: int) -> None:
    """I14: enough bookies of the next entry's write set are fenced and do not have that entry."""
    mail, record = draft.mail, draft.mail.records[recovery.record]
    if mail.records[draft.record].term > record.term:
        return  # another recovery may have written it since, and this one cannot store its end
    entry, fragment = last + 1, record.fragments[-1]
    holders = [fragment.bookies[place] for place in record.quorum.write_set(entry)]
    bookies = [mail.bookies[draft.bookies[draft.model.at[name]]] for name in holders]
    deny = [b for b in bookies if b.term >= record.term and b.has(entry) is None]
    lost = lost_copies(draft.model, draft.left)
    must(len(deny) + lost >= record.quorum.denials, "I14: the end is proved by those who deny")


# --- states ---


def lost_copies(model: Model, left: tuple[int, ...]) -> int:
    """Count the bookies that may have lost copies or have a damaged one."""
    bounds = model.shape.bounds
    restored, hurt = bounds.restores - left[Left.RESTORES], bounds.damages - left[Left.DAMAGES]
    return restored + hurt


def judge(model: Model, state: State) -> None:
    """Check the confirmed entries, the record and the bookies of a state."""
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
    """Yield the undamaged copies of an entry on the bookies that the record names."""
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
    """I32: when no move is left, the ledger is closed."""
    record = model.record_of(state)
    must(record.state is LedgerState.CLOSED, "I32: nothing more happens, and there is no end")
    length = sum(len(f"{entry}" * 3) for entry in range(record.last + 1))
    must(record.length == length, "the length is that of all payloads")
