"""A writer and the recoveries of its ledger, between their cores and the messages.

Owns: `Model`, `Draft`, `Recovery`. They act as the drivers in `handle` do. They send the messages
that a core wants, store a change of bookies before it takes effect, and give the answers to the
core.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.providers.ledger.inspection import LedgerRecord, LedgerState
from millstream.providers.ledger.protocol.append_core import (
    AppendCore,
    Change,
    FailAppends,
    PlaceState,
    Send,
)
from millstream.providers.ledger.protocol.entry import NOTHING, EntryHeader, head_of, is_whole
from millstream.providers.ledger.protocol.errors import LedgerClosed, LedgerFenced
from millstream.providers.ledger.protocol.found import Found, Missing
from millstream.providers.ledger.protocol.record import Fragment
from millstream.providers.ledger.protocol.recovery_core import (
    Abort,
    End,
    Fence,
    Keep,
    Read,
    RecoveryCore,
)

from .cores import (
    Frozen,
    Kept,
    Numbers,
    appending_columns,
    frozen,
    recovering_columns,
    recovering_form,
)
from .judging import judge_change, judge_end, judge_step
from .world import FIRST_TERM, LEDGER, WRITER, Bookie, Kind, Left, Mail, Message, Shape, State

NOBODY = -1


class Recovery(NamedTuple):
    """One recovery. `record`, `core` and `writer` are numbers, or NOBODY before they exist."""

    record: int = NOBODY
    core: int = NOBODY
    writer: int = NOBODY
    fragments: tuple[Fragment, ...] = ()
    end: int | None = None
    complete: int = NOTHING
    is_over: bool = False


def payload_of(entry: int) -> bytes:
    return b"%d" % entry * 3


class Model:
    """The values behind the numbers in the states of one shape."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.mail = Mail()
        self.appendings = Kept(appending_columns, judge=judge_step)
        self.recoverings = Kept(recovering_columns, recovering_form)
        self.recoveries: Numbers[Recovery] = Numbers()
        self.names = tuple(f"b{number}" for number in range(shape.bookies))
        self.at = {name: number for number, name in enumerate(self.names)}

    def begin(self) -> State:
        """Return the first state: an open, empty ledger that nobody recovers."""
        quorum = self.shape.quorum
        fragments = (Fragment(0, self.names[: quorum.ensemble]),)
        record = LedgerRecord(LEDGER, LedgerState.OPEN, quorum, FIRST_TERM, fragments)
        core = AppendCore(record, self.shape.owed_bytes_max)
        bounds, count = self.shape.bounds, self.shape.bookies
        return State(
            record=self.mail.records.of(record),
            writer=self.appendings.put(core),
            recoverers=(self.recoveries.of(Recovery()),) * bounds.recoveries,
            rows=self.mail.nothing,
            bookies=(self.mail.bookies.of(Bookie()),) * count,
            network=(self.mail.nothing,) * count,
            left=tuple(getattr(bounds, one.name.lower()) for one in Left),
        )

    def is_prompt(self, who: int) -> bool:
        """Do answers to this actor arrive as soon as the bookie gives them?"""
        is_lone = who != WRITER and self.shape.bounds.recoveries == 1
        return is_lone or self.shape.is_prompt

    def record_of(self, state: State) -> LedgerRecord:
        return self.mail.records[state.record]

    def writer_of(self, state: State) -> AppendCore:
        return self.appendings[state.writer]


