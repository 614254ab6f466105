"""The costs of operations, in counted steps."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
from tests.providers.priority import test_core_vectors as vectors
from tests.providers.priority.row_store import RowStore

from millstream.providers.priority import QueueSettings, State
from millstream.providers.priority.core import changes
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.index import grouped, plain
from millstream.providers.priority.core.results import PollStatus

GROUPS = 20_000


class Counter:
    """Counts the calls of a heap function."""

    def __init__(self, act: Any) -> None:
        self.act, self.count = act, 0

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        return self.act(*args)


@pytest.fixture
def pops(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter(heapq.heappop)
    monkeypatch.setattr(grouped, "heappop", counter)
    monkeypatch.setattr(plain, "heappop", counter)
    return counter


def held_groups(count: int) -> PriorityCore:
    """Make two messages for each of `count` values, and lease the first one of each."""
    settings = QueueSettings("project", shapes=(("region",),))
    core = PriorityCore.create(0, "q", settings, keeps_rows=False, keeps_events=False)
    for number in range(count):
        metadata = {"project": f"p{number}", "region": "us"}
        for name in ("a", "b"):
            core.enqueue(0, MessageFields(f"{name}{number}", b"", number, metadata))
    for _ in range(count // 1_000):
        assert len(core.dequeue(1, "w", 1_000).leases) == 1_000
    return core


@pytest.mark.spare
def test_polls_of_a_blocked_queue_meet_each_held_value_once(pops: Counter) -> None:
    core = held_groups(GROUPS)
    before, pops.count = core.read.parkings(), 0
    wanted = {"region": "us"}
    for _ in range(1_000):
        assert not core.dequeue(2, "w", 1).leases
        assert not core.dequeue(2, "w", 1, wanted).leases
    assert core.read.parkings() - before <= 2 * GROUPS
    assert pops.count <= 2 * GROUPS
    pops.count = 0
    for _ in range(1_000):
        assert core.dequeue(2, "w", 1, wanted).status is PollStatus.EMPTY
    assert pops.count == 0


def test_what_the_end_of_a_lease_tells_who_waits_is_not_looked_up_message_by_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = vectors.opened(QueueSettings("project", shapes=(("region",),)))
    foo = {"project": "foo", "region": "us"}
    for number in range(2_000):
        core.enqueue(0, MessageFields(f"m{number}", b"", number, foo))
    core.enqueue(0, MessageFields("other", b"", 10**6, {**foo, "region": "eu"}))
    us, eu, asia = ((("region", name),) for name in ("us", "eu", "asia"))
    core.take_available([()])
    is_pending, looks = grouped.GroupedIndex.is_pending, 0

    def counted(self: grouped.GroupedIndex, key: int) -> bool:
        nonlocal looks
        looks += 1
        return is_pending(self, key)

    monkeypatch.setattr(grouped.GroupedIndex, "is_pending", counted)
    for at in range(1, 101):
        (lease,) = core.dequeue(at, "w").leases
        core.complete(at, lease.id, lease.token)
        found = core.take_available([(), us, eu, asia])
        assert set(found) == {tuple(sorted(foo.items())), us, eu}
    assert looks <= 2_000  # a few for each lease and its end


@pytest.mark.spare
def test_a_crowd_of_a_held_value_ahead_costs_one_parking() -> None:  # C16.9
    core = vectors.opened(QueueSettings("project", shapes=(("region",),)))
    foo = {"project": "foo", "region": "us"}
    for start in range(0, 20_000, 1_000):
        ahead = range(start, start + 1_000)
        core.enqueue_many(0, [MessageFields(f"m{number}", b"", number, foo) for number in ahead])
    core.dequeue(0, "w")
    core.enqueue(0, MessageFields("last", b"", 10**6, {"project": "bar", "region": "us"}))
    before = core.read.parkings()
    (lease,) = core.dequeue(1, "w", 1, {"region": "us"}).leases
    assert lease.id == "last"
    for _ in range(10):
        assert core.dequeue(1, "w", 1, {"region": "us"}).status is PollStatus.EMPTY
    assert core.read.parkings() - before <= 1


def test_a_step_that_met_many_held_values_goes_on_with_the_next() -> None:  # C9.18, C16.10
    core = vectors.opened(QueueSettings("project", limit=2))
    for name in ("a", "b"):
        projects = ((number, {"project": str(number)}) for number in range(1_000))
        core.enqueue_many(
            0, [MessageFields(f"{name}{n}", b"", n, project) for n, project in projects]
        )
    assert len(core.dequeue(0, "w", 1_000).leases) == 1_000
    core.configure(0, QueueSettings("project", limit=1))
    core.enqueue(0, MessageFields("free", b"", 9_999, {"project": "free"}))
    first = core.dequeue(1, "w")
    assert (first.leases, first.status, core.read.parkings()) == ((), PollStatus.MORE, 512)
    assert [lease.id for lease in core.dequeue(1, "w").leases] == ["free"]
    assert core.dequeue(1, "w").status is PollStatus.EMPTY


def test_dead_entries_never_outnumber_the_live_ones_by_much() -> None:
    core = PriorityCore.create(0, "q", QueueSettings(retention_ms=1))
    for round_ in range(0, 40, 2):
        for number in range(500):
            core.enqueue(round_, MessageFields(f"m{number}", b"", number))
        for number in range(500):
            core.prioritise(round_, f"m{number}", -number)
            core.cancel(round_, f"m{number}")
        core.sweep(round_ + 1, 1_000)
        core.check()
    contents = core._contents
    assert not contents.by_id and len(contents.filters.all.messages) == 0
    assert len(contents.due.heap) + len(contents.finished.heap) < 200


def test_an_order_that_is_made_anew_within_a_batch_has_all_it_skipped_once() -> None:
    core = PriorityCore.create(0, "q", QueueSettings("project", limit=2))
    bodies = [("twice", 0), ("twice", 1), *((f"single{number}", 2) for number in range(5))]
    bodies += [("p0", 6_000), ("p0", 5_000)]
    bodies += [(f"p{n}", p - n) for n in range(100) for p in (4_000, 3_000)]
    for number, (project, priority) in enumerate(bodies):
        core.enqueue(0, MessageFields(f"m{number}", b"", priority, {"project": project}))
    filters = core._contents.filters
    assert isinstance(filters.all, grouped.GroupedIndex) and filters.all.dead == 102
    leases = core.dequeue(0, "w", 7).leases
    assert [lease.id for lease in leases] == ["m0", "m2", "m3", "m4", "m5", "m6", "m208"]
    assert filters.all.dead < 100, "it was made anew"
    core.check()
    after = [lease.id for lease in core.dequeue(0, "w", 50).leases]
    assert after == ["m1", *(f"m{10 + 2 * n}" for n in range(98, 49, -1))]


def test_extensions_do_not_pile_up() -> None:
    core = PriorityCore.create(0, "q", QueueSettings())
    core.enqueue(0, MessageFields("a", b"", 0))
    (lease,) = core.dequeue(0, "w").leases
    for now in range(1, 2_000):
        core.extend(now, "a", lease.token)
        assert len(core._contents.due.heap) < 200


def test_leases_that_end_in_their_order_leave_no_timers() -> None:
    core = PriorityCore.create(0, "q", QueueSettings())
    for number in range(1_000):
        core.enqueue(0, MessageFields(f"m{number}", b"", number))
    for lease in core.dequeue(0, "w", 1_000).leases:
        core.complete(1, lease.id, lease.token)
    assert not core._contents.due.heap


def test_what_came_and_went_between_two_drains_is_not_stored() -> None:
    core, store = PriorityCore.create(0, "q", QueueSettings(retention_ms=1)), RowStore()
    for now in (0, 10):
        core.enqueue(now, MessageFields("a", b"", now))
        core.cancel(now, "a")
        core.sweep(now + 1)
        store.apply(core.drain())
        assert not store.messages
        core.enqueue(now + 1, MessageFields("b", b"", now))
        store.apply(core.drain())
        core.cancel(now + 1, "b")
        core.sweep(now + 2)
        core.enqueue(now + 2, MessageFields("b", b"new", now))
        store.apply(core.drain())
        assert store.messages["b"].payload == b"new"
        core.cancel(now + 2, "b")
        core.sweep(now + 3)
        store.apply(core.drain())
    assert len(store.events) == 18


def test_what_nobody_asked_for_is_not_recorded() -> None:
    core = PriorityCore.create(0, "q", QueueSettings(), keeps_rows=False, keeps_events=False)
    core.drain()
    core.enqueue(0, MessageFields("a", b"", 0))
    assert core.drain() is None


def test_a_poll_that_gives_nothing_changes_nothing() -> None:
    core = PriorityCore.create(0, "q", QueueSettings())
    core.drain()
    core.dequeue(5, "w")
    assert core.drain() is None


def test_a_payload_is_stored_once_and_rows_once_a_drain() -> None:
    core, store = PriorityCore.create(0, "q", QueueSettings()), RowStore()
    core.enqueue(0, MessageFields("a", b"x", 0))
    core.enqueue(0, MessageFields("b", b"x", 1))
    core.dequeue(0, "w")
    found = core.drain()
    assert found is not None and not found.updated
    assert [State(row.state) for row in found.inserted] == [State.RUNNING, State.PENDING]
    assert len(found.events) == 3
    store.apply(found)
    core.prioritise(1, "b", 2)
    again = core.drain()
    assert again is not None and [row.id for row in again.updated] == ["b"]
    assert isinstance(again.updated[0], changes.MessageRow)
