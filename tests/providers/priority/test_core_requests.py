"""Sessions compared with a model in random steps, and answers as plain values and back."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.providers.priority.row_store import RowStore

from millstream.providers.priority import (
    Done,
    Enqueued,
    LeaseToken,
    QueueSettings,
    RequestInvalid,
    RequestStale,
    SessionFull,
    State,
)
from millstream.providers.priority.core.changes import Counters, Plain, Recorder
from millstream.providers.priority.core.message import (
    NO_TERMS,
    LastLease,
    Message,
    key_of,
    new_message,
)
from millstream.providers.priority.core.requests import sessions as module
from millstream.providers.priority.core.requests.answers import Answer, answer_of, plain_of
from millstream.providers.priority.core.requests.sessions import NUMBER_MAX, Request, SessionAnswers
from millstream.providers.priority.core.results import (
    Dequeued,
    EnqueuedMany,
    LeaseGrant,
    PollStatus,
    Refused,
)
from millstream.runtime import Overloaded

KEPT_MS, SESSIONS_MAX, OPEN = 10, 2, 3
SETTINGS = QueueSettings(answers_kept_ms=KEPT_MS, sessions_max=SESSIONS_MAX)
NAMES, WHATS = "abc", ("dequeue", "enqueue")


@dataclass
class Known:
    """The model's record of a session."""

    name: str
    acknowledged: int
    used_ms: int
    answers: dict[int, tuple[str, Plain]] = field(default_factory=dict)


@dataclass
class SessionModel:
    """Sessions in the order of their last use."""

    known: list[Known] = field(default_factory=list)

    def of(self, name: str) -> Known | None:
        return next((one for one in self.known if one.name == name), None)

    def used(self, one: Known, now_ms: int) -> None:
        self.known = [other for other in self.known if other is not one] + [one]
        one.used_ms = now_ms

    def find(self, now_ms: int, request: Request, what: str) -> object:
        """Return an answer, None, or the class of the error."""
        one = self.of(request.session)
        if one and now_ms - one.used_ms >= KEPT_MS:
            self.known.remove(one)
            one = None
        if not one:
            return Overloaded if len(self.known) == SESSIONS_MAX else None
        if request.number <= one.acknowledged:
            return RequestStale
        left = {n: kept for n, kept in one.answers.items() if n > request.acknowledged}
        if len(left) < len(one.answers):
            one.answers, one.acknowledged = left, request.acknowledged
            self.used(one, now_ms)
        if request.number in left:
            was, answer = left[request.number]
            return answer if was == what else RequestInvalid
        return SessionFull if len(left) == OPEN else None

    def remember(self, now_ms: int, request: Request, what: str, answer: Plain) -> None:
        one = self.of(request.session) or Known(request.session, 0, now_ms)
        one.acknowledged = max(one.acknowledged, request.acknowledged)
        one.answers[request.number] = (what, answer)
        self.used(one, now_ms)

    def swept(self, now_ms: int, steps: int) -> int:
        silent = [one for one in self.known if now_ms - one.used_ms >= KEPT_MS][:steps]
        self.known = [one for one in self.known if one not in silent]
        return len(silent)


def dump(sessions: SessionAnswers) -> list[Known]:
    return [
        Known(name, one.acknowledged, one.used_ms, dict(one.answers))
        for name, one in sessions.sessions.items()
    ]


def found(sessions: SessionAnswers, now_ms: int, request: Request, what: str) -> object:
    try:
        return sessions.find(now_ms, request, what, SETTINGS)
    except (Overloaded, RequestInvalid, RequestStale, SessionFull) as error:
        return type(error)


def restored(store: RowStore) -> SessionAnswers:
    sessions = SessionAnswers("q", Recorder("q", keeps_rows=True, keeps_events=False))
    rows = list(store.sessions.values())
    sessions.restore(random.Random(len(rows)).sample(rows, len(rows)), [*store.answers.values()])
    return sessions


