"""Fixed cases of the core, some of which random histories rarely reach.

The numbers C16.1 to C16.20 name the cases of the specification from which the queues were built.
`test_store_vectors` reads the numbers, and checks that stores pass the same cases.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.providers.priority.row_store import RowStore

from millstream.providers.priority import (
    EnqueueBlocked,
    ExclusivityMissing,
    LeaseForeign,
    LeaseLost,
    LeaseToken,
    MessageExists,
    MessageFinished,
    MessageNotFound,
    PriorityQueueFull,
    QueueSettings,
    RequestInvalid,
    SettingsConflict,
    State,
    Template,
)
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.changes import ChangeEvent
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.reading import ANSWER_BYTES_MAX, is_large
from millstream.providers.priority.core.results import Dequeued, LeaseGrant, PollStatus
from millstream.providers.priority.core.settings import settings_for

EXCLUSIVE = QueueSettings("project", lease_ms=10_000)
SIMPLE = QueueSettings(lease_ms=10_000)


def opened(settings: QueueSettings = SIMPLE) -> PriorityCore:
    return PriorityCore.create(0, "encode", settings)


def put(
    core: PriorityCore,
    id: str,
    priority: int = 0,
    project: str | None = None,
    *,
    at: int = 0,
    region: str | None = None,
) -> None:
    pairs = {"project": project, "region": region}
    metadata = {key: value for key, value in pairs.items() if value is not None}
    core.enqueue(at, MessageFields(id, b"x", priority, metadata))


def ids(answer: Dequeued) -> list[str]:
    return [lease.id for lease in answer.leases]


def take(core: PriorityCore, at: int = 0, **wanted: str) -> LeaseGrant:
    (lease,) = core.dequeue(at, "w", 1, wanted).leases
    return lease


def state(core: PriorityCore, id: str) -> State:
    return core.read.get(id).state


def versions(core: PriorityCore, id: str) -> list[tuple[int, str]]:
    changes = core.drain()
    assert changes is not None
    return [(event.version, event.step) for event in changes.events if event.id == id]


def test_a_held_value_hides_its_messages_and_no_others() -> None:  # C16.1
    core = opened(EXCLUSIVE)
    put(core, "msg_0", 0, "foo")
    lease = take(core)
    put(core, "msg_1", 1, "foo")
    put(core, "msg_2", 2, "bar")
    assert ids(core.dequeue(1, "w")) == ["msg_2"]
    core.complete(2, "msg_0", lease.token)
    assert ids(core.dequeue(3, "w")) == ["msg_1"]


def test_equal_priorities_come_in_the_order_of_enqueueing() -> None:  # C16.2
    core = opened()
    for id in "zam":
        put(core, id)
    assert ids(core.dequeue(0, "w", 3)) == ["z", "a", "m"]


def test_attempts_are_used_up_by_leases_that_pass() -> None:  # C16.3
    core = opened(QueueSettings(lease_ms=10_000, attempts=2))
    put(core, "a")
    assert take(core).attempts_left == 1
    core.sweep(10_000)
    assert state(core, "a") is State.PENDING
    assert take(core, 11_000).attempts_left == 0
    core.sweep(21_000)
    assert state(core, "a") is State.ERRORED
    steps = ["enqueued", "dequeued", "expired", "dequeued", "expired"]
    assert versions(core, "a") == list(enumerate(steps, 1))


def test_a_lease_can_be_extended_until_it_is_over_and_not_at_that_time() -> None:  # C16.4
    core = opened()
    put(core, "a")
    put(core, "b")
    first, second = core.dequeue(0, "w", 2).leases
    assert core.extend(9_999, "a", first.token).due_ms == 19_999
    with pytest.raises(LeaseLost):
        core.extend(10_000, "b", second.token)


@pytest.mark.parametrize("is_swept", [True, False])
@pytest.mark.parametrize(("attempts", "left"), [(1, State.ERRORED), (2, State.PENDING)])
def test_a_completion_at_the_deadline_is_late(
    is_swept: bool, attempts: int, left: State
) -> None:  # C16.5
    core = opened(QueueSettings(lease_ms=10_000, attempts=attempts))
    put(core, "a")
    lease = take(core)
    if is_swept:
        core.sweep(10_000)
    with pytest.raises(LeaseLost):
        core.complete(10_000, "a", lease.token)
    core.sweep(10_000)
    assert state(core, "a") is left


def test_a_lease_is_over_at_its_deadline_also_if_nobody_came_to_end_it() -> None:
    core = opened()
    for number in range(600):
        put(core, f"m{number}")
    leases = core.dequeue(0, "w", 600).leases
    last = leases[-1]
    with pytest.raises(LeaseLost):
        core.complete(10_000, last.id, last.token)
    assert state(core, last.id) is State.RUNNING, "one operation does not end so many leases"
    assert core.sweep(10_000).steps == 88


def test_an_id_is_taken_once() -> None:  # C16.6
    core = opened()
    new = MessageFields("a", b"x", 1, {"k": "v"})
    assert core.enqueue(0, new).is_changed
    again = core.enqueue(1, MessageFields("a", b"x", 1, [("k", "v")]))
    assert (again.version, again.is_changed) == (1, False)
    core.prioritise(2, "a", 5)
    assert core.enqueue(3, new).version == 2, "its body is what it came with"
    others: list[tuple[Any, ...]] = [
        (b"y", 1, {"k": "v"}),
        (b"x", 5, {"k": "v"}),
        (b"x", 1, {}),
        (b"x", 1, {"k": "v"}, 5),
    ]
    for other in others:
        with pytest.raises(MessageExists):
            core.enqueue(4, MessageFields("a", *other))


def test_an_invisible_message_is_given_when_its_time_has_come() -> None:  # C16.8
    core = opened()
    core.enqueue(0, MessageFields("a", b"", 0, invisible_ms=5_000))
    assert core.dequeue(4_999, "w") == Dequeued((), PollStatus.EMPTY, 5_000)
    assert ids(core.dequeue(5_000, "w")) == ["a"]


def test_a_batch_has_each_value_once_unless_it_may_come_twice() -> None:  # C16.11
    first, core = opened(EXCLUSIVE), opened(EXCLUSIVE)
    for number, project in enumerate(["foo", "foo", "bar", "baz"]):
        put(first, f"m{number}", number, project)
        put(core, f"m{number}", number, project)
    assert ids(first.dequeue(0, "w", 3)) == ["m0", "m2", "m3"]
    answer = core.dequeue(0, "w", 3, same_value_ok=True)
    assert ids(answer) == ["m0", "m1", "m2"]
    put(core, "m4", 4, "foo")
    core.complete(1, "m0", answer.leases[0].token)
    assert ids(core.dequeue(2, "w", 3)) == ["m3"], "one of foo is still out"
    core.complete(3, "m1", answer.leases[1].token)
    assert ids(core.dequeue(4, "w")) == ["m4"]


def test_a_parked_group_shows_its_next_message_or_goes() -> None:  # C16.12
    core = opened(EXCLUSIVE)
    for number in range(3):
        put(core, f"m{number}", number, "foo")
    lease = take(core)
    assert ids(core.dequeue(1, "w")) == []
    core.cancel(2, "m1")
    core.complete(3, "m0", lease.token)
    lease = take(core, 4)
    assert lease.id == "m2"
    put(core, "m3", 3, "foo")
    core.dequeue(5, "w")
    core.cancel(6, "m3")
    core.complete(7, "m2", lease.token)
    assert ids(core.dequeue(8, "w")) == []
    core.check()


def test_after_an_expiry_the_value_gives_its_most_urgent_message() -> None:  # C16.13
    for is_overtaken in (False, True):
        core = opened(EXCLUSIVE)
        put(core, "old", 5, "foo")
        take(core)
        put(core, "later", 6, "foo")
        if is_overtaken:
            put(core, "urgent", 4, "foo")
        assert take(core, 10_000).id == ("urgent" if is_overtaken else "old")


def test_bodies_are_checked_against_the_limits() -> None:  # C16.14
    core = opened(EXCLUSIVE)
    with pytest.raises(ExclusivityMissing, match=r"queue 'encode': metadata.*'a'.*'project'"):
        put(core, "a")
    five = {f"k{number}": "v" for number in range(4)} | {"project": "foo"}
    with pytest.raises(RequestInvalid, match="metadata has 5 pairs, 4 at most"):
        core.enqueue(0, MessageFields("a", b"", 0, five))
    foo = {"project": "foo"}
    core.enqueue(0, MessageFields("full", b"x" * 32_768, 0, foo))
    with pytest.raises(RequestInvalid, match="payload has 32769 bytes, payload_bytes_max is 32768"):
        core.enqueue(0, MessageFields("a", b"x" * 32_769, 0, foo))
    for wrong in (
        MessageFields("", b"", 0, foo),
        MessageFields("i" * 257, b"", 0, foo),
        MessageFields("\ud800", b"", 0, foo),
        MessageFields("a", "text", 0, foo),  # type: ignore[arg-type]
        MessageFields("a", b"", 2**53 + 1, foo),
        MessageFields("a", b"", -(2**53) - 1, foo),
        MessageFields("a", b"", True, foo),
        MessageFields("a", b"", 0, [("project", "foo"), ("project", "bar")]),
        MessageFields("a", b"", 0, {"project": "v" * 257}),
        MessageFields("a", b"", 0, {"project": 1}),  # type: ignore[arg-type]
        MessageFields("a", b"", 0, ["pr"]),  # type: ignore[list-item]
        MessageFields("a", b"", 0, "pr"),  # type: ignore[arg-type]
        MessageFields("a", b"", 0, 7),  # type: ignore[arg-type]
        MessageFields("a", b"", 0, foo, invisible_ms=-1),
        MessageFields("a", b"", 0, foo, lease_ms=0),
        MessageFields("a", b"", 0, foo, lease_ms=86_400_001),
        MessageFields("a", b"", 0, foo, attempts=0),
        MessageFields("a", b"", 0, foo, attempts=1_001),
    ):
        with pytest.raises(RequestInvalid, match="queue 'encode': "):
            core.enqueue(0, wrong)
    for priority in (2**53, -(2**53)):
        core.enqueue(0, MessageFields(str(priority), b"", priority, foo))
        assert core.read.get(str(priority)).priority == priority
    assert core.read.depth()[State.PENDING] == 3


def test_a_blocked_dequeue_stops_leases_alone() -> None:  # C16.15
    core = opened()
    for id in "abcd":
        put(core, id)
    a, b, c = core.dequeue(0, "w", 3).leases
    core.configure(1, QueueSettings(lease_ms=10_000, dequeue_blocked=True))
    core.complete(2, "a", a.token)
    core.extend(3, "b", b.token)
    assert core.dequeue(4, "w") == Dequeued((), PollStatus.BLOCKED)
    core.sweep(10_000)
    assert state(core, "c") is State.PENDING
    assert core.dequeue(10_001, "w").status is PollStatus.BLOCKED
    core.configure(10_002, SIMPLE)
    assert ids(core.dequeue(10_002, "w", 2)) == ["c", "d"]


def test_a_blocked_enqueue_takes_nothing_new() -> None:
    core = opened()
    put(core, "a")
    core.configure(1, QueueSettings(enqueue_blocked=True))
    put(core, "a", at=2)
    core.cancel(3, "a")
    for act in (lambda: put(core, "b", at=4), lambda: core.requeue(4, "a", "b")):
        with pytest.raises(EnqueueBlocked, match="queue 'encode': enqueue_blocked"):
            act()


@pytest.mark.spare
def test_a_shape_that_is_being_built_hides_nothing() -> None:  # C16.16
    rng = random.Random(16)
    core = opened(EXCLUSIVE)
    pending: dict[str, tuple[int, int, dict[str, str]]] = {}

    def new(number: int) -> MessageFields:
        metadata = {"project": rng.choice("abcdef"), "region": rng.choice("xy")}
        pending[f"m{number}"] = (priority := rng.randrange(50), number, metadata)
        return MessageFields(f"m{number}", b"", priority, metadata)

    def least(wanted: dict[str, str]) -> str:
        fitting = [id for id, one in pending.items() if wanted.items() <= one[2].items()]
        return min(fitting, key=lambda id: pending[id][:2])

    for start in range(0, 10_000, 1_000):
        core.enqueue_many(0, [new(number) for number in range(start, start + 1_000)])
    shapes = (("region",), ("region", "project"))
    core.configure(1, QueueSettings("project", lease_ms=10_000, shapes=shapes))
    for step in range(24):
        core.enqueue(0, new(10_000 + step))
        for wanted in ({"region": "x"}, {"region": "y"}, {"region": "x", "project": "b"}):
            lease = take(core, step, **wanted)
            assert lease.id == least(wanted)
            if step % 2:
                core.complete(step, lease.id, lease.token)
                del pending[lease.id]
            else:
                core.release(step, lease.id, lease.token, refund=True)
            fitting = [one for one in pending.values() if wanted.items() <= one[2].items()]
            assert core.read.depth(wanted)[State.PENDING] == len(fitting)
        core.sweep(step, 1_000)
    assert core.sweep(60).steps == 0, "24 times 1,000 steps built both"
    core.check()


def test_a_priority_can_change_while_the_message_is_out() -> None:
    core = opened()
    put(core, "a", 1)
    put(core, "b", 2)
    put(core, "c", 3)
    lease = take(core)
    assert core.prioritise(1, "a", 9).version == 3
    core.prioritise(1, "c", 2)
    core.release(2, "a", lease.token)
    assert ids(core.dequeue(3, "w", 3)) == ["b", "c", "a"], "among equals by sequence"
    core.cancel(4, "a")
    with pytest.raises(MessageFinished):
        core.prioritise(5, "a", 1)


def test_a_limit_of_two_is_two() -> None:  # C16.17
    core = opened(QueueSettings("project", limit=2, lease_ms=10_000))
    for number in range(4):
        put(core, f"m{number}", number, "foo")
    first = take(core)
    take(core)
    assert ids(core.dequeue(1, "w")) == []
    core.complete(2, first.id, first.token)
    assert ids(core.dequeue(3, "w")) == ["m2"]
    assert ids(core.dequeue(4, "w")) == []
    core.configure(5, QueueSettings("project", limit=3, lease_ms=10_000))
    assert ids(core.dequeue(6, "w")) == ["m3"]


def test_finished_messages_are_kept_for_their_time() -> None:  # C16.19
    core = opened(QueueSettings(retention_ms=60_000))
    put(core, "a")
    lease = take(core)
    core.complete(0, "a", lease.token)
    core.sweep(59_000)
    assert state(core, "a") is State.COMPLETED
    with pytest.raises(MessageExists):
        core.enqueue(59_500, MessageFields("a", b"new", 0))
    core.sweep(61_000)
    with pytest.raises(MessageNotFound):
        core.read.get("a")
    with pytest.raises(MessageNotFound):
        core.complete(61_000, "a", lease.token)
    core.enqueue(61_000, MessageFields("a", b"new", 0))
    second = take(core, 61_000)
    assert second.token.version == lease.token.version and second.token > lease.token
    with pytest.raises(LeaseForeign):
        core.complete(61_000, "a", lease.token)


def test_each_refusal_of_a_lease_has_a_class_of_its_own() -> None:
    core = opened()
    put(core, "a")
    put(core, "b")
    first = take(core)
    core.release(1, "a", first.token)
    second = take(core, 2)
    with pytest.raises(LeaseLost, match=r"queue 'encode': message 'a': .*lease 2 followed"):
        core.complete(3, "a", first.token)
    for token in (LeaseToken(9, 9), LeaseToken(1, 9), LeaseToken(second.token.epoch, 9)):
        with pytest.raises(LeaseForeign):
            core.complete(3, "a", token)
    with pytest.raises(LeaseForeign):
        core.complete(3, "b", second.token)
    core.complete(4, "a", second.token)
    with pytest.raises(MessageFinished, match="completed, which is final"):
        core.fail(5, "a", second.token)
    with pytest.raises(MessageNotFound):
        core.complete(5, "c", second.token)
    assert versions(core, "a")[-1] == (5, "completed")


def test_a_full_queue_says_so_until_something_was_collected() -> None:
    core = opened(QueueSettings(messages_max=2, retention_ms=10))
    put(core, "a")
    put(core, "b")
    with pytest.raises(PriorityQueueFull, match="2 uncollected messages, messages_max is 2"):
        put(core, "c")
    put(core, "b")
    core.cancel(1, "a")
    core.sweep(11)
    put(core, "c", at=11)


def test_all_or_nothing_is_nothing_if_one_is_refused() -> None:
    core = opened(QueueSettings(messages_max=2))
    good, bad = MessageFields("a", b"", 0), MessageFields("b", b"", 2**60)
    with pytest.raises(RequestInvalid):
        core.enqueue_many(0, [good, bad], all_or_nothing=True)
    with pytest.raises(PriorityQueueFull):
        core.enqueue_many(0, [MessageFields(id, b"", 0) for id in "abc"], all_or_nothing=True)
    assert sum(core.read.depth().values()) == 0
    many = core.enqueue_many(0, [good, bad])
    assert state(core, "a") is State.PENDING and many.answers[1] is None
    assert [(one.at, one.kind) for one in many.refusals] == [(1, "RequestInvalid")]
    with pytest.raises(RequestInvalid, match="messages is 1001, not 0 to 1000"):
        core.enqueue_many(0, [good] * 1_001)


def test_a_release_without_attempts_is_an_error_unless_it_is_refunded() -> None:
    core = opened(QueueSettings(attempts=1))
    put(core, "a")
    lease = take(core)
    assert core.release(1, "a", lease.token, refund=True).state is State.PENDING
    lease = take(core, 2)
    assert lease.attempt == 1
    assert core.release(3, "a", lease.token, 5, reason="no disk").state is State.ERRORED
    assert core.read.get("a").reason == "no disk"


def test_a_requeued_message_is_a_new_one_with_all_its_attempts() -> None:
    core = opened(QueueSettings(attempts=1))
    core.enqueue(0, MessageFields("a", b"x", 7, {"k": "v"}, invisible_ms=5, lease_ms=9))
    with pytest.raises(RequestInvalid, match="is invisible, not canceled or errored"):
        core.requeue(1, "a", "b")
    core.fail(5, "a", take(core, 5).token)
    assert core.requeue(6, "a", "b").is_changed
    assert not core.requeue(7, "a", "b").is_changed
    lease = take(core, 8)
    assert (lease.id, lease.payload, lease.priority, lease.deadline_ms) == ("b", b"x", 7, 17)


def test_an_exclusivity_key_changes_only_when_all_is_finished() -> None:
    core = opened()
    put(core, "a", project="foo")
    with pytest.raises(SettingsConflict, match="exclusivity_key"):
        core.configure(1, EXCLUSIVE)
    with pytest.raises(SettingsConflict, match="version 1, not 7"):
        core.configure(1, QueueSettings(attempts=9), 7)
    core.cancel(2, "a")
    assert core.configure(3, EXCLUSIVE, 1).version == 2
    assert core.configure(3, EXCLUSIVE, 1).version == 2, "a repeat"
    assert core.read.depth(value="foo")[State.CANCELED] == 1
    put(core, "b", 0, "foo", at=4)
    put(core, "c", 0, "foo", at=4)
    assert ids(core.dequeue(5, "w", 2)) == ["b"]
    core.check()


def test_a_queue_made_on_use_is_as_its_template_or_the_default_has_it() -> None:
    narrow, wide = Template("video-hd", EXCLUSIVE), Template("video", QueueSettings(attempts=7))
    assert settings_for("video-hd-1", [wide, narrow]) == EXCLUSIVE
    assert settings_for("video-sd", [narrow, wide]).attempts == 7
    assert settings_for("audio", [narrow, wide]) == QueueSettings()


def test_time_does_not_go_back_over_a_restart() -> None:
    core, store = opened(), RowStore()
    put(core, "a")
    lease = take(core, 5_000)
    store.apply(core.drain())
    core = store.opened()
    assert core.extend(1_000, "a", lease.token).due_ms == 15_000
    assert core.counters().now_ms == 5_000


def test_the_next_queue_of_a_name_goes_on_counting() -> None:
    core = opened()
    put(core, "a")
    lease = take(core, 3)
    again = PriorityCore.create(1, "encode", SIMPLE, core.counters())
    put(again, "a", at=1)
    other = take(again, 1)
    assert other.token > lease.token and other.deadline_ms == 10_003
    with pytest.raises(LeaseForeign):
        again.complete(1, "a", lease.token)


def test_events_in_any_order_and_twice_say_how_the_queue_is() -> None:  # C16.18
    core = opened(EXCLUSIVE)
    for number in range(30):
        put(core, f"m{number}", number % 4, "abc"[number % 3], at=number)
        for lease in core.dequeue(number, "w", 2).leases:
            if number % 5:
                core.complete(number + 1, lease.id, lease.token)
    changes = core.drain()
    assert changes is not None
    events = list(changes.events) * 2
    random.Random(18).shuffle(events)
    latest: dict[str, ChangeEvent] = {}
    for event in events:
        if event.id not in latest or latest[event.id].version < event.version:
            latest[event.id] = event
    assert {id: (one.to_state, one.version) for id, one in latest.items()} == {
        view.id: (view.state, view.version) for view in core.read.page(1_000)
    }
    assert len(set(events)) == sum(view.version for view in core.read.page(1_000))


def test_events_tell_the_lives_of_an_id_apart() -> None:
    core = opened(QueueSettings(retention_ms=1))
    for at in (1, 5):
        core.enqueue(at, MessageFields("a", b"", at))
        core.prioritise(at, "a", at + 1)
        core.complete(at, "a", take(core, at).token)
        core.sweep(at + 1)
    changes = core.drain()
    assert changes is not None
    assert [(one.version, one.created_ms, one.sequence) for one in changes.events] == [
        *((version, 1, 1) for version in (1, 2, 3, 4, 5)),
        *((version, 5, 2) for version in (1, 2, 3, 4, 5)),
    ]


def test_an_event_says_who_what_and_when() -> None:
    core = opened(QueueSettings(lease_ms=10_000))
    core.enqueue(1, MessageFields("a", b"four", 7, {"k": "v"}))
    lease = take(core, 2)
    core.fail(3, "a", lease.token, "no disk")
    changes = core.drain()
    assert changes is not None
    data, due_ms = (("k", "v"),), 3 + 86_400_000
    enqueued, dequeued, failed = (tuple(event) for event in changes.events)
    assert enqueued == (
        *("encode", "a", 1, None, State.PENDING, 1, "enqueued", 0, 7, data, "", "", 0, 4, 1, 1),
    )
    assert dequeued == (
        *("encode", "a", 2, State.PENDING, State.RUNNING, 2, "dequeued", 1, 7, data),
        *("w", "", 10_002, 4, 1, 1),
    )
    assert failed == (
        *("encode", "a", 3, State.RUNNING, State.ERRORED, 3, "failed", 1, 7, data),
        *("w", "no disk", due_ms, 4, 1, 1),
    )


def test_a_page_goes_on_where_the_last_one_ended() -> None:
    core = opened()
    for id in "abcde":
        put(core, id, region="x" if id in "ace" else "y")
    core.cancel(1, "c")
    pages, after = [], 0
    while page := core.read.page(2, after=after):
        pages.append([view.id for view in page])
        after = page[-1].sequence
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    canceled = core.read.page(state=State.CANCELED, wanted={"region": "x"})
    assert [view.id for view in canceled] == ["c"]


@pytest.mark.parametrize("key", [None, "k"])
def test_an_answer_has_no_more_than_can_be_sent(key: str | None) -> None:
    settings = QueueSettings(exclusivity_key=key, payload_bytes_max=ANSWER_BYTES_MAX)
    core = opened(settings)
    for number in range(4):
        payload = b"x" * (ANSWER_BYTES_MAX // 2)
        core.enqueue(0, MessageFields(str(number), payload, number, {"k": str(number)}))
    assert [one.id for one in core.read.peek(4)] == ["0", "1"]
    assert [one.id for one in core.read.page(4)] == ["0", "1"] and is_large(core.read.page(4))
    first = core.dequeue(0, "w", 4)
    assert [one.id for one in first.leases] == ["0", "1"]
    assert first.status is PollStatus.MORE, "who waits for others is not told that there are none"
    rest = core.dequeue(0, "w", 4)
    assert [one.id for one in rest.leases] == ["2", "3"]
    assert core.dequeue(0, "w", 4).status is PollStatus.EMPTY
    core.check()
