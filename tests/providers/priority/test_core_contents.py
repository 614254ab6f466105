"""The parts of a queue's contents together: shapes, timers, available messages, and the check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.providers.priority.test_core_vectors import EXCLUSIVE, SIMPLE, opened, put, take

from millstream.providers.priority import State
from millstream.providers.priority.core.contents import Contents
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.requests.sessions import Request


def contents_of(core: PriorityCore) -> Contents:
    return core._contents


def test_shapes_that_are_named_later_are_built_in_the_background_and_go_again() -> None:
    core = opened(SIMPLE)
    for number in range(5):
        put(core, f"m{number}", region="us")
    assert core.next_due_ms() is None
    core.configure(1, replace(SIMPLE, shapes=(("region",),)))
    assert core.next_due_ms() == 1  # at once
    assert core.sweep(2, 3) == (3, True, 2)
    assert core.sweep(2, 3) == (2, False, None)
    assert list(contents_of(core).filters.shapes) == [("region",)]
    core.configure(3, SIMPLE)
    assert not contents_of(core).filters.shapes


def test_shapes_of_a_queue_s_first_settings_are_there_from_the_start() -> None:
    core = opened(replace(SIMPLE, shapes=(("region",),)))
    put(core, "m", region="us")
    assert list(contents_of(core).filters.shapes) == [("region",)] and core.next_due_ms() is None
    assert contents_of(core).filters.counts((("region", "us"),)) is not None


def test_the_end_of_a_lease_says_that_what_its_value_held_up_can_be_had() -> None:
    core = opened(EXCLUSIVE)
    assert not core.take_available([()])  # counts from here
    put(core, "m1", 1, "p")
    put(core, "m2", 2, "p")
    lease = take(core)
    assert not core.take_available([()])
    core.complete(1, lease.id, lease.token)
    assert dict(core.take_available([()])) == {(("project", "p"),): 1}


@pytest.mark.parametrize("shapes", [(), (("project", "region"),)], ids=["scanned", "shaped"])
def test_the_depth_of_a_value_and_pairs_counts_what_has_all_of_them(
    shapes: tuple[tuple[str, ...], ...],
) -> None:
    core = opened(replace(EXCLUSIVE, shapes=shapes))
    for number, (project, region) in enumerate((("p", "a"), ("p", "z"), ("q", "a"))):
        put(core, f"m{number}", 1, project, region=region)

    def depth(value: str, **wanted: str) -> list[int]:
        return list(core.read.depth(wanted, value=value).values())

    assert sum(depth("p", region="a")) == 1 == sum(depth("p", region="z", project="p"))
    assert set(depth("q", region="z")) == {0} == set(depth("p", project="q"))


def test_a_queue_that_is_not_exclusive_has_no_message_of_a_value() -> None:
    core = opened(SIMPLE)
    put(core, "m", 1, "p", region="a")
    for wanted in ({}, {"region": "a"}, {"project": "p"}):
        assert set(core.read.depth(wanted, value="p").values()) == {0}


def test_what_is_pending_again_can_be_had_again() -> None:
    core = opened(SIMPLE)
    assert not core.take_available([()])  # counts from here
    put(core, "m")
    assert dict(core.take_available([()])) == {(): 1}
    lease = take(core)
    assert not core.take_available([()])
    core.release(1, lease.id, lease.token)
    assert dict(core.take_available([()])) == {(): 1}


@pytest.mark.parametrize("shapes", [(), (("region",),)], ids=["scanned", "shaped"])
def test_the_end_of_a_lease_helps_those_whose_filters_fit_what_it_held_up(
    shapes: tuple[tuple[str, ...], ...],
) -> None:
    us, eu, asia = ((("region", name),) for name in ("us", "eu", "asia"))
    core = opened(replace(EXCLUSIVE, shapes=shapes))
    core.take_available([()])
    for number, region in enumerate(("us", "us", "eu")):
        put(core, f"m{number}", number, "p", region=region)
    lease = take(core)
    core.take_available([()])
    core.complete(1, lease.id, lease.token)
    found = core.take_available([(), eu, asia])
    helped = {one for one in (us, eu, asia) for pairs in found if set(one) <= set(pairs)}
    assert helped == {us, eu}, "the most urgent one, and what is asked for"
    lease = take(core, 1)
    core.complete(1, lease.id, lease.token)
    assert [dict(pairs)["region"] for pairs in core.take_available([()])] == ["eu"]
    lease = take(core, 1)
    core.complete(1, lease.id, lease.token)
    assert not core.take_available([(), eu])


def test_what_is_collected_leaves_no_timer() -> None:
    core = opened(replace(SIMPLE, retention_ms=10))
    for number in range(3):
        put(core, f"m{number}")
        lease = take(core)
        core.complete(number, lease.id, lease.token)
    assert core.sweep(11, 100).steps == 2
    core.check()
    assert core.sweep(12, 100).steps == 1 and core.next_due_ms() is None
    core.check()
    assert not contents_of(core).finished.heap


def more_live(contents: Contents) -> None:
    contents.filters.all.live += 1
    contents.counts[State.PENDING] += 1


def more_held(contents: Contents) -> None:
    assert contents.holds is not None
    contents.holds.hold("p")


def more_dead(contents: Contents) -> None:
    contents.due.dead += 1


def more_finished(contents: Contents) -> None:
    contents.finished.heap.append(1)


def more_ids(contents: Contents) -> None:
    contents.by_id["m3"] = contents.by_id["m2"]


def more_attempts(contents: Contents) -> None:
    contents.by_id["m2"].attempts_left += 10_000


@pytest.mark.parametrize(
    "wrong", [more_live, more_held, more_dead, more_finished, more_ids, more_attempts]
)
def test_a_check_sees_what_is_wrong_in_any_part(wrong: Callable[[Contents], None]) -> None:
    core = opened(EXCLUSIVE)
    put(core, "m1", 1, "p")
    put(core, "m2", 2, "p")
    take(core)
    core.check()
    wrong(contents_of(core))
    with pytest.raises(AssertionError):
        core.check()


def test_a_check_looks_at_sessions_too() -> None:
    core = opened()
    put(core, "m")
    core.once(0, Request("s", 1), "dequeue", lambda: core.dequeue(0, "w"))
    core.check()
    core.sessions.sessions["s"].acknowledged = 1  # acknowledged answers must be forgotten
    with pytest.raises(AssertionError):
        core.check()
