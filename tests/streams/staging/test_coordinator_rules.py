"""A writer's coordinator alone: one event, and all of its changes."""

from __future__ import annotations

from millstream.streams.staging.batch import Manifest
from millstream.streams.staging.coordinator import (
    SILENT_S,
    SWEEP_AFTER_S,
    Abandoned,
    Coordinator,
    EnqueueBatch,
    Gone,
    WriterState,
)


def opened(*attempts: tuple[str, int], once: bool = False) -> Coordinator:
    """Make a coordinator with attempts of these batches, each of part 0, whose state is stored."""
    coordinator = Coordinator(WriterState(), 0.0)
    for name, batch in attempts:
        coordinator.begin(name, batch, 0, 0.0, once=once)
    coordinator.is_changed = False
    return coordinator


def changed(coordinator: Coordinator) -> bool:
    was, coordinator.is_changed = coordinator.is_changed, False
    coordinator.check()
    return was


def manifest(attempt: str) -> Manifest:
    return Manifest(attempt, 0, ["q"], [[2]])


def test_a_decision_drops_what_was_staged_for_it_or_before_it_and_was_not_chosen() -> None:
    coordinator = opened(("early", 1), ("chosen", 3), ("other", 3), ("next", 4))
    for attempt, size in (("early", 5), ("other", 6)):
        coordinator.lease(attempt, size, 0.0)
    assert isinstance(coordinator.commit(3, [manifest("chosen")], 7.0), EnqueueBatch)
    assert coordinator.state.dropped == {"early": 5, "other": 6}
    assert set(coordinator.state.open) == {"chosen", "next"}
    assert coordinator.to_sweep(7.0 + SWEEP_AFTER_S) == ["early", "other"]
    assert coordinator.lease("other", 1, 8.0) == Gone(["other"])


def test_what_was_delivered_may_be_freed_at_once_and_is_swept_later_all_the_same() -> None:
    coordinator = opened(("a", 0))
    coordinator.lease("a", 9, 0.0)
    coordinator.commit(0, [manifest("a")], 0.0)
    assert coordinator.to_free() == [] and coordinator.staged_bytes == 9
    coordinator.on_delivered(0, 5.0)
    assert coordinator.to_free() == ["a"] and coordinator.staged_bytes == 9
    assert changed(coordinator)
    coordinator.on_freed(["a", "unknown"])
    assert changed(coordinator)
    assert coordinator.to_free() == [] and coordinator.staged_bytes == 0
    assert set(coordinator.state.dropped) == {"a"}
    coordinator.on_freed(["unknown"])
    assert not changed(coordinator)
    assert coordinator.to_sweep(5.0 + SWEEP_AFTER_S) == ["a"]


def test_what_is_accepted_while_something_else_is_freed_is_freed_after_it() -> None:
    coordinator = opened(("a", 0), ("b", 1))
    for batch, attempt in enumerate("ab"):
        coordinator.commit(batch, [manifest(attempt)], 0.0)
        coordinator.on_delivered(batch, 0.0)
    coordinator.on_freed(["a"])
    assert coordinator.to_free() == ["b"]


def test_the_end_of_a_batch_of_nothing_is_stored_too() -> None:
    coordinator = opened()
    coordinator.commit(0, [], 0.0)
    assert changed(coordinator)
    coordinator.on_delivered(0, 0.0)
    assert coordinator.state.delivering is None and changed(coordinator)


def test_what_is_dropped_is_stored_and_only_once() -> None:
    coordinator = opened(("a", 0), ("b", 0))
    coordinator.expire(SILENT_S - 1)
    assert not changed(coordinator)
    coordinator.expire(SILENT_S)
    assert changed(coordinator)
    coordinator.expire(SILENT_S)
    coordinator.abort(0, SILENT_S)
    assert not changed(coordinator)


def test_a_writer_has_something_staged_until_it_is_delivered_and_swept() -> None:
    coordinator = opened(("a", 0))
    assert coordinator.state.has_staged
    coordinator.abort(0, 0.0)
    assert coordinator.state.has_staged
    coordinator.on_swept("a")
    assert not coordinator.state.has_staged
    coordinator.commit(0, [], 0.0)
    assert coordinator.state.has_staged
    coordinator.on_delivered(0, 0.0)
    assert not coordinator.state.has_staged


def test_a_writer_that_is_used_once_is_over_when_nothing_is_left_and_nobody_asked_of_late() -> None:
    coordinator = opened(("a", 0), once=True)
    assert not coordinator.is_over(2 * SILENT_S)  # an attempt is open
    assert coordinator.next_due_s() == SILENT_S
    coordinator.abort(0, 10.0)
    coordinator.on_swept("a")
    coordinator.commit(0, [], 20.0)
    assert not coordinator.is_over(2 * SILENT_S)  # a batch is decided, and not delivered
    assert coordinator.next_due_s() is None
    coordinator.on_delivered(0, 30.0)
    assert coordinator.next_due_s() == 20.0 + SILENT_S
    assert not coordinator.is_over(20.0 + SILENT_S - 1)
    assert coordinator.is_over(20.0 + SILENT_S)
    coordinator.begin("late", 0, 0, 25.0)  # one more call
    assert not coordinator.is_over(20.0 + SILENT_S) and coordinator.is_over(25.0 + SILENT_S)


def test_the_silence_of_a_writer_counts_from_when_its_coordinator_was_opened() -> None:
    coordinator = Coordinator(WriterState(once=True), 50.0)
    assert coordinator.next_due_s() == 50.0 + SILENT_S
    assert not coordinator.is_over(50.0 + SILENT_S - 1) and coordinator.is_over(50.0 + SILENT_S)


def test_a_writer_that_may_come_again_is_never_over() -> None:
    coordinator = opened(("a", 0))
    coordinator.abort(0, 0.0)
    coordinator.on_swept("a")
    assert coordinator.next_due_s() is None and not coordinator.is_over(9 * SILENT_S)


def test_giving_a_batch_up_is_stored_once_and_counts_what_was_refused() -> None:
    coordinator = opened(("a", 0))
    coordinator.commit(0, [manifest("a")], 0.0)
    assert changed(coordinator)
    assert coordinator.abandon(1) is None and not changed(coordinator)
    assert isinstance(coordinator.abandon(0), EnqueueBatch) and changed(coordinator)
    assert isinstance(coordinator.abandon(0), EnqueueBatch) and not changed(coordinator)
    coordinator.on_delivered(0, 0.0, refused=1)
    assert coordinator.abandon(0) == Abandoned(0, 1, 1)
    assert coordinator.abandon(1) is None
