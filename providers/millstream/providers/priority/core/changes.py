"""What an operation changed, as plain rows and events for a store to write in one transaction.

Owns: the rows, `Changes`, `Recorder`. Not: writing (the store), when rows are read back (`core`).
Invariants:
- changes add up until they are drained; a drain has the rows as they are then, each once, and
  every event since the last one, in order;
- the events of a message have versions 1, 2, 3 and so on, without gap or repeat.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap
from typing import NamedTuple

from .message import (
    NO_TERMS,
    SEQUENCE_BITS,
    SEQUENCE_MASK,
    LastLease,
    LeaseToken,
    Message,
    Metadata,
    State,
    Step,
    Terms,
    key_of,
    new_message,
)
from .settings import SettingsRow

__all__ = ["AnswerRow", "ChangeEvent", "Changes", "Counters", "MessageRow", "SessionRow"]

Plain = str | int | bool | None | tuple["Plain", ...]


class MessageRow(NamedTuple):
    """One message as it is stored. All but the first nine fields can change after its first row,
    and the payload once: when `freed` is set, to nothing.

    `lease_ms`, `invisible_ms` and `own_attempts` are what it brought itself. `first_priority` is
    None while its priority never changed. `epoch` and `leased_version` are the token of its latest
    lease, 0 without one; `ended` the step by which that ended, "" while it holds.
    """

    id: str
    sequence: int
    payload: bytes
    metadata: Metadata
    created_ms: int
    attempts: int
    lease_ms: int | None
    invisible_ms: int | None
    own_attempts: int | None
    first_priority: int | None
    priority: int
    state: int
    version: int
    attempts_left: int
    due_ms: int
    changed_ms: int
    epoch: int
    leased_version: int
    worker: str
    ended: str
    reason: str
    freed: bytes = b""


class Counters(NamedTuple):
    """What must not go back, also over a deletion of the queue: hand it to the next of its name.

    `sequence`: of the latest message. `epoch`: how many leases were given. `layout`: the number of
    the latest layout of shards. `now_ms`: the latest time of a change. `ahead_ms`: how far the
    queue's time is ahead of wall clocks, or behind. These two begin anew with a new queue, so that
    deletion ends the effect of a wrong clock.
    """

    sequence: int = 0
    epoch: int = 0
    layout: int = 0
    now_ms: int = 0
    ahead_ms: int = 0

    def of_next(self) -> Counters:
        """The counters with which the next queue of the name begins."""
        return self._replace(now_ms=0, ahead_ms=0)


class SessionRow(NamedTuple):
    """A session: what it acknowledged, and when it last changed something."""

    session: str
    acknowledged: int
    used_ms: int


class AnswerRow(NamedTuple):
    """An answer that a session did not acknowledge. `answer` holds plain values only."""

    session: str
    number: int
    what: str
    answer: Plain


class ChangeEvent(NamedTuple):
    """One transition; `from_state` None before a message's life, `to_state` None after it.

    `created_ms` and `sequence` name the life: an id may be used again once its message was
    collected.
    """

    queue: str
    id: str
    version: int
    from_state: State | None
    to_state: State | None
    time_ms: int
    step: Step
    attempt: int
    priority: int
    metadata: Metadata
    worker: str
    reason: str
    due_ms: int
    payload_bytes: int
    created_ms: int = 0
    sequence: int = 0


class Changes(NamedTuple):
    """Everything since the last drain, for one transaction, in the order of these fields.

    `deleted` (id, sequence), then `inserted` (first rows), then `updated`: their payloads are
    stored already.
    `sessions_ended` go, and `answers_ended`, theirs among them, before `sessions` and `answers` are
    put.
    """

    counters: Counters
    deleted: tuple[tuple[str, int], ...]
    inserted: tuple[MessageRow, ...]
    updated: tuple[MessageRow, ...]
    settings: SettingsRow | None
    sessions_ended: tuple[str, ...]
    answers_ended: tuple[tuple[str, int], ...]
    sessions: tuple[SessionRow, ...]
    answers: tuple[AnswerRow, ...]
    events: tuple[ChangeEvent, ...]


class Recorder:
    """Notes what changed until it is drained; only what somebody asked for."""

    __slots__ = (
        "answers",
        "answers_ended",
        "deleted",
        "events",
        "inserted",
        "is_on",
        "is_touched",
        "keeps_events",
        "keeps_rows",
        "payload_bytes",
        "queue",
        "sessions",
        "sessions_ended",
        "settings",
        "updated",
    )

    def __init__(self, queue: str, keeps_rows: bool, keeps_events: bool) -> None:
        self.queue = queue
        self.keeps_rows = keeps_rows
        self.keeps_events = keeps_events
        self.is_on = keeps_rows or keeps_events
        self._clear()

    def _clear(self) -> None:
        self.is_touched = False
        self.payload_bytes = 0  # of first rows
        self.inserted: dict[str, Message] = {}  # by id; their first rows are not stored
        self.updated: dict[str, Message] = {}
        self.deleted: dict[int, str] = {}  # ids, by sequence
        self.events: list[ChangeEvent] = []
        self.settings: SettingsRow | None = None
        self.sessions_ended: dict[str, None] = {}
        self.answers_ended: dict[tuple[str, int], None] = {}
        self.sessions: dict[str, tuple[str, int, int]] = {}  # as their rows
        self.answers: dict[tuple[str, int], AnswerRow] = {}

    def on_begun(self, message: Message, now_ms: int, reason: str = "") -> None:
        if self.keeps_rows:
            self.is_touched = True
            self.inserted[message.id] = message
            self.payload_bytes += len(message.payload)
        if self.keeps_events:
            self._event(message, None, message.state, Step.ENQUEUED, now_ms, reason)

    def on_changed(
        self, message: Message, source: State, step: Step, now_ms: int, reason: str = ""
    ) -> None:
        if self.keeps_rows:
            self.is_touched = True
            if message.id not in self.inserted:
                self.updated[message.id] = message
        if self.keeps_events:
            self._event(message, source, message.state, step, now_ms, reason)

    def on_ended(self, message: Message, now_ms: int) -> None:
        if self.keeps_rows:
            self.is_touched = True
            if self.inserted.pop(message.id, None) is None:
                self.updated.pop(message.id, None)
                self.deleted[message.sequence] = message.id
        if self.keeps_events:
            self._event(message, message.state, None, Step.COLLECTED, now_ms, "")

    def _event(
        self,
        message: Message,
        source: State | None,
        target: State | None,
        step: Step,
        now_ms: int,
        reason: str,
    ) -> None:
        self.is_touched = True
        lease = message.lease
        self.events.append(
            ChangeEvent(
                self.queue,
                message.id,
                message.version,
                source,
                target,
                now_ms,
                step,
                message.attempts - message.attempts_left,
                message.priority,
                message.metadata,
                lease.worker if lease else "",
                reason,
                message.due_ms,
                message.payload_bytes,
                message.created_ms,
                message.sequence,
            )
        )

    def settings_changed(self, row: SettingsRow) -> None:
        self.is_touched = True
        self.settings = row

    def session_used(self, session: str, acknowledged: int, used_ms: int) -> None:
        if self.keeps_rows:
            self.is_touched = True
            self.sessions[session] = session, acknowledged, used_ms

    def session_ended(self, session: str, answered: Iterable[int]) -> None:
        if self.keeps_rows:
            self.is_touched = True
            self.sessions.pop(session, None)
            self.sessions_ended[session] = None
            for number in answered:
                self.answer_ended(session, number)

    def on_answered(self, row: AnswerRow) -> None:
        if self.keeps_rows:
            self.is_touched = True
            self.answers[row.session, row.number] = row

    def answer_ended(self, session: str, number: int) -> None:
        if self.keeps_rows:
            self.is_touched = True
            self.answers.pop((session, number), None)
            self.answers_ended[session, number] = None

    def count(self) -> int:
        """How many rows and events wait; each is counted once, whatever changed in it."""
        if not self.is_touched:
            return 0  # asked before every operation
        messages = len(self.inserted) + len(self.updated) + len(self.deleted) + len(self.events)
        requests = len(self.sessions) + len(self.sessions_ended) + len(self.answers)
        return messages + requests + len(self.answers_ended)

    def drain(self, counters: Counters) -> Changes | None:
        """What changed since the last drain; None: nothing."""
        if not self.is_touched:
            return None
        changes = Changes(
            counters,
            tuple(zip(self.deleted.values(), self.deleted, strict=True)) if self.deleted else (),
            tuple(map(row_of, self.inserted.values())) if self.inserted else (),
            tuple(map(row_of, self.updated.values())) if self.updated else (),
            self.settings,
            tuple(self.sessions_ended),
            tuple(self.answers_ended),
            tuple(starmap(SessionRow, self.sessions.values())),
            tuple(self.answers.values()),
            tuple(self.events),
        )
        self._clear()
        return changes


def row_of(message: Message) -> MessageRow:
    lease, terms, key = message.lease, message.terms, message.key
    return MessageRow(
        message.id,
        key & SEQUENCE_MASK,
        message.payload,
        message.metadata,
        message.created_ms,
        message.attempts,
        terms.lease_ms,
        terms.invisible_ms,
        terms.attempts,
        message.first_priority,
        key >> SEQUENCE_BITS,
        int(message.state),
        message.version,
        message.attempts_left,
        message.due_ms,
        message.changed_ms,
        lease.token.epoch if lease else 0,
        lease.token.version if lease else 0,
        lease.worker if lease else "",
        (lease.ended or "") if lease else "",
        lease.reason if lease else "",
        message.freed,
    )


def message_of(row: MessageRow, exclusivity_key: str | None) -> Message:
    """The message of a row; its place in indexes and timers is not set."""
    value = dict(row.metadata).get(exclusivity_key) if exclusivity_key is not None else None
    own = row.lease_ms, row.invisible_ms, row.own_attempts
    terms = NO_TERMS if own == NO_TERMS else Terms(*own)
    key = key_of(row.priority, row.sequence)
    message = new_message(
        row.id, row.payload, key, row.metadata, value, row.attempts, terms, row.created_ms
    )
    message.freed = row.freed
    message.first_priority = row.first_priority
    message.state = State(row.state)
    message.version = row.version
    message.attempts_left = row.attempts_left
    message.due_ms = row.due_ms
    message.changed_ms = row.changed_ms
    if row.epoch:
        ended = Step(row.ended) if row.ended else None
        token = LeaseToken(row.epoch, row.leased_version)
        message.lease = LastLease(token, row.worker, ended, row.reason)
    return message