class Draft:
    """A state that one move is changing."""

    __slots__ = (
        "bookies",
        "left",
        "mail",
        "model",
        "network",
        "record",
        "recoverers",
        "rows",
        "writer",
    )

    def __init__(self, model: Model, state: State) -> None:
        self.model = model
        self.mail = model.mail
        self.record, self.writer = state.record, state.writer
        self.recoverers = list(state.recoverers)
        self.rows = state.rows
        self.bookies, self.network = list(state.bookies), list(state.network)
        self.left = state.left

    def done(self) -> State:
        return State(
            self.record,
            self.writer,
            tuple(self.recoverers),
            self.rows,
            tuple(self.bookies),
            tuple(self.network),
            self.left,
        )

    def spend(self, what: Left) -> None:
        """Count one use of a bounded event."""
        left = list(self.left)
        left[what] -= 1
        self.left = tuple(left)

    # --- messages ---

    def post(self, bookie: str, message: Message) -> None:
        at = self.model.at[bookie]
        self.network[at] = self.mail.posted(self.network[at], message)

    def tell_rows(self, message: Message) -> None:
        self.rows = self.mail.posted(self.rows, message)

    def store(self, after: LedgerRecord) -> None:
        """Replace the record."""
        before = self.mail.records[self.record]
        judge_change(before, after)
        self.record = self.mail.records.of(after)
        if before.state is not after.state and after.state is LedgerState.CLOSED:
            self._drop_recoveries()

    def _drop_recoveries(self) -> None:
        """End all recoveries. None of them can change the end, and their writes only add copies."""
        for who, number in enumerate(self.recoverers, 1):
            if self.model.recoveries[number].core != NOBODY:
                self._end(who)
            self.network = [self.mail.dropped(group, who) for group in self.network]

    def leave(self, who: int) -> None:
        """Mark that an actor has ended and awaits no more answers."""
        self.rows = self.mail.ended(self.rows, who)
        self.network = [self.mail.ended(group, who) for group in self.network]

    # --- the writer ---

    def write(self, event: str, *args: object) -> None:
        """Let an event happen to the writer."""
        self.writer = self._appended(WRITER, self.writer, FIRST_TERM, event, *args)

    def _appended(self, who: int, core: int, term: int, event: str, *args: object) -> int:
        """Apply an event to a core that appends, do its actions, and return its new number."""
        kept = self.model.appendings
        after, actions = kept.step(core, event, *args)
        for action in actions:
            match action:
                case Send():
                    self._send(who, kept[after], term, action)
                case Change():
                    self._change(who, kept[after], term, action)
                case FailAppends():
                    self.leave(who)
        return after

    def _send(self, who: int, core: AppendCore, term: int, send: Send) -> None:
        packed = [(entry, core.find_packed(entry)) for entry in send.entries]
        numbers = self.mail.packed
        body = tuple((entry, numbers.of(one)) for entry, one in packed if one is not None)
        if body:
            self.post(send.bookie, Message(Kind.ADD, who, send.place, send.change, term, body))

    def _change(self, who: int, core: AppendCore, term: int, change: Change) -> None:
        spare = [name for name in self.model.names if name not in core.bookies()]
        instead = dict(zip(change.places, spare, strict=False))
        if who != WRITER or not instead:
            body: tuple[object, ...] = (change.first, frozen(instead))
            self.tell_rows(Message(Kind.LOCAL, who, body=body))
            return
        places = {place: (change.places[place], new) for place, new in instead.items()}
        body = (change.first, frozen(places))
        self.tell_rows(Message(Kind.CHANGE, who, term=term, body=body))

    def close(self) -> None:
        """Let the writer close its ledger after the last confirmed entry."""
        core = self.model.appendings[self.writer]
        body = (core.confirmed, core.confirmed_length, None, core.complete)
        self.write("close")
        self.tell_rows(Message(Kind.CLOSE, WRITER, term=FIRST_TERM, body=body, is_awaited=False))

    # --- recoveries ---

    def begin_recovery(self, who: int, record: LedgerRecord) -> None:
        """Begin an attempt to recover the ledger, and store its term."""
        self.store(record)
        core = self.model.recoverings.put(RecoveryCore(record))
        self._put(who, Recovery(self.record, core, NOBODY, record.fragments))
        self.recover(who, "begin")

    def recovery(self, who: int) -> Recovery:
        return self.model.recoveries[self.recoverers[who - 1]]

    def _put(self, who: int, recovery: Recovery) -> None:
        self.recoverers[who - 1] = self.model.recoveries.of(recovery)

    def _end(self, who: int) -> None:
        """End the attempt. Its messages may still arrive."""
        self._put(who, Recovery(is_over=True))
        self.leave(who)

    def recover(self, who: int, event: str, *args: object) -> None:
        """Let an event happen to a recovery."""
        recovery = self.recovery(who)
        core, steps = self.model.recoverings.step(recovery.core, event, *args)
        self._put(who, recovery._replace(core=core))
        for step in steps:
            self._take(who, step)
        self._finish(who)

    def _take(self, who: int, step: Fence | Read | Keep | End | Abort) -> None:
        recovery = self.recovery(who)
        if recovery.is_over:
            return
        term = self.mail.records[recovery.record].term
        match step:
            case Fence(place, name):
                self.post(name, Message(Kind.FENCE, who, place, term=term))
            case Read(place, name, first):
                self.post(name, Message(Kind.READ, who, place, term=term, body=(first,)))
            case Keep():
                self.write_back(who, "append_packed", step.packed, step.length)
            case End(last):
                judge_end(self, recovery, last)
                self._put(who, recovery._replace(end=last))
            case Abort():
                self._end(who)

    def write_back(self, who: int, event: str, *args: object) -> None:
        """Let an event happen to the writer that a recovery uses for writing back."""
        recovery = self._with_writer(who)
        if not recovery.is_over and self.model.appendings[recovery.writer].failed is None:
            term = self.mail.records[recovery.record].term
            writer = self._appended(who, recovery.writer, term, event, *args)
            recovery = self.recovery(who)
            self._put(who, recovery._replace(writer=writer))

    def _with_writer(self, who: int) -> Recovery:
        """Return the recovery with a writer that starts after the entries that need no decision.

        The writer needs the head of the last such entry from a bookie. If no bookie has it, the
        attempt ends.
        """
        recovery = self.recovery(who)
        if recovery.writer != NOBODY:
            return recovery
        record = self.mail.records[recovery.record]
        start = self.model.recoverings[recovery.core].start
        head = self._head_at(record, start)
        if head is None and start > NOTHING:
            self._end(who)
            return self.recovery(who)
        length = head.length if head else 0
        core = AppendCore(record, self.model.shape.owed_bytes_max, start, length)
        writer, complete = self.model.appendings.put(core), head.complete if head else NOTHING
        recovery = recovery._replace(writer=writer, complete=complete)
        self._put(who, recovery)
        return recovery

    def _head_at(self, record: LedgerRecord, entry: int) -> EntryHeader | None:
        for name in record.holders(entry):
            number = self.mail.bookies[self.bookies[self.model.at[name]]].has(entry)
            packed = b"" if number is None else self.mail.packed[number]
            if packed and is_whole(packed):
                return head_of(packed)
        return None

    def _finish(self, who: int) -> None:
        """Close the record once all kept entries are on their ack quorums."""
        recovery = self.recovery(who)
        if recovery.is_over or recovery.end is None:
            return
        recovery = self._with_writer(who)
        if recovery.is_over:
            return
        core = self.model.appendings[recovery.writer]
        if core.failed is not None:
            self._end(who)
        elif core.confirmed == recovery.end:
            term = self.mail.records[recovery.record].term
            body = (recovery.end, core.confirmed_length, recovery.fragments, recovery.complete)
            self._end(who)
            self.tell_rows(Message(Kind.CLOSE, who, term=term, body=body, is_awaited=False))

    # --- answers ---

    def hear(self, message: Message) -> None:
        """Deliver an answer to the actor that asked."""
        if message.who == WRITER:
            self._writer_hears(message)
        else:
            self._recovery_hears(message)

    def _writer_hears(self, message: Message) -> None:
        if self.model.appendings[self.writer].failed is None:
            match message.kind:
                case Kind.REFUSED:
                    self.write("stop", LedgerFenced("a higher term is known", message.term))
                case Kind.CHANGED:
                    self.write("on_changed", *message.body)
                case _:
                    self.write(*outcome_of(message))

    def _recovery_hears(self, message: Message) -> None:
        who, recovery = message.who, self.recovery(message.who)
        if recovery.is_over:
            return
        match message.kind:
            case Kind.REFUSED:
                self._end(who)
            case Kind.FENCED:
                self.recover(who, "on_fenced", message.place, *message.body)
            case Kind.FOUND:
                first, numbers, missing = message.body
                assert isinstance(numbers, tuple)
                packed = tuple(self.mail.packed[number] for number in numbers)
                found = Found(packed, Missing(missing))
                self.recover(who, "found", message.place, first, found)
            case _:
                self.write_back(who, *outcome_of(message))
                self._finish(who)

    def changed_here(self, message: Message) -> None:
        """Tell a writer that there are no other bookies, or replace the bookies of a recovery."""
        who = message.who
        first, instead = message.body
        assert isinstance(first, int) and isinstance(instead, Frozen)
        if who == WRITER:
            self.write("on_changed", instead)
            return
        fragments = self.recovery(who).fragments
        if instead:
            bookies = list(fragments[-1].bookies)
            for place, name in instead:
                bookies[place] = name
            kept = fragments[:-1] if fragments[-1].first == first else fragments
            fragments = (*kept, Fragment(first, tuple(bookies)))
        self._put(who, self.recovery(who)._replace(fragments=fragments))
        self.write_back(who, "on_changed", instead)
        self._finish(who)

    def give_up(self, message: Message) -> None:
        """Let the actor that sent a message stop waiting for the answer."""
        who = message.who
        is_add = message.kind in {Kind.ADD, Kind.STORED, Kind.FULL}
        away = (message.place, message.change, PlaceState.AWAY)
        if who == WRITER:
            self.write("on_unanswered", *away)
        elif is_add:
            self.write_back(who, "on_unanswered", *away)
            self._finish(who)
        else:
            self.recover(who, "on_unanswered", message.place)


def outcome_of(message: Message) -> tuple[str, int, int, object]:
    """The event of a core, with its arguments, for the answer to an add."""
    if message.kind is Kind.FULL:
        return "on_unanswered", message.place, message.change, PlaceState.FULL
    entries = tuple(entry for entry, _ in entries_of(message))
    return "on_acknowledged", message.place, message.change, entries


def entries_of(message: Message) -> Iterable[tuple[int, int]]:
    """The entries of an add or of its answer, each with the number of its bytes."""
    return message.body  # type: ignore[return-value]


def refusal(message: Message, error: LedgerFenced | LedgerClosed) -> Message:
    """The answer of the row store that refuses a change."""
    term = error.term if isinstance(error, LedgerFenced) else 0
    return message._replace(kind=Kind.REFUSED, term=term, body=())