class Walk:
    """Does the same to model and sessions, and stores the drained changes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.model = SessionModel()
        self.recorder = Recorder("q", keeps_rows=True, keeps_events=False)
        self.sessions = SessionAnswers("q", self.recorder)
        self.store = RowStore()
        self.answers = 0

    def step(self) -> None:
        self.now_ms += self.rng.choice((1, 1, 2, 3, 9))
        if self.rng.random() < 0.2:
            self.sweep()
        else:
            self.ask()
        self.compare()

    def sweep(self) -> None:
        first = self.model.known[0].used_ms + KEPT_MS if self.model.known else None
        assert self.sessions.next_due_ms(KEPT_MS) == first
        steps = self.rng.randrange(3)
        done = self.sessions.sweep(self.now_ms, KEPT_MS, steps)
        assert done == self.model.swept(self.now_ms, steps)

    def ask(self) -> None:
        number = self.rng.randrange(1, 9)
        acknowledged = self.rng.randrange(number) if self.rng.random() < 0.5 else 0
        request = Request(self.rng.choice(NAMES), number, acknowledged)
        what = self.rng.choice(WHATS)
        wanted = self.model.find(self.now_ms, request, what)
        assert found(self.sessions, self.now_ms, request, what) == wanted
        if wanted is None and self.rng.random() < 0.8:  # otherwise the request changed nothing
            self.answers += 1
            for one in (self.model, self.sessions):
                one.remember(self.now_ms, request, what, self.answers)

    def compare(self) -> None:
        assert dump(self.sessions) == self.model.known
        self.sessions.check()
        self.store.apply(self.recorder.drain(Counters()))
        # sessions with equal times may have another order
        assert sorted(dump(restored(self.store)), key=by_name) == sorted(
            self.model.known, key=by_name
        )


def by_name(one: Known) -> str:
    return one.name


@pytest.mark.parametrize("seed", range(40))
def test_sessions_are_as_the_model_and_as_what_is_stored(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", OPEN)
    walk = Walk(seed)
    for _ in range(150):
        walk.step()
    assert walk.answers > 10


def test_sessions_are_restored_in_the_order_in_which_they_were_used() -> None:
    store = RowStore()
    walk = Walk(1)
    for now_ms, name in enumerate("ba"):
        walk.sessions.remember(now_ms, Request(name, 1), "dequeue", None)
    store.apply(walk.recorder.drain(Counters()))
    assert [*restored(store).sessions] == ["b", "a"]


@pytest.mark.parametrize(
    ("request_", "is_right"),
    [
        (Request("s", NUMBER_MAX), True),
        (Request("s", NUMBER_MAX + 1), False),
        (Request("s", 1), True),
        (Request("s", 5, 4, "m" * 64), True),
        (Request("s", 5, 4, "m" * 65), False),
        (Request("s" * 256, 5), True),
    ],
)
def test_a_request_is_checked_at_its_limits(request_: Request, is_right: bool) -> None:
    sessions = Walk(1).sessions
    assert found(sessions, 0, request_, "dequeue") is (None if is_right else RequestInvalid)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request("s", 5, 4, "m" * 65), "mark has 65 bytes, not 0 to 64"),
        (Request("s", 0), f"number is 0, not 1 to {NUMBER_MAX}"),
        (Request("s", 5, 5), "acknowledged is 5, not 0 to 4"),
    ],
)
def test_a_refusal_names_the_field_and_its_limits(request_: Request, said: str) -> None:
    with pytest.raises(RequestInvalid, match=said):
        Walk(1).sessions.find(0, request_, "dequeue", SETTINGS)


def test_the_limit_of_sessions_names_the_queue() -> None:
    sessions = Walk(1).sessions
    for name in "ab":
        sessions.remember(0, Request(name, 1), "dequeue", None)
    with pytest.raises(Overloaded, match="queue 'q' remembers too many sessions"):
        sessions.find(0, Request("c", 1), "dequeue", SETTINGS)


TOKEN = LeaseToken(7, 2)
LEASE = LeaseGrant("m", b"load", 5, (("k", "v"),), TOKEN, 900, 1, 2)
ENDED = LeaseGrant("m", b"", 5, (), TOKEN, 900, 1, 2, is_valid=False)
ANSWERS: list[Answer] = [
    Dequeued((LEASE,), PollStatus.FULL),
    Dequeued((), PollStatus.FULL),
    Enqueued("m", State.INVISIBLE, 1, True),
    Enqueued("m", State.PENDING, 3, False),
    Done(State.COMPLETED, 4, 70, True),
    Done(State.PENDING, 4, 0, False),
    EnqueuedMany(
        (Enqueued("m", State.PENDING, 1, True), None, Enqueued("n", State.ERRORED, 6, False)),
        (Refused(1, "RequestInvalid", "it is too long", "payload"), Refused(3, "Moved", "", "", 9)),
    ),
]


def leased(state: State = State.RUNNING, token: LeaseToken | None = TOKEN) -> dict[str, Message]:
    message = new_message("m", b"load", key_of(5, 1), (("k", "v"),), None, 3, NO_TERMS, 0)
    message.state = state
    message.lease = None if token is None else LastLease(token, "w")
    return {"m": message}


def as_lists(plain: Any) -> Any:
    """Return a value as it comes back from JSON or msgpack."""
    return [as_lists(one) for one in plain] if isinstance(plain, tuple) else plain


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_comes_back_as_it_was(answer: Answer) -> None:
    plain = plain_of(answer)
    assert answer_of(plain, leased()) == answer == answer_of(as_lists(plain), leased())


@pytest.mark.parametrize(
    "messages",
    [
        {},
        leased(token=None),
        leased(token=LeaseToken(8, 2)),
        leased(token=LeaseToken(7, 3)),
        leased(State.COMPLETED),
        leased(State.PENDING),
    ],
)
def test_a_lease_that_does_not_hold_any_more_says_so(messages: dict[str, Message]) -> None:
    plain = plain_of(Dequeued((LEASE,), PollStatus.FULL))
    assert answer_of(plain, messages) == Dequeued((ENDED,), PollStatus.FULL)
