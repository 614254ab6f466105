"""The answers to repeated requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.providers.priority import test_core_vectors as vectors
from tests.providers.priority.row_store import RowStore

from millstream.providers.priority import (
    Enqueued,
    LeaseToken,
    MessageExists,
    MessageNotFound,
    QueueSettings,
    RequestInvalid,
    RequestStale,
    SessionFull,
    State,
)
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.requests.sessions import OPEN_MAX, Request
from millstream.providers.priority.core.results import Dequeued, PollStatus
from millstream.runtime import Overloaded


def opened(*ids: str, settings: QueueSettings | None = None) -> PriorityCore:
    core = vectors.opened(settings or QueueSettings())
    for id in ids:
        core.enqueue(0, MessageFields(id, b"x", 0))
    return core


def poll(core: PriorityCore, request: Request, now_ms: int = 0, count: int = 1) -> Dequeued:
    return core.once(now_ms, request, "dequeue", partial(core.dequeue, now_ms, "w", count))


def test_a_repeated_dequeue_gives_the_same_leases_and_no_others() -> None:  # C16.7
    core = opened("a", "b")
    first = poll(core, Request("s", 1))
    assert poll(core, Request("s", 1), 5).leases == first.leases
    assert core.read.depth()[State.RUNNING] == 1
    assert core.read.get("a").attempts_left == 2
    assert poll(core, Request("s", 2)).leases[0].id == "b"


def test_a_repeated_dequeue_does_not_say_that_the_queue_is_empty() -> None:
    core = opened("a")
    assert poll(core, Request("s", 1), count=2).status is PollStatus.EMPTY
    core.enqueue(1, MessageFields("b", b"x", 0))
    assert poll(core, Request("s", 1), 2, count=2).status is PollStatus.MORE


def test_a_request_is_answered_while_its_answer_is_kept() -> None:
    core, one = opened("a"), Request("s", 1)
    assert not core.sessions.is_answered(one)
    poll(core, one)
    assert core.sessions.is_answered(one) and not core.sessions.is_answered(Request("s", 2))
    poll(core, Request("s", 2, acknowledged=1))
    assert not core.sessions.is_answered(one)


def test_a_repeated_dequeue_marks_what_is_over() -> None:
    core = opened("a", "b")
    first = poll(core, Request("s", 1), count=2)
    core.complete(1, "a", first.leases[0].token)
    again = poll(core, Request("s", 1), 2, count=2)
    over, holds = again.leases
    assert (over.is_valid, over.payload, over.token) == (False, b"", first.leases[0].token)
    assert holds == first.leases[1]


def test_what_changed_nothing_is_not_remembered() -> None:
    core = opened()
    core.drain()
    assert not poll(core, Request("s", 1)).leases
    assert core.drain() is None
    core.enqueue(1, MessageFields("a", b"", 0))
    assert poll(core, Request("s", 1), 2).leases


def test_what_was_refused_is_not_remembered() -> None:
    core = opened()
    with pytest.raises(MessageNotFound):
        core.once(0, Request("s", 1), "complete", partial(core.complete, 0, "a", LeaseToken(1, 2)))
    core.enqueue(0, MessageFields("a", b"", 0))
    assert poll(core, Request("s", 1)).leases


def test_an_acknowledged_request_is_not_done_again() -> None:
    core = opened("a", "b", "c")
    poll(core, Request("s", 1))
    poll(core, Request("s", 2, acknowledged=1))
    with pytest.raises(RequestStale, match="queue 'encode': request 1 of session 's'"):
        poll(core, Request("s", 1))
    assert core.read.depth()[State.RUNNING] == 2


def test_what_was_acknowledged_is_stale_also_if_nothing_was_remembered_of_it() -> None:
    core, store = opened(), RowStore()
    assert not poll(core, Request("s", 1)).leases
    core.enqueue(0, MessageFields("a", b"", 0))
    core.enqueue(0, MessageFields("b", b"", 0))
    assert poll(core, Request("s", 2, acknowledged=1)).leases
    store.apply(core.drain())
    for one in (core, store.opened()):
        with pytest.raises(RequestStale):
            poll(one, Request("s", 1))


def test_a_session_has_so_many_open_answers() -> None:
    core = opened(*(f"m{number}" for number in range(OPEN_MAX + 5)))
    for number in range(1, OPEN_MAX + 1):
        poll(core, Request("s", number))
    with pytest.raises(SessionFull, match="64 unacknowledged answers"):
        poll(core, Request("s", OPEN_MAX + 1))
    assert poll(core, Request("s", OPEN_MAX)).leases, "one that is known is answered"
    assert poll(core, Request("s", OPEN_MAX + 1, acknowledged=1)).leases


def test_there_are_so_many_sessions_and_silent_ones_are_forgotten() -> None:
    settings = QueueSettings(sessions_max=1, answers_kept_ms=1_000)
    core = opened("a", "b", "c", settings=settings)
    poll(core, Request("s", 1), 500)
    with pytest.raises(Overloaded, match="sessions_max is 1"):
        poll(core, Request("t", 1), 1_499)
    assert core.next_due_ms() == 1_500
    core.sweep(1_500)
    assert poll(core, Request("t", 1), 1_500).leases[0].id == "b"


def test_the_session_that_was_silent_for_longest_is_forgotten_first() -> None:
    core = opened(*"abc", settings=QueueSettings(answers_kept_ms=1_000))
    poll(core, Request("s", 1), 100)
    poll(core, Request("t", 1), 200)
    poll(core, Request("s", 2), 300)
    assert core.next_due_ms() == 1_200
    assert core.sweep(1_250).steps == 1
    assert core.next_due_ms() == 1_300
    core.check()


def test_a_session_is_over_when_it_was_silent_for_long_swept_or_not() -> None:
    core = opened("a", "b", settings=QueueSettings(answers_kept_ms=1_000))
    poll(core, Request("s", 1))
    assert poll(core, Request("s", 1), 999).leases[0].id == "a"
    assert poll(core, Request("s", 1), 1_000).leases[0].id == "b"


def test_a_number_is_of_one_operation() -> None:
    core = opened("a")
    poll(core, Request("s", 1))
    enqueue = partial(core.enqueue, 0, MessageFields("b", b"", 0))
    with pytest.raises(
        RequestInvalid, match="number 1 was used for 'dequeue', and cannot be used for 'enqueue'"
    ):
        core.once(0, Request("s", 1), "enqueue", enqueue)


@pytest.mark.parametrize(
    "request_",
    [
        Request("", 1),
        Request("s" * 257, 1),
        Request("s", 0),
        Request("s", 3, 3),
        Request("s", 3, -1),
    ],
)
def test_a_request_is_checked(request_: Request) -> None:
    core = opened("a")
    with pytest.raises(RequestInvalid):
        poll(core, request_)


def test_answers_of_every_kind_outlive_a_restart() -> None:
    """Answers are plain values, so they survive as bytes, with lists in place of tuples."""
    core, store = opened("a", "b"), RowStore()
    lease = poll(core, Request("s", 1)).leases[0]
    put = MessageFields("c", b"", 0)
    wrong = MessageFields("d", b"", 2**60)
    acts: dict[int, tuple[str, Callable[[], Any]]] = {
        2: ("enqueue", lambda: core.enqueue(1, put)),
        4: ("complete", lambda: core.complete(1, "a", lease.token)),
    }
    many = [put, wrong, MessageFields("e", b"", 0)]
    before = [core.once(1, Request("s", n), what, act) for n, (what, act) in acts.items()]
    before.insert(1, core.enqueue_many_once(1, Request("s", 3), "many", many))
    store.apply(core.drain())
    for key, row in store.answers.items():
        store.answers[key] = row._replace(answer=msgspec.json.decode(msgspec.json.encode(row[3])))
    core = store.opened()
    after = [core.once(9, Request("s", n), what, act) for n, (what, act) in acts.items()]
    after.insert(1, core.enqueue_many_once(9, Request("s", 3), "many", many))
    assert (after[0], after[2]) == (before[0], before[2])
    first, none, last = after[1].answers
    assert (first, none, last) == (Enqueued("c", State.PENDING, 1, False), *before[1].answers[1:])
    [refused] = after[1].refusals
    [as_before] = before[1].refusals
    assert refused == as_before._replace(text=as_before.text.replace("'encode'", "'q'"))
    assert refused.at == 1
    error = refused.error("q")
    assert isinstance(error, RequestInvalid) and "priority is 1152921504606846976" in str(error)
    assert (error.queue, error.field) == ("q", "priority")
    assert core.drain() is None
    assert not poll(core, Request("s", 1), 9).leases[0].is_valid


def batch(core: PriorityCore, ids: str, *, all_or_nothing: bool = False, number: int = 1) -> Any:
    """Enqueue messages named by letters. Capital letters are refused.

    Returns for each one whether it was taken now (True), was taken by this request before (False),
    or the kind of its refusal.
    """
    news = [MessageFields(id, b"", 2**60 if id.isupper() else 0) for id in ids]
    request = Request("s", number, mark="body")
    found = core.enqueue_many_once(7, request, "enqueue_many body", news, all_or_nothing)
    why = {one.at: one.kind for one in found.refusals}
    assert [one.id if one else ids[at] for at, one in enumerate(found.answers)] == list(ids)
    return [one.is_changed if one else why[at] for at, one in enumerate(found.answers)]


def test_messages_of_one_request_are_taken_once_with_whichever_others_they_come() -> None:
    """As if shards are asked after other messages of the request moved to them."""
    core = opened("z", settings=QueueSettings(retention_ms=10))
    refused = "RequestInvalid"
    assert batch(core, "abA") == [True, True, refused]
    for id in "ab":
        core.cancel(7, id)
    core.sweep(20)
    assert core.read.depth()[State.CANCELED] == 0, "no id tells of them any more"
    assert batch(core, "cBb") == [True, refused, True]
    assert batch(core, "AacbzdB") == [*(refused, True, True, True, "MessageExists", True, refused)]
    assert batch(core, "bb") == [True, False], "of two that are one the first was taken"
    assert batch(core, "dc", all_or_nothing=True) == [True, True]
    assert [view.id for view in core.read.page()] == ["z", "c", "d"]
    assert batch(core, "cb", number=2) == [False, True], "another request"
    with pytest.raises(RequestInvalid, match="number 1 was used for 'enqueue_many body', "):
        core.enqueue_many_once(7, Request("s", 1), "enqueue_many other", [])


def test_a_refusal_of_all_leaves_what_was_taken_before() -> None:
    core = opened()
    assert batch(core, "ab") == [True, True]
    core.drain()
    with pytest.raises(RequestInvalid, match="priority"):
        batch(core, "acB", all_or_nothing=True)
    assert core.drain() is None and batch(core, "a") == [True]
    assert core.read.depth()[State.PENDING] == 2


def test_what_a_batch_took_outlives_a_restart() -> None:
    core, store = opened(), RowStore()
    batch(core, "ab")
    store.apply(core.drain())
    batch(core, "bc")
    store.apply(core.drain())
    core = store.opened()
    assert batch(core, "abcd") == [True] * 4 and core.read.depth()[State.PENDING] == 4
    odd: Any = [["a"], None, 7]
    found = core.enqueue_many_once(
        7, Request("s", 1), "enqueue_many body", [MessageFields(id, b"", 0) for id in odd]
    )
    assert [one.kind for one in found.refusals] == ["RequestInvalid"] * 3


def test_what_a_message_was_enqueued_with_is_known_after_a_restart() -> None:
    core, store = opened("a"), RowStore()
    core.prioritise(1, "a", 5)
    store.apply(core.drain())
    core = store.opened()
    assert not core.enqueue(2, MessageFields("a", b"x", 0)).is_changed
    with pytest.raises(MessageExists):
        core.enqueue(2, MessageFields("a", b"x", 5))


def test_of_two_messages_of_one_id_the_one_that_was_taken_is_so_again() -> None:
    """A refused message is refused again, also when the accepted one is gone."""
    core = opened(settings=QueueSettings(retention_ms=10))
    wrong, first, other = (MessageFields("a", b"", priority) for priority in (2**60, 1, 2))
    for news in ([wrong, first, other, first], [other, MessageFields("b", b"", 1), other]):
        number = len(news)

        def ask(news: Any = news, number: int = number) -> list[Any]:
            found = core.enqueue_many_once(0, Request("s", number), "many", news)
            why = {one.at: one.kind for one in found.refusals}
            return [one.is_changed if one else why[at] for at, one in enumerate(found.answers)]

        before = ask()
        core.drain()
        assert ask() == before and core.drain() is None
        core.cancel(0, news[1].id)
        core.sweep(10)
        assert ask() == before, "nothing tells of the message but the request"
        assert core.read.depth()[State.PENDING] == (number == 3)
    with pytest.raises(MessageExists, match="message 'a' was given twice, with different bodies"):
        core.enqueue_many_once(0, Request("s", 4), "many", [first, other], True)
