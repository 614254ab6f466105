"""The memory of requests, so that a repeated request is not carried out twice.

A request is a pair (session, number). With its next request, a session acknowledges all answers up
to a number. The queue remembers only requests that changed something; others are carried out again.

Owns `SessionAnswers`, `Request` and the answers as plain values. `core` carries out requests.

Invariants:

- A session has at most `OPEN_MAX` unacknowledged answers. There are at most `sessions_max`
  sessions, and a session that is silent for `answers_kept_ms` is forgotten.
- A request whose answer was acknowledged is never carried out again while its session is known.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.providers.priority.core.body import check_number, check_request_text
from millstream.providers.priority.core.changes import AnswerRow, Plain, Recorder, SessionRow
from millstream.providers.priority.core.errors import RequestInvalid, RequestStale, SessionFull
from millstream.providers.priority.core.settings import QueueSettings
from millstream.runtime import Overloaded

__all__ = ["OPEN_MAX", "Request", "SessionAnswers"]

OPEN_MAX = 64
NUMBER_MAX = 2**53
MARK_BYTES_MAX = 64


class Request(NamedTuple):
    """A request id. `number` rises within a session.

    The session has received the answers up to and including `acknowledged`, and will not ask for
    them again. `mark` is a digest of the request, for requests that may differ from their repeat: a
    repeat with another mark is refused.
    """

    session: str
    number: int
    acknowledged: int = 0
    mark: str = ""


class Session:
    __slots__ = ("acknowledged", "answers", "used_ms")

    def __init__(self, acknowledged: int, used_ms: int) -> None:
        self.acknowledged = acknowledged
        self.used_ms = used_ms
        self.answers: dict[int, tuple[str, Plain]] = {}


class SessionAnswers:
    """The answers that the sessions of one queue may request again."""

    def __init__(self, queue: str, recorder: Recorder) -> None:
        self.queue = queue
        self.recorder = recorder
        self.sessions: dict[str, Session] = {}  # in the order of their last use

    def restore(self, rows: list[SessionRow], answers: list[AnswerRow]) -> None:
        for session, acknowledged, used_ms in sorted(rows, key=lambda row: row.used_ms):
            self.sessions[session] = Session(acknowledged, used_ms)
        for session, number, what, answer in answers:
            self.sessions[session].answers[number] = (what, answer)

    def find(self, now_ms: int, request: Request, what: str, settings: QueueSettings) -> Plain:
        """Return the answer to a repeated request. None: the request is new, and there is room for
        its answer.

        `what` describes the request, so that another request with the same number is refused.
        """
        name, number, acknowledged, mark = request
        session = self.sessions.get(name)
        if session is None:
            check_request_text(self.queue, "session", name)
        if mark:
            check_request_text(self.queue, "mark", mark, 0, MARK_BYTES_MAX)
        check_number(self.queue, "number", number, 1, NUMBER_MAX)
        check_number(self.queue, "acknowledged", acknowledged, 0, number - 1)
        if session is not None and session.used_ms + settings.answers_kept_ms <= now_ms:
            self._forget(name)
            session = None
        if session is None:
            if len(self.sessions) >= settings.sessions_max:
                what = f"queue {self.queue!r} remembers too many sessions"
                raise Overloaded(what, "sessions_max", settings.sessions_max)
            return None
        if number <= session.acknowledged:
            self._refuse_stale(request, session)
        answers, had = session.answers, len(session.answers)
        for answered in list(answers):
            if answered <= acknowledged:
                del answers[answered]
                self.recorder.answer_ended(name, answered)
        if len(answers) < had:
            self._use(name, session, acknowledged, now_ms)
        found = answers.get(number)
        if found is None:
            if len(answers) >= OPEN_MAX:
                what = f"session {name!r} has {OPEN_MAX} unacknowledged answers, the maximum"
                raise SessionFull(self.queue, what)
            return None
        if found[0] != what:
            was = f"{number} was used for {found[0]!r}, and cannot be used for {what!r}"
            raise RequestInvalid(self.queue, "number", was)
        return found[1]

    def is_answered(self, request: Request) -> bool:
        """Whether the answer to a repeated request is known."""
        session = self.sessions.get(request.session)
        return session is not None and request.number in session.answers

    def _refuse_stale(self, request: Request, session: Session) -> None:
        raise RequestStale(
            self.queue,
            f"request {request.number} of session {request.session!r} is too late: answers up to "
            f"{session.acknowledged} were acknowledged",
        )

    def _use(self, name: str, session: Session, acknowledged: int, now_ms: int) -> None:
        session.acknowledged = max(session.acknowledged, acknowledged)
        session.used_ms = now_ms
        self.sessions[name] = self.sessions.pop(name, session)
        self.recorder.session_used(name, session.acknowledged, now_ms)

    def remember(self, now_ms: int, request: Request, what: str, answer: Plain) -> None:
        """Record the answer of a request."""
        name, number, acknowledged, _ = request
        session = self.sessions.get(name)
        is_new = session is None
        if session is None:
            session = Session(acknowledged, now_ms)
        session.answers[number] = (what, answer)
        if is_new or session.used_ms != now_ms or session.acknowledged < acknowledged:
            # otherwise an acknowledgement has done this already
            self._use(name, session, acknowledged, now_ms)
        self.recorder.on_answered(AnswerRow(name, number, what, answer))

    def set_clock(self, forward_ms: int) -> None:
        """Shift the times of all sessions, so that their ages stay the same."""
        for name, session in self.sessions.items():
            session.used_ms += forward_ms
            self.recorder.session_used(name, session.acknowledged, session.used_ms)

    def _forget(self, name: str) -> None:
        session = self.sessions.pop(name)
        self.recorder.session_ended(name, session.answers)

    def next_due_ms(self, kept_ms: int) -> int | None:
        """When the next session is forgotten; None if there is no session."""
        for session in self.sessions.values():
            return session.used_ms + kept_ms
        return None

    def sweep(self, now_ms: int, kept_ms: int, steps: int) -> int:
        """Forget silent sessions, and return their number."""
        done = 0
        while done < steps and (due_ms := self.next_due_ms(kept_ms)) is not None:
            if due_ms > now_ms:
                break
            self._forget(next(iter(self.sessions)))
            done += 1
        return done

    def check(self) -> None:
        used = [session.used_ms for session in self.sessions.values()]
        assert used == sorted(used)
        for session in self.sessions.values():
            assert len(session.answers) <= OPEN_MAX
            assert all(number > session.acknowledged for number in session.answers)
