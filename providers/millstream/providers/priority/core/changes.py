"""The changes of operations, as plain rows and events that a store writes in one transaction.

Owns the rows, `Changes` and `Recorder`. A store writes the rows, and `core` reads them back.

Invariants:

- Changes accumulate until they are drained. A drain contains each changed row once, in its present
  form, and every event since the last drain, in order.
- The events of a message have the versions 1, 2, 3 and so on, without gaps or repeats.
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
    """One message as it is stored.

    The first nine fields never change, except that the payload becomes empty when `freed` is set.
    `lease_ms`, `invisible_ms` and `own_attempts` are the message's own settings. `first_priority`
    is None if the priority never changed. `epoch` and `leased_version` are the token of the latest
    lease, or 0. `ended` is the step that ended this lease, or an empty text while it is valid.
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
    """Numbers that must not go back, even if the queue is deleted.

    They are kept for the next queue of the name.

    `sequence` is that of the latest message. `epoch` is the number of leases given. `layout` is the
    number of the latest layout of shards. `now_ms` is the latest time of a change. `ahead_ms` is
    how far the queue's time is ahead of the wall clock. The last two start again with a new queue,
    so that a deletion ends the effect of a wrong clock.
    """

    sequence: int = 0
    epoch: int = 0
    layout: int = 0
    now_ms: int = 0
    ahead_ms: int = 0

    def of_next(self) -> Counters:
        """The counters of the next queue of the name."""
        return self._replace(now_ms=0, ahead_ms=0)


class SessionRow(NamedTuple):
    """A session: the answers that it acknowledged, and the time of its last change."""

    session: str
    acknowledged: int
    used_ms: int


class AnswerRow(NamedTuple):
    """An answer that its session has not acknowledged. `answer` contains plain values only."""

    session: str
    number: int
    what: str
    answer: Plain


class ChangeEvent(NamedTuple):
    """One transition.

    `from_state` is None for a new message, and `to_state` is None for a collected one.

    `created_ms` and `sequence` distinguish messages that had the same id one after the other.
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
    """Everything since the last drain, for one transaction, in the order of the fields.

    `deleted` has (id, sequence). `inserted` has the first rows of messages. The payloads of
    `updated` are stored already. `sessions_ended` and `answers_ended` are deleted before `sessions`
    and `answers` are written; `answers_ended` includes the answers of ended sessions.
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
    """Records the requested kinds of changes until they are drained."""

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
        self.payload_bytes = 0  # of the first rows
        self.inserted: dict[str, Message] = {}  # by id; their first rows are not stored yet
        self.updated: dict[str, Message] = {}
        self.deleted: dict[int, str] = {}  # ids by sequence
        self.events: list[ChangeEvent] = []
        self.settings: SettingsRow | None = None
        self.sessions_ended: dict[str, None] = {}
        self.answers_ended: dict[tuple[str, int], None] = {}
        self.sessions: dict[str, tuple[str, int, int]] = {}  # in the order of a row's fields
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
        """The number of rows and events to drain; a row counts once, whatever changed in it."""
        if not self.is_touched:
            return 0  # the fast path, because this is called before every operation
        messages = len(self.inserted) + len(self.updated) + len(self.deleted) + len(self.events)
        requests = len(self.sessions) + len(self.sessions_ended) + len(self.answers)
        return messages + requests + len(self.answers_ended)

    def drain(self, counters: Counters) -> Changes | None:
        """The changes since the last drain; None if there are none."""
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
    """The message of a row, without its entries in indexes and timers."""
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
