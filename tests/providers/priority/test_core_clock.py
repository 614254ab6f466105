"""Setting the time of a queue's contents: each wait keeps its length, and tokens rise."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.providers.priority import QueueSettings, State
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.changes import Counters
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.message import Step
from millstream.providers.priority.core.requests.sessions import Request

START_MS = 1_700_000_000_000


def core_at(now_ms: int, queue_settings: QueueSettings) -> PriorityCore:
    """Make a queue with a message in each state, and a session."""
    core = PriorityCore.create(now_ms, "q", queue_settings)
    for at, id in enumerate(("running", "done", "given up", "pending")):
        core.enqueue(now_ms, MessageFields(id, b"x", at))
    core.enqueue(now_ms, MessageFields("later", b"x", 9, invisible_ms=30_000))
    leases = core.dequeue(now_ms, "w", 3).leases
    core.complete(now_ms, "done", leases[1].token)
    core.once(
        now_ms, Request("s", 1), "fail", lambda: core.fail(now_ms, "given up", leases[2].token)
    )
    core.drain()
    return core


@given(st.integers(0, 59_000), st.integers(-START_MS // 2, START_MS))
@settings(max_examples=examples(100))
def test_a_reset_leaves_each_wait_as_long_as_it_was(passed_ms: int, step_ms: int) -> None:
    passed_ms = min(passed_ms, 29_999)
    core = core_at(START_MS, QueueSettings(answers_kept_ms=50_000, retention_ms=40_000))
    core.sweep(START_MS + passed_ms)
    before = {view.id: view for view in core.read.page()}
    core.set_clock(START_MS + passed_ms + step_ms)
    core.check()
    for view in core.read.page():
        is_waiting = view.state is not State.PENDING
        assert view.due_ms == before[view.id].due_ms + step_ms * is_waiting
        assert view.version == before[view.id].version + is_waiting
    next_ms = core.next_due_ms()
    assert next_ms == START_MS + 30_000 + step_ms
    changes = core.drain()
    assert changes is not None and changes.counters.now_ms == START_MS + passed_ms + step_ms
    assert [event.step for event in changes.events] == [Step.CLOCK] * 4
    assert [row.used_ms for row in changes.sessions] == [START_MS + step_ms]
    core.sweep(START_MS + step_ms + 60_000)
    core.check()
    assert {view.id for view in core.read.page()} == {"running", "pending", "later"}
    assert all(view.state is State.PENDING for view in core.read.page())


def test_what_was_due_long_before_the_clock_was_set_back_is_due_at_once() -> None:
    core = core_at(START_MS, QueueSettings())
    core.sweep(START_MS + 10**9, 0)  # its time has advanced, but no due work was done
    core.set_clock(5)
    core.check()
    dues = {view.id: view.due_ms for view in core.read.page()}
    assert dues["running"] == dues["later"] == 1
    core.sweep(6)
    assert {view.state for view in core.read.page() if view.due_ms == 0} == {State.PENDING}


def test_how_far_the_time_is_ahead_is_kept_for_the_next_owner_until_it_is_set() -> None:
    core = PriorityCore.create(START_MS, "q", QueueSettings())
    core.drain()
    assert core.drain() is None
    core.set_ahead(700)
    changes = core.drain()
    assert changes is not None and changes.counters.ahead_ms == core.ahead_ms == 700
    core.set_clock(START_MS)
    changes = core.drain()
    assert changes is not None and changes.counters.ahead_ms == core.ahead_ms == 0


def test_the_next_queue_of_a_name_goes_on_with_all_counters_but_the_time() -> None:
    assert Counters(1, 2, 3, 4, 5).of_next() == Counters(1, 2, 3)


def test_layouts_rise_over_a_reset_and_over_a_deletion() -> None:
    core = PriorityCore.create(START_MS, "q", QueueSettings())
    high = core.configure(START_MS, QueueSettings(shards=2)).settings.layout
    core.set_clock(5)
    settled = core.settle(6, high).settings.layout
    again = PriorityCore.create(7, "q", QueueSettings(), core.counters().of_next())
    assert high == START_MS < settled < again.configure(8, QueueSettings(shards=2)).settings.layout


def test_layouts_rise_over_those_that_a_queue_was_made_or_loaded_with() -> None:
    made = PriorityCore.create(5, "q", QueueSettings(shards=2, layout=900))
    assert made.counters().layout == 900
    assert made.configure(6, QueueSettings(shards=3)).settings.layout == 901
    assert made.settle(7, 901).settings.layout == 902
    assert made.counters().layout == 902
