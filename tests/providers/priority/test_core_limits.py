"""The exact limits of the core. A refusal changes nothing.

The module also tests edge cases of shards, sweeping and leases that random histories rarely reach.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.providers.priority.test_core_vectors import EXCLUSIVE, ids, opened, put, state, take

from millstream.providers.priority import (
    EnqueueBlocked,
    LeaseForeign,
    LeaseToken,
    MessageExists,
    QueueSettings,
    RequestInvalid,
    State,
)
from millstream.providers.priority.core.body import (
    PRIORITY_MAX,
    REASON_BYTES_MAX,
    MessageFields,
)
from millstream.providers.priority.core.changes import Counters
from millstream.providers.priority.core.core import COUNT_MAX, PriorityCore
from millstream.providers.priority.core.index.plain import PlainIndex
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import EnqueuedMany, PollStatus
from millstream.providers.priority.core.settings import (
    DAY_MS,
    SHAPES_MAX,
    SHARDS_MAX,
    YEAR_MS,
    settings_with,
)
from millstream.runtime import ConfigError

LIMITS = QueueSettings(
    "project",
    lease_ms=50,
    lease_ms_max=100,
    invisible_ms_max=200,
    attempts=3,
    attempts_max=5,
    payload_bytes_max=10,
)
SHARDED = QueueSettings("project", shards=2, layout=7)


def made(settings: QueueSettings = LIMITS) -> PriorityCore:
    core = opened(settings)
    put(core, "m", project="p")
    core.drain()
    return core


def new(id: str = "n", **fields: Any) -> MessageFields:
    return MessageFields(
        id, **{"payload": b"x", "priority": 0, "metadata": {"project": "q"}, **fields}
    )


def token_of(core: PriorityCore) -> LeaseToken:
    return take(core).token


FIELDS: dict[str, tuple[Callable[[PriorityCore, Any], object], int, int]] = {
    "count": (lambda core, n: core.dequeue(0, "w", n), 1, COUNT_MAX),
    "count of peek": (lambda core, n: core.read.peek(n), 1, COUNT_MAX),
    "count of heads": (lambda core, n: core.read.heads(n), 1, COUNT_MAX),
    "count of page": (lambda core, n: core.read.page(n), 1, COUNT_MAX),
    "lease_ms": (lambda core, n: core.dequeue(0, "w", lease_ms=n), 1, 100),
    "lease_ms of extend": (lambda core, n: core.extend(0, "m", token_of(core), n), 1, 100),
    "lease_ms of enqueue": (lambda core, n: core.enqueue(0, new(lease_ms=n)), 1, 100),
    "invisible_ms": (lambda core, n: core.enqueue(0, new(invisible_ms=n)), 0, 200),
    "attempts": (lambda core, n: core.enqueue(0, new(attempts=n)), 1, 5),
    "delay_ms": (lambda core, n: core.release(0, "m", token_of(core), n), 0, 200),
    "priority": (lambda core, n: core.prioritise(0, "m", n), -PRIORITY_MAX, PRIORITY_MAX),
    "priority of enqueue": (
        lambda core, n: core.enqueue(0, new(priority=n)),
        -PRIORITY_MAX,
        PRIORITY_MAX,
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_number_is_within_its_limits_and_what_is_not_is_refused(name: str) -> None:
    call, least, most = FIELDS[name]
    for fits in (least, most):
        call(made(), fits)
    for odd in (least - 1, most + 1, least + 0.5, str(least), float(least), True):
        with pytest.raises(RequestInvalid, match="queue 'encode': ") as caught:
            call(made(), odd)
        assert caught.value.field == name.partition(" ")[0]
        said = f"not {least} to {most}" if type(odd) is int else "not a whole number"
        assert said in str(caught.value)


def test_a_batch_has_so_many_messages_with_a_request_id_or_without() -> None:
    def once(news: list[MessageFields]) -> EnqueuedMany:
        return made().enqueue_many_once(0, Request("s", 1), "many", news)

    def plainly(news: list[MessageFields]) -> EnqueuedMany:
        return made().enqueue_many(0, news)

    for enter in (once, plainly):
        assert len(enter([new("n")] * COUNT_MAX).answers) == COUNT_MAX and not enter([]).answers
        with pytest.raises(RequestInvalid, match="messages is 1001, not 0 to 1000"):
            enter([new("n")] * (COUNT_MAX + 1))


TEXTS: dict[str, Callable[[PriorityCore, Any], object]] = {
    "reason of cancel": lambda core, text: core.cancel(0, "m", reason=text),
    "reason of a worker's cancel": lambda core, text: core.cancel(0, "m", token_of(core), text),
    "reason of fail": lambda core, text: core.fail(0, "m", token_of(core), text),
    "reason of release": lambda core, text: core.release(0, "m", token_of(core), reason=text),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_reason_is_a_text_of_a_size(name: str) -> None:
    TEXTS[name](made(), "r" * REASON_BYTES_MAX)
    for odd in ("r" * (REASON_BYTES_MAX + 1), 7, "\ud800"):
        core = made()
        with pytest.raises(RequestInvalid) as caught:
            TEXTS[name](core, odd)
        assert caught.value.field == "reason"
        if isinstance(odd, str) and odd.isascii():
            assert f"has {REASON_BYTES_MAX + 1} bytes, not 0 to" in str(caught.value)
        assert state(core, "m") in (State.PENDING, State.RUNNING)


@pytest.mark.parametrize("worker", ["", 7, None, "w" * 10_000])
def test_a_worker_is_a_text(worker: Any) -> None:
    core = made()
    with pytest.raises(RequestInvalid, match="worker"):
        core.dequeue(0, worker)
    assert core.is_drained


def test_a_payload_is_bytes_of_a_size() -> None:
    made().enqueue(0, new(payload=b"x" * 10))
    for odd in (b"x" * 11, "x", None):
        with pytest.raises(RequestInvalid) as caught:
            made().enqueue(0, new(payload=odd))
        assert caught.value.field == "payload"


PAIRS = {f"k{number}": "v" for number in range(4)}


@pytest.mark.parametrize(
    "pairs",
    [
        {**PAIRS, "one more": "v"},
        {"": "v"},
        {7: "v"},
        {"k" * 1_000: "v"},
        {"k": 7},
        {"k": "v" * 1_000},
        [("j", "v"), ("k", "v"), ("k", "w")],
        [("k", "v", "w")],
        [["k"]],
        ["kv"],
        "kv",
        7,
    ],
    ids=str,
)
def test_metadata_are_few_pairs_of_texts(pairs: Any) -> None:
    core = opened()
    with pytest.raises(RequestInvalid) as caught:
        core.enqueue(0, MessageFields("m", b"x", 0, pairs))
    assert "metadata" in caught.value.field
    with pytest.raises(RequestInvalid):
        core.dequeue(0, "w", 1, pairs)
    if len(pairs if isinstance(pairs, list) else ()) == 3:
        assert "names the key 'k' twice" in str(caught.value)
    with pytest.raises(RequestInvalid, match="metadata of 'k' has 1000 bytes, not 0 to 256"):
        core.enqueue(0, MessageFields("m", b"x", 0, {"k": "v" * 1_000}))
    for fits in (PAIRS, list(PAIRS.items()), {"k": ""}):
        opened().enqueue(0, MessageFields("m", b"x", 0, fits))


# -- many at once: all or nothing


def test_of_many_messages_one_that_is_another_refuses_all() -> None:
    core = made()
    with pytest.raises(MessageExists, match="exists with another body"):
        core.enqueue_many(0, [new("a"), new("m", payload=b"other")], True)
    with pytest.raises(MessageExists, match="was given twice, with different bodies"):
        core.enqueue_many(0, [new("a"), new("a", payload=b"other")], True)
    assert core.is_drained


def test_many_messages_are_refused_where_one_would_be() -> None:
    core = made()
    core.configure(0, replace(LIMITS, enqueue_blocked=True))
    with pytest.raises(EnqueueBlocked):
        core.enqueue_many(0, [new("a"), new("b")], True)
    again = core.enqueue_many(0, [MessageFields("m", b"x", 0, {"project": "p"})], True)
    assert not again.is_changed and again.answers[0] is not None


# -- leases


def test_a_lease_that_was_never_given_is_foreign_and_one_that_was_is_lost() -> None:
    core = opened(LIMITS)
    put(core, "other", project="z")
    put(core, "m", project="p")
    first = next(one for one in core.dequeue(0, "w", 2).leases if one.id == "m").token
    core.release(1, "m", first)
    last = take(core, 1, project="p").token
    core.release(2, "m", last)
    assert last > first
    told: dict[LeaseToken, str] = {}
    for epoch in range(last.epoch + 2):
        for version in range(last.version + 2):
            token = LeaseToken(epoch, version)
            try:
                core.complete(3, "m", token)
            except LeaseForeign:
                told[token] = "foreign"
            except Exception as error:
                told[token] = type(error).__name__
    assert told[first] == told[last] == "LeaseLost"
    assert all(told[LeaseToken(last.epoch, version)] == "foreign" for version in (1, 2))
    assert all(told[LeaseToken(epoch, 1)] == "foreign" for epoch in range(last.epoch + 2))
    assert told[LeaseToken(last.epoch + 1, first.version)] == "foreign"


# -- dequeueing


def test_what_is_asked_for_one_by_one_or_at_once_comes_alike() -> None:
    for count in (1, 2, 3):
        core = opened(replace(EXCLUSIVE, limit=1))
        for number in range(3):
            put(core, f"m{number}", number, "same" if number < 2 else "other")
        found = core.dequeue(0, "w", count)
        assert ids(found) == ["m0", "m2"][:count]
        assert found.status is (PollStatus.FULL if count < 3 else PollStatus.EMPTY)


def test_an_answer_is_cut_behind_the_message_that_fills_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from millstream.providers.priority.core.moves import taking

    for size, count in ((100, 1), (101, 2), (199, 2), (200, 2), (201, 3)):
        monkeypatch.setattr(taking, "ANSWER_BYTES_MAX", size)
        core = opened()
        for number in range(4):
            core.enqueue(0, MessageFields(f"m{number}", b"x" * 100, number))
        assert len(core.dequeue(0, "w", 4).leases) == count


def test_a_page_is_cut_behind_the_message_that_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.providers.priority.core import reading

    for size, count in ((100, 1), (101, 2), (199, 2), (200, 2), (201, 3)):
        monkeypatch.setattr(reading, "ANSWER_BYTES_MAX", size)
        core = opened()
        for number in range(4):
            core.enqueue(0, MessageFields(f"m{number}", b"x" * 100, number))
        assert len(core.read.page(9)) == len(core.read.peek(9)) == count


@pytest.mark.parametrize("held", [0, 1, 2, 3, 4])
def test_there_may_be_more_once_so_many_held_values_were_passed(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millstream.providers.priority.core.moves import taking

    monkeypatch.setattr(taking, "STEPS_INLINE_MAX", 2)
    core = opened(replace(EXCLUSIVE, shapes=(("region",),)))
    for number in range(held):
        put(core, f"n{number}", 0, f"p{number}", region="n")
        put(core, f"s{number}", 0, f"p{number}", region="s")
    for number in range(held):  # polls of another region do not look at these heads
        assert take(core, region="n").id == f"n{number}"
    found = core.dequeue(0, "w", 9, {"region": "s"})
    assert (ids(found), found.status) == ([], PollStatus.EMPTY if held < 2 else PollStatus.MORE)
    again = core.dequeue(0, "w", 9, {"region": "s"}).status
    assert again is (PollStatus.EMPTY if held < 4 else PollStatus.MORE)


def test_there_is_more_as_long_as_something_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.providers.priority.core import core as module

    monkeypatch.setattr(module, "STEPS_INLINE_MAX", 1)
    core = opened()
    for number in range(3):
        core.enqueue(0, MessageFields(f"m{number}", b"x", number, invisible_ms=10))
    core.enqueue(0, MessageFields("late", b"x", 9, invisible_ms=11))
    assert core.dequeue(9, "w").status is PollStatus.EMPTY
    # one became due, and two more are due
    assert core.dequeue(10, "w", 5).status is PollStatus.MORE
    assert core.dequeue(10, "w", 5).status is PollStatus.MORE
    # the message due at 11 does not count
    assert core.dequeue(10, "w", 5).status is PollStatus.EMPTY
    assert ids(core.dequeue(11, "w", 5)) == ["late"]


# -- time and sweeping


def test_a_new_queue_begins_at_the_latest_time_that_it_is_told() -> None:
    for now_ms, kept_ms in ((7, 5), (5, 7)):
        counters = Counters(now_ms=kept_ms)
        core = PriorityCore.create(now_ms, "q", QueueSettings(), counters)
        assert core.now_ms == 7


def test_time_never_goes_back() -> None:
    core = opened()
    core.dequeue(5, "w")
    core.dequeue(3, "w")
    assert core.now_ms == 5
    core.sweep(4)
    assert core.now_ms == 5


def test_a_queue_that_is_full_and_blocked_is_blocked() -> None:
    core = opened(QueueSettings(messages_max=1, enqueue_blocked=True))
    refused = core.enqueue_many(
        0, [MessageFields("a", b"x", 0), MessageFields("b", b"x", 0)]
    ).refusals
    assert [one.kind for one in refused] == ["EnqueueBlocked"] * 2
    with pytest.raises(EnqueueBlocked):
        core.enqueue_many(0, [MessageFields("a", b"x", 0), MessageFields("b", b"x", 0)], True)


def test_many_that_come_at_once_come_at_a_time_too() -> None:
    core = opened()
    core.enqueue(0, MessageFields("m", b"x", 0, invisible_ms=5))
    core.enqueue_many(5, [])
    assert core.now_ms == 5 and state(core, "m") is State.PENDING


def test_a_sweep_says_whether_more_is_due_now() -> None:
    core = opened()
    for number in range(3):
        core.enqueue(0, MessageFields(f"m{number}", b"x", number, invisible_ms=10))
    assert core.sweep(9) == (0, False, 10)
    assert core.sweep(10, 2) == (2, True, 10)
    assert core.sweep(10, 2) == (1, False, None)


# -- shards


def test_a_shard_takes_later_settings_and_higher_numbers_only() -> None:
    core = PriorityCore.create(0, "q", SHARDED)
    put(core, "m", project="p")
    first = take(core).token
    core.release(0, "m", first)
    core.drain()
    assert core.adopt(0, SHARDED).version == 1 and core.is_drained
    assert core.adopt(0, SHARDED, first.epoch).version == 1 and core.is_drained
    assert core.adopt(0, replace(SHARDED, layout=6, lease_ms=9)).version == 1 and core.is_drained
    later = core.adopt(3, replace(SHARDED, layout=8), first.epoch + 5)
    assert (later.version, later.settings.layout, core.now_ms) == (2, 8, 3)
    assert take(core).token.epoch == first.epoch + 6


def test_numbers_alone_are_stored_too() -> None:
    core = PriorityCore.create(0, "q", SHARDED)
    core.drain()
    core.adopt(0, SHARDED, 5)
    changes = core.drain()
    assert changes is not None and changes.counters.epoch == 5


@pytest.mark.parametrize(
    ("now_ms", "shards", "layout", "later"),
    [(5, 2, 7, 8), (8, 2, 7, 8), (9, 2, 7, 9), (9, 1, 7, 0)],
)
def test_settled_settings_have_a_later_layout_or_none_with_one_shard(
    now_ms: int, shards: int, layout: int, later: int
) -> None:
    settings = QueueSettings("project", shards=shards, shards_before=3, layout=layout)
    core = PriorityCore.create(0, "q", settings)
    assert core.settle(now_ms, layout + 1).settings == settings
    found = core.settle(now_ms, layout).settings
    assert (found.shards_before, found.layout) == (0, later)
    assert core.settle(now_ms, later).version == 2


# -- settings

RANGES = {
    "limit": (1, 1_000_000),
    "lease_ms_max": (1, YEAR_MS),
    "lease_ms": (1, 100),
    "invisible_ms_max": (0, 10 * YEAR_MS),
    "invisible_ms": (0, 200),
    "attempts_max": (1, 1_000_000),
    "attempts": (1, 5),
    "retention_ms": (1, 10 * YEAR_MS),
    "payload_bytes_max": (0, 16 * 1024 * 1024),
    "messages_max": (1, 1_000_000_000),
    "bytes_max": (1, 2**50),
    "sessions_max": (1, 1_000_000),
    "answers_kept_ms": (1, DAY_MS),
    "shards": (1, SHARDS_MAX),
    "shards_before": (0, SHARDS_MAX),
    "layout": (0, 2**53),
}


@pytest.mark.parametrize("name", RANGES)
def test_settings_are_within_their_limits(name: str) -> None:
    least, most = RANGES[name]
    others = {
        "lease_ms_max": {"lease_ms": 1},
        "invisible_ms_max": {"invisible_ms": 0},
        "attempts_max": {"attempts": 1},
    }.get(name, {"lease_ms_max": 100, "invisible_ms_max": 200, "attempts_max": 5})
    base: dict[str, Any] = {"exclusivity_key": "k", "lease_ms": 1, "attempts": 1, **others}
    for fits in (least, most):
        assert getattr(QueueSettings(**{**base, name: fits}), name) == fits
    for odd in (least - 1, most + 1, least + 0.5, str(least), True, None):
        with pytest.raises(ConfigError, match=f"{name} is .*, not a whole number from {least} to"):
            QueueSettings(**{**base, name: odd})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"exclusivity_key": ""}, "exclusivity_key is ''"),
        ({"exclusivity_key": 7}, "exclusivity_key is 7"),
        ({"exclusivity_key": "\ud800"}, "exclusivity_key is .* not a text of 1 to"),
        ({"enqueue_blocked": 1}, "enqueue_blocked is 1, neither True nor False"),
        ({"dequeue_blocked": None}, "dequeue_blocked is None, neither True nor False"),
        ({"limit": 2}, "limit is 2; without exclusivity_key, 1 at most"),
        ({"shapes": "ab"}, "shapes is 'ab'"),
        ({"shapes": ("ab",)}, "a shape is 'ab'"),
        ({"shapes": ((),)}, "a shape is"),
        ({"shapes": (("a", "b", "c", "d", "e"),)}, "a shape is"),
        ({"shapes": (("a", "a"),)}, "it names a key twice"),
        ({"shapes": (("",),)}, "a key of shapes"),
        ({"shapes": tuple((f"k{n}",) for n in range(SHAPES_MAX + 1))}, "shapes is"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        QueueSettings(**fields)


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"attempts": 0}, "attempts", "is 0, not a whole number from 1 to"),
        ({"exclusivity_key": ""}, "exclusivity_key", "is '', not a text"),
        ({"enqueue_blocked": 1}, "enqueue_blocked", "is 1, neither True nor False"),
        ({"shapes": ((),)}, "shapes", "a shape is"),
        ({"limit": 3}, "limit", "is 3; without exclusivity_key, 1 at most"),
    ],
    ids=["attempts", "exclusivity_key", "enqueue_blocked", "shapes", "limit"],
)
def test_settings_that_are_changed_are_refused_by_queue_and_field(
    changes: dict[str, Any], field: str, text: str
) -> None:
    with pytest.raises(RequestInvalid, match=f"queue 'q': {field} {text}") as caught:
        settings_with("q", QueueSettings(), changes)
    assert (caught.value.queue, caught.value.field) == ("q", field)
    assert settings_with("q", QueueSettings(), {"attempts": 5}) == QueueSettings(attempts=5)


def test_shapes_are_kept_in_order_and_once() -> None:
    given: Any = (["b", "a"], ("a", "b"), ("c",))
    assert QueueSettings(shapes=given).shapes == (("a", "b"), ("c",))
    most: Any = tuple((f"k{n}",) for n in range(SHAPES_MAX))
    assert len(QueueSettings(shapes=most).shapes) == SHAPES_MAX


# -- reads


@pytest.mark.parametrize("shapes", [(), (("region",),)])
def test_what_is_read_is_of_the_state_the_pairs_and_the_value_that_are_asked_for(
    shapes: tuple[tuple[str, ...], ...],
) -> None:
    core = opened(replace(EXCLUSIVE, shapes=shapes))
    for number in range(6):
        put(core, f"m{number}", 9 - number, f"p{number % 2}", region="n" if number < 4 else "s")
    take(core, project="p1")
    read = core.read

    def paged(count: int = 100, **asked: Any) -> list[str]:
        return [one.id for one in read.page(count, **asked)]

    assert paged() == [f"m{number}" for number in range(6)]
    assert paged(2, after=2) == ["m2", "m3"]
    assert paged(after=6) == []
    assert paged(state=State.RUNNING) == ["m5"]
    assert paged(state=State.PENDING, wanted={"region": "s"}) == ["m4"]
    assert paged(wanted={"region": "n", "project": "p0"}) == ["m0", "m2"]
    assert [one.id for one in read.peek(9)] == ["m4"]  # one message of each free value
    assert [one.id for one in read.peek(1, {"region": "n"})] == ["m2"]
    assert read.heads(9) == [5]

    def depth(*asked: Any, **more: Any) -> tuple[int, int]:
        found = read.depth(*asked, **more)
        return found[State.PENDING], found[State.RUNNING]

    assert depth() == (5, 1)
    assert depth({"region": "s"}) == (1, 1)
    assert (depth(value="p1"), depth(value="p0"), depth(value="?")) == ((2, 1), (3, 0), (0, 0))
    assert depth({"region": "n"}, value="p1") == (2, 0)
    values = read.values()
    assert {name: sum(counts.values()) for name, counts in values.items()} == {"p0": 3, "p1": 3}
    assert opened(QueueSettings()).read.parkings() == 0  # a simple queue parks nothing


# -- indexes, timers, and recorded changes


@pytest.mark.parametrize("key", [None, "project"])
@pytest.mark.parametrize(("count", "dropped_at"), [(100, 65), (128, 65), (130, 66), (200, 101)])
def test_what_is_pending_no_more_is_dropped_from_the_index_when_it_outnumbers_the_rest(
    count: int, dropped_at: int, key: str | None
) -> None:
    """Holds for a simple queue and for one value of an exclusive queue."""
    core = opened(QueueSettings(key, limit=1000 if key else 1))
    for number in range(count):
        put(core, f"m{number}", number * 37 % count, "p")
    whole = core._contents.filters.all
    index: Any = whole if isinstance(whole, PlainIndex) else whole.groups["p"]
    order = sorted(range(count), key=lambda number: (number * 37 % count, number))
    for cleared in range(1, dropped_at):
        core.cancel(0, f"m{order[-cleared]}")
        assert (len(index.heap), index.dead) == (count, cleared)
    core.cancel(0, f"m{order[-dropped_at]}")
    assert (len(index.heap), index.dead, index.live) == (count - dropped_at, 0, count - dropped_at)
    found = ids(core.dequeue(0, "w", count, same_value_ok=True))
    assert found == [f"m{number}" for number in order[: count - dropped_at]]


@pytest.mark.parametrize(("count", "kept_after"), [(100, 65), (130, 66), (200, 101), (50, 51)])
def test_timers_that_are_over_are_dropped_when_they_outnumber_the_others(
    count: int, kept_after: int
) -> None:
    core = opened()
    order = random.Random(count).sample(range(count), count)
    for number in order:
        core.enqueue(0, MessageFields(f"m{number}", b"x", 0, invisible_ms=10 + number))
    due = core._contents.due
    for cleared in range(1, min(kept_after, count)):
        core.cancel(0, f"m{count - cleared}")
        assert (len(due.heap), due.dead) == (count, cleared)
    if kept_after <= count:
        core.cancel(0, f"m{count - kept_after}")
        assert (len(due.heap), due.dead) == (count - kept_after, 0)
    for number in range(len(due.heap) - due.dead):
        assert core.next_due_ms() == 10 + number
        assert core.sweep(10 + number).steps == 1
    assert due.next_due_ms() is None


def test_timers_that_are_over_are_counted_down_as_they_come_to_the_head() -> None:
    core = opened()
    for number in range(9):
        core.enqueue(0, MessageFields(f"m{number}", b"x", 0, invisible_ms=10 + number))
    due = core._contents.due
    for number in (1, 2, 4):
        core.cancel(0, f"m{number}")
    core.cancel(0, "m0")  # m0 is the head
    assert (len(due.heap), due.dead) == (8, 3)
    assert due.next_due_ms() == 13 and (len(due.heap), due.dead) == (6, 1)


def test_rows_are_noted_where_nobody_wants_events_and_the_other_way_round() -> None:
    for keeps_rows in (True, False):
        core = PriorityCore.create(
            0, "q", LIMITS, keeps_rows=keeps_rows, keeps_events=not keeps_rows
        )
        core.drain()
        put(core, "m", project="p")
        assert core.count_undrained() == (1, 1 if keeps_rows else 0) and not core.is_drained
        changes = core.drain()
        assert changes is not None and core.is_drained and core.count_undrained() == (0, 0)
        assert (len(changes.events) == 1) is not keeps_rows
        lease = take(core)
        assert core.drain() is not None and core.drain() is None
        core.complete(1, "m", lease.token)
        assert core.drain() is not None
        core.sweep(1 + LIMITS.retention_ms)
        assert core.drain() is not None and not sum(core.read.depth().values())
        put(core, "gone", project="p", at=2 + LIMITS.retention_ms)
        assert core.count_undrained()[0] == 1
        core.drain()
    off = PriorityCore.create(0, "q", LIMITS, keeps_rows=False, keeps_events=False)
    off.drain()
    put(off, "m", project="p")
    assert off.is_drained


def test_a_session_that_ends_takes_its_answers_with_it() -> None:
    """Holds also if neither was stored yet. Events alone record nothing about sessions."""
    settings = QueueSettings(answers_kept_ms=10)
    core = PriorityCore.create(0, "q", settings, keeps_events=False)

    def ask(number: int, at: int) -> None:
        request = Request("s", number, 0)
        core.once(
            at, request, "enqueue", lambda: core.enqueue(at, MessageFields(f"m{number}", b"x", 0))
        )

    ask(1, 0)
    ask(2, 0)
    changes = core.drain()
    assert changes is not None and [one.session for one in changes.sessions] == ["s"]
    assert [one.number for one in changes.answers] == [1, 2]
    ask(3, 5)
    core.sweep(15)
    assert not core.is_drained
    changes = core.drain()
    assert changes is not None and changes.sessions_ended == ("s",)
    assert sorted(changes.answers_ended) == [("s", 1), ("s", 2), ("s", 3)]
    assert not changes.sessions and not changes.answers
    events = PriorityCore.create(0, "q", settings, keeps_rows=False)
    events.once(0, Request("s", 1, 0), "x", lambda: events.enqueue(0, MessageFields("m", b"x", 0)))
    events.drain()
    events.sweep(10)
    assert events.is_drained
