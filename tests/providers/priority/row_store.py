"""A reference store: applies changes one after another to dictionaries."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.providers.priority import QueueSettings, SettingsRow
from millstream.providers.priority.core.changes import (
    AnswerRow,
    ChangeEvent,
    Changes,
    Counters,
    MessageRow,
    SessionRow,
)
from millstream.providers.priority.core.core import PriorityCore, QueueRows


@dataclass
class RowStore:
    counters: Counters = field(default_factory=Counters)
    settings: SettingsRow = field(default_factory=lambda: SettingsRow(0, QueueSettings()))
    messages: dict[str, MessageRow] = field(default_factory=dict)
    sessions: dict[str, SessionRow] = field(default_factory=dict)
    answers: dict[tuple[str, int], AnswerRow] = field(default_factory=dict)
    events: list[ChangeEvent] = field(default_factory=list)

    def apply(self, changes: Changes | None) -> None:
        if changes is None:
            return
        self.counters = changes.counters
        self.settings = changes.settings or self.settings
        self._apply_messages(changes)
        self._apply_sessions(changes)
        self.events.extend(changes.events)

    def _apply_messages(self, changes: Changes) -> None:
        for id, sequence in changes.deleted:
            assert self.messages.pop(id).sequence == sequence
        for row in changes.inserted:
            assert row.id not in self.messages
            self.messages[row.id] = row
        for row in changes.updated:
            old = self.messages[row.id]
            payload = b"" if row.freed else old.payload
            fixed = old._replace(payload=payload)[:9]
            assert fixed == row[:9], "what never changes is not written again"
            self.messages[row.id] = row

    def _apply_sessions(self, changes: Changes) -> None:
        for name in changes.sessions_ended:
            self.sessions.pop(name, None)  # the session may not have been stored
        for key in changes.answers_ended:
            self.answers.pop(key, None)
        assert {key[0] for key in self.answers} <= self.sessions.keys() | {
            row.session for row in changes.sessions
        }, "answers of sessions that ended go with them"
        for session in changes.sessions:
            self.sessions[session.session] = session
        for answer in changes.answers:
            self.answers[answer.session, answer.number] = answer

    def rows(self) -> QueueRows:
        return QueueRows(
            self.settings,
            self.counters,
            list(self.messages.values()),
            list(self.sessions.values()),
            list(self.answers.values()),
        )

    def opened(self, queue: str = "q") -> PriorityCore:
        return PriorityCore(queue, self.rows())
