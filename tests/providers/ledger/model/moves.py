"""The moves that are possible in a state.

Owns: `moves`. A move is a tuple of event, place and message. The trace of a violation is a list of
moves.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.providers.ledger.inspection import LedgerError, LedgerState

from .actors import NOBODY, Draft, Model, payload_of, refusal
from .cores import Frozen
from .world import (
    REFUSALS,
    WRITER,
    Bookie,
    Kind,
    Left,
    Message,
    State,
    damaged,
    restored,
    store,
    taken_over,
)

Move = tuple[str, int, object]


def moves(model: Model, state: State) -> Iterator[tuple[Move, State]]:
    """Yield all moves, each with the state that it leads to."""
    for at, group in enumerate(state.network):
        messages = model.mail.groups[group]
        for message in messages:
            yield from network_moves(model, state, at, message)
    for message in model.mail.groups[state.rows]:
        yield from row_moves(model, state, message)
    yield from writer_moves(model, state)
    yield from recovery_moves(model, state)
    yield from troubles(model, state)


def network_moves(
    model: Model, state: State, at: int, message: Message
) -> Iterator[tuple[Move, State]]:
    """A bookie acts, or an answer arrives, or the sender stops waiting."""
    mail = model.mail
    if not message.kind.is_answer:
        if not mail.bookies[state.bookies[at]].hangs:
            yield ("acts", at, message), acted(model, state, at, message)
    else:
        draft = Draft(model, state)
        draft.network[at] = mail.taken(draft.network[at], message)
        draft.hear(message)
        yield ("hears", at, message), draft.done()
    if message.is_awaited and state.left[Left.GIVE_UPS] and message.kind is not Kind.REFUSED:
        draft = Draft(model, state)
        rest = mail.taken(draft.network[at], message)
        if not message.kind.is_answer:  # the bookie may still act on it later
            rest = mail.posted(rest, message._replace(is_awaited=False))
        draft.network[at] = rest
        draft.spend(Left.GIVE_UPS)
        draft.give_up(message)
        yield ("gives up", at, message), draft.done()


def acted(model: Model, state: State, at: int, message: Message) -> State:
    """Let a bookie act on a message."""
    mail = model.mail
    bookie, answer = mail.acted(state.bookies[at], message, model.shape.page)
    group = mail.taken(state.network[at], message)
    if answer is not None and model.is_prompt(message.who):
        draft = Draft(model, state)
        draft.bookies[at], draft.network[at] = bookie, group
        draft.hear(answer)
        return draft.done()
    if answer is not None:
        group = mail.posted(group, answer)
    bookies, network = list(state.bookies), list(state.network)
    bookies[at], network[at] = bookie, group
    return State(*state[:4], tuple(bookies), tuple(network), state.left)


def row_moves(model: Model, state: State, message: Message) -> Iterator[tuple[Move, State]]:
    """The row store acts, or its answer arrives, or the answer is lost and the actor asks again."""
    draft = Draft(model, state)
    draft.rows = model.mail.taken(draft.rows, message)
    if message.kind is Kind.LOCAL:
        draft.changed_here(message)
        yield ("changes here", message.who, message), draft.done()
        return
    if message.kind.is_answer:
        draft.hear(message)
        yield ("hears", NOBODY, message), draft.done()
        return
    answer = write_row(draft, message)
    if message.is_awaited and answer is not None:
        draft.tell_rows(answer)
    yield ("stores", message.who, message), draft.done()
    if state.left[Left.DOUBTS] and message.is_awaited:
        draft = Draft(model, state)
        draft.spend(Left.DOUBTS)
        write_row(draft, message)
        yield ("stores, and asks again", message.who, message), draft.done()


def write_row(draft: Draft, message: Message) -> Message | None:
    """Change the record, and return the answer."""
    try:
        record = store(draft.mail.records[draft.record], message)
    except REFUSALS as error:
        return refusal(message, error) if isinstance(error, LedgerError) else None
    draft.store(record)
    if message.kind is not Kind.CHANGE:
        return None
    _, instead = message.body
    assert isinstance(instead, Frozen)
    bookies = record.fragments[-1].bookies
    stored = Frozen((place, bookies[place]) for place, _ in instead)
    return message._replace(kind=Kind.CHANGED, body=(stored,))


def writer_moves(model: Model, state: State) -> Iterator[tuple[Move, State]]:
    """The writer appends, closes its ledger, or learns that a bookie is back."""
    core = model.appendings[state.writer]
    if core.failed is not None:
        return
    if core.next_entry < model.shape.bounds.entries:
        draft = Draft(model, state)
        draft.write("append", payload_of(core.next_entry))
        yield ("appends", WRITER, core.next_entry), draft.done()
    if state.left[Left.CLOSES]:
        draft = Draft(model, state)
        draft.spend(Left.CLOSES)
        draft.close()
        yield ("closes", WRITER, core.confirmed), draft.done()
    if state.left[Left.RETURNS]:
        for place in core.away():
            draft = Draft(model, state)
            draft.spend(Left.RETURNS)
            draft.write("on_returned", place)
            yield ("returns", place, WRITER), draft.done()


def recovery_moves(model: Model, state: State) -> Iterator[tuple[Move, State]]:
    """Another recovery begins, the next one that has not begun."""
    for who, number in enumerate(state.recoverers, 1):
        if model.recoveries[number].core != NOBODY or model.recoveries[number].is_over:
            continue
        record = taken_over(model.record_of(state))
        if record is not None:
            draft = Draft(model, state)
            draft.begin_recovery(who, record)
            yield ("recovers", who, record.term), draft.done()
        return


def troubles(model: Model, state: State) -> Iterator[tuple[Move, State]]:
    """Faults of bookies."""
    mail = model.mail
    for at, number in enumerate(state.bookies):
        bookie = mail.bookies[number]
        changes: list[tuple[Left, str, Bookie]] = []
        if state.left[Left.RESTORES]:
            changes += [
                (Left.RESTORES, f"restored, with entries: {keeps}", restored(bookie, keeps))
                for keeps in (False, True)
            ]
        if state.left[Left.FILLS] and not bookie.is_full:
            changes.append((Left.FILLS, "is full", bookie._replace(is_full=True)))
        if state.left[Left.HANGS] and not bookie.hangs and not is_begun(model, state):
            changes.append((Left.HANGS, "hangs", bookie._replace(hangs=True)))
        if state.left[Left.DAMAGES]:
            for place, (entry, packed) in enumerate(bookie.entries):
                entries = list(bookie.entries)
                entries[place] = (entry, mail.packed.of(damaged(mail.packed[packed])))
                after = bookie._replace(entries=tuple(entries))
                changes.append((Left.DAMAGES, f"entry {entry} is damaged", after))
        for what, text, after in changes:
            draft = Draft(model, state)
            draft.spend(what)
            draft.bookies[at] = mail.bookies.of(after)
            yield (text, at, None), draft.done()


def is_begun(model: Model, state: State) -> bool:
    """Has a recovery begun? A bookie that hangs later is the same as a late one."""
    return model.record_of(state).state is not LedgerState.OPEN
