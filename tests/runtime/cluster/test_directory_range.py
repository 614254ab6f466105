"""The directory's range as a pure core: its invariants under random events, and clusters of ranges.

The messages of these clusters arrive in any order, late, or not at all.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.runtime.cluster.directory_world import World

from millstream.runtime import MemberRow, Status, TableView
from millstream.runtime.cluster.directory.events import (
    Ask,
    EndDuplicate,
    Failed,
    GiveUp,
    Lookup,
    NotReached,
    QuestionReceived,
    Refresh,
    Register,
    Rows,
    SendAnswer,
    SurvivorsAsked,
    Sweep,
    Swept,
    Told,
    Unregister,
    ViewApplied,
    Withdrawn,
)
from millstream.runtime.cluster.directory.partition import Entry
from millstream.runtime.cluster.directory.range import (
    SWEPT_ENTRIES_MAX,
    WRONG_ANSWERS_MAX,
    DirectoryRange,
    point_of,
)
from millstream.runtime.cluster.ring import HASH_MAX, Segment, covers, within

ME, OTHER, THIRD = "me:1@1", "other:1@2", "third:1@3"
ACTIVE, STOPPING, DEAD = Status.ACTIVE, Status.STOPPING, Status.DEAD


def view(version: int, **statuses: Status) -> TableView:
    names = {"me": ME, "other": OTHER, "third": THIRD}
    return TableView(version, tuple(MemberRow(names[n], s) for n, s in statuses.items()))


def asks(actions: list[Any]) -> list[Ask]:
    return [action for action in actions if isinstance(action, Ask)]


def hear_all(core: DirectoryRange, actions: list[Any]) -> list[Any]:
    """Let every survivor that is asked tell that it has no grains, and return the actions."""
    return [a for ask in asks(actions) for a in core.step(Told(ask.silo, ask.round))]


def owning(*others: str, version: int = 5) -> DirectoryRange:
    """Return a core that owns its part of a ring of active silos, without locks."""
    core = DirectoryRange(ME)
    rows = tuple(MemberRow(silo, ACTIVE) for silo in (ME, *others))
    hear_all(core, core.step(ViewApplied(TableView(version, rows))))
    assert not core.is_locked
    return core


def key_of(core: DirectoryRange, silo: str, start: int = 0) -> str:
    """Return a key that the silo owns."""
    return next(k for k in map(str, range(start, 10_000)) if core.owner_of("K", k) == silo)


def register(core: DirectoryRange, key: str, silo: str, number: int, version: int = 0) -> Any:
    [action] = core.step(QuestionReceived(1, Register("K", key, silo, number), version))
    assert isinstance(action, SendAnswer)
    return action.entry


def lookup(core: DirectoryRange, key: str) -> Entry | None:
    [action] = core.step(QuestionReceived(1, Lookup("K", key), 0))
    assert isinstance(action, SendAnswer)
    return action.entry


# --- whole clusters ------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.3]))
@settings(max_examples=examples(150))
def test_no_grain_is_valid_twice_whatever_the_order_of_views_and_messages(
    seed: int, losses: float
) -> None:
    world = World(seed, losses)
    for _ in range(150):
        world.turn()
    world.settle()
    for silo in world.silos.values():
        assert not silo.range.is_locked
        assert not silo.waiting
        assert all(held.version for held in silo.held.values())


def test_the_random_worlds_do_what_they_are_to_show() -> None:
    worlds = [World(seed) for seed in range(20)]
    for world in worlds:
        for _ in range(150):
            world.turn()
        world.settle()
    assert sum(world.most_valid for world in worlds) >= 15
    assert sum(world.replies for world in worlds) > 200
    assert sum(len(world.views) for world in worlds) > 200


# --- gaining -------------------------------------------------------------------------------------


def test_a_gained_range_is_locked_until_every_member_has_told_what_it_has() -> None:
    core = DirectoryRange(ME)
    wanted = core.step(ViewApplied(view(5, me=ACTIVE, other=ACTIVE, third=STOPPING)))
    assert [ask.silo for ask in asks(wanted)] == [ME, OTHER, THIRD]
    key = key_of(core, ME)
    assert core.step(QuestionReceived(7, Lookup("K", key), 5)) == []
    assert core.step(Told(ME, 5)) == []
    assert core.step(Rows(THIRD, 5, [("K", key, 3, 4)])) == []
    assert core.step(Told(THIRD, 5)) == []
    assert core.is_locked
    assert core.step(Told(OTHER, 5)) == [SendAnswer(7, Entry(THIRD, 3, 4))]
    assert not core.is_locked


def test_a_member_that_leaves_the_view_is_waited_for_no_more() -> None:
    core = DirectoryRange(ME)
    wanted = core.step(ViewApplied(view(5, me=ACTIVE, other=ACTIVE)))
    key = key_of(core, ME)
    core.step(Told(ME, 5))
    assert core.step(QuestionReceived(7, Lookup("K", key), 5)) == []
    after = core.step(ViewApplied(view(6, me=ACTIVE, other=DEAD)))
    hear_all(core, after)
    assert not core.is_locked
    assert lookup(core, key) is None
    assert core.step(Told(asks(wanted)[1].silo, 5)) == []  # the answer is too late


def test_a_range_that_is_lost_while_it_is_gained_is_answered_at_once() -> None:
    core = DirectoryRange(ME)
    core.step(ViewApplied(view(5, me=ACTIVE, other=ACTIVE)))
    key = key_of(core, ME)
    core.step(QuestionReceived(7, Lookup("K", key), 5))
    assert core.step(ViewApplied(view(6, me=STOPPING, other=ACTIVE))) == [
        SendAnswer(7, Entry("", 0, 6))
    ]
    assert not core.is_locked


def test_a_silo_that_skipped_views_recovers_all_that_it_owns() -> None:
    core = owning(OTHER, version=5)
    key = key_of(core, ME)
    register(core, key, ME, 1)
    wanted = asks(core.step(ViewApplied(view(7, me=ACTIVE, other=ACTIVE))))
    assert {ask.silo for ask in wanted} == {ME, OTHER}
    assert covers(wanted[0].segments, point_of("K", key))
    core.step(Rows(OTHER, 7, [("K", key, 9, 6)]))  # registered at the owner in between
    hear_all(core, wanted)
    assert lookup(core, key) == Entry(OTHER, 9, 6)


def test_the_next_view_with_the_same_ring_locks_nothing() -> None:
    core = owning(OTHER, version=5)
    assert core.step(ViewApplied(view(6, me=ACTIVE, other=ACTIVE, third=STOPPING))) == []
    assert not core.is_locked


def test_before_its_first_view_a_range_owns_nothing_and_waits_for_one() -> None:
    core = DirectoryRange(ME)
    assert not core.is_alone and not core.is_locked
    assert core.version == 0 and core.barrier == 0
    assert core.owner_of("K", "k") is None
    assert core.is_current(0)
    assert lookup(core, "k") == Entry("", 0, 0)
    assert core.step(QuestionReceived(7, Lookup("K", "k"), 1)) == [Refresh(1)]
    assert [ask.after_s for ask in asks(core.step(ViewApplied(view(1, me=ACTIVE))))] == [0.0]
    assert core.step(Told(ME, 1)) == [SendAnswer(7, None)]


def test_an_older_or_equal_view_changes_nothing() -> None:
    core = owning(OTHER, version=5)
    assert core.step(ViewApplied(view(5, me=ACTIVE))) == []
    assert core.step(ViewApplied(view(4, me=ACTIVE))) == []
    assert core.version == 5 and not core.is_alone


def test_only_what_was_gained_is_locked() -> None:
    core = owning(OTHER, version=5)
    mine, others = key_of(core, ME), key_of(core, OTHER)
    core.step(ViewApplied(view(6, me=ACTIVE, other=DEAD)))
    assert lookup(core, mine) is None
    assert core.step(QuestionReceived(7, Lookup("K", others), 6)) == []


def test_two_ranges_gained_one_after_the_other_are_recovered_each_for_itself() -> None:
    core = owning(OTHER, THIRD, version=5)
    of_other, of_third = key_of(core, OTHER), key_of(core, THIRD)
    first = core.step(ViewApplied(view(6, me=ACTIVE, other=DEAD, third=ACTIVE)))
    if core.owner_of("K", of_other) != ME:
        of_other = next(
            k
            for k in map(str, range(10_000))
            if core.owner_of("K", k) == ME and covers(asks(first)[0].segments, point_of("K", k))
        )
    core.step(Told(ME, 6))
    second = core.step(ViewApplied(view(7, me=ACTIVE, other=DEAD, third=DEAD)))
    assert [ask.round for ask in asks(second)] == [7]
    assert lookup(core, of_other) is None  # its last survivor is dead, so nothing more can be told
    assert core.step(QuestionReceived(9, Lookup("K", of_third), 7)) == []
    assert hear_all(core, second) == [SendAnswer(9, None)]


def test_after_a_skipped_view_older_recoveries_are_waited_for_no_more() -> None:
    core = DirectoryRange(ME)
    core.step(ViewApplied(view(5, me=ACTIVE, other=ACTIVE)))
    hear_all(core, core.step(ViewApplied(view(8, me=ACTIVE, other=ACTIVE))))
    assert not core.is_locked


# --- survivors that fail -------------------------------------------------------------------------


def test_a_member_that_cannot_be_reached_is_asked_again_ever_more_slowly() -> None:
    core = DirectoryRange(ME)
    core.step(ViewApplied(view(5, me=ACTIVE, other=ACTIVE)))
    pauses = []
    for _ in range(100):
        [ask] = core.step(Failed(OTHER, 5, is_wrong=False))
        assert isinstance(ask, Ask) and ask.silo == OTHER and ask.round == 5
        pauses.append(ask.after_s)
    assert pauses[:7] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64]
    assert pauses[7:] == [1.0] * 93
    assert core.is_locked


def test_a_member_that_only_answers_with_errors_does_not_lock_the_range_for_ever() -> None:
    core = DirectoryRange(ME)
    core.step(ViewApplied(view(5, me=ACTIVE, other=ACTIVE)))
    core.step(Told(ME, 5))
    key = key_of(core, ME)
    core.step(QuestionReceived(7, Lookup("K", key), 5))
    for _ in range(WRONG_ANSWERS_MAX - 1):
        [ask] = core.step(Failed(OTHER, 5, is_wrong=True))
        assert isinstance(ask, Ask)
    assert core.step(Failed(OTHER, 5, is_wrong=True)) == [GiveUp(OTHER, 5), SendAnswer(7, None)]
    assert core.step(Failed(OTHER, 5, is_wrong=True)) == []


def test_what_is_told_for_an_older_round_is_not_taken() -> None:
    core = owning(OTHER, version=5)
    key = key_of(core, ME)
    core.step(Rows(OTHER, 5, [("K", key, 9, 4)]))
    assert lookup(core, key) is None
    wanted = core.step(ViewApplied(view(7, me=ACTIVE, other=ACTIVE)))
    core.step(Rows(OTHER, 5, [("K", key, 9, 4)]))
    core.step(Told(OTHER, 5))
    assert core.is_locked
    hear_all(core, wanted)
    assert lookup(core, key) is None


def test_an_activation_that_ended_while_the_range_was_locked_is_not_recovered() -> None:
    core = DirectoryRange(ME)
    wanted = core.step(ViewApplied(view(5, me=ACTIVE, other=ACTIVE)))
    key = key_of(core, ME)
    core.step(Unregister("K", key, OTHER, 9))
    core.step(Rows(OTHER, 5, [("K", key, 9, 4)]))
    hear_all(core, wanted)
    assert lookup(core, key) is None


def test_of_two_activations_the_older_registration_ends() -> None:
    core = DirectoryRange(ME)
    core.step(ViewApplied(view(5, me=ACTIVE, other=ACTIVE, third=ACTIVE)))
    key = key_of(core, ME)
    assert core.step(Rows(OTHER, 5, [("K", key, 9, 4)])) == []
    [end] = core.step(Rows(THIRD, 5, [("K", key, 2, 3)]))
    assert end == EndDuplicate("K", key, Entry(THIRD, 2, 3))


def test_an_activation_of_a_dead_silo_needs_not_to_be_ended() -> None:
    core = owning(OTHER, version=5)
    key = key_of(core, ME)
    register(core, key, OTHER, 9)
    core.step(ViewApplied(view(7, me=ACTIVE, other=DEAD, third=ACTIVE)))
    assert core.step(Rows(ME, 7, [("K", key, 2, 6)])) == []


def test_rows_outside_of_the_gained_range_are_not_taken() -> None:
    core = owning(OTHER, version=5)
    mine = key_of(core, ME)
    wanted = core.step(ViewApplied(view(6, me=ACTIVE, other=DEAD, third=STOPPING)))
    core.step(Rows(THIRD, 6, [("K", mine, 9, 9)]))
    hear_all(core, wanted)
    assert lookup(core, mine) is None


# --- questions -----------------------------------------------------------------------------------


def test_a_question_from_a_newer_view_waits_for_that_view() -> None:
    core = owning(version=5)
    assert core.step(QuestionReceived(7, Lookup("K", "k"), 6)) == [Refresh(6)]
    assert core.step(QuestionReceived(8, Lookup("K", "k"), 9)) == [Refresh(9)]
    answers = hear_all(core, core.step(ViewApplied(view(6, me=ACTIVE)))) or []
    assert answers == []
    assert not core.is_locked
    assert core.step(Withdrawn(8)) == []


def test_a_view_that_was_waited_for_answers_what_it_can() -> None:
    core = owning(version=5)
    core.step(QuestionReceived(7, Lookup("K", "k"), 6))
    core.step(QuestionReceived(8, Lookup("K", "k"), 9))
    assert core.step(ViewApplied(view(6, me=ACTIVE))) == [SendAnswer(7, None)]


def test_a_view_that_cannot_be_reached_is_no_reason_to_wait_for_ever() -> None:
    core = owning(version=5)
    core.step(QuestionReceived(7, Lookup("K", "k"), 6))
    core.step(QuestionReceived(8, Lookup("K", "k"), 9))
    assert core.step(NotReached(6)) == [SendAnswer(7, Entry("", 0, 5))]
    assert core.step(NotReached(9)) == [SendAnswer(8, Entry("", 0, 5))]


def test_a_question_that_was_withdrawn_is_not_answered_and_registers_nobody() -> None:
    core = DirectoryRange(ME)
    wanted = core.step(ViewApplied(view(5, me=ACTIVE, other=ACTIVE)))
    key = key_of(core, ME)
    core.step(QuestionReceived(7, Register("K", key, OTHER, 1), 5))
    core.step(Withdrawn(7))
    assert hear_all(core, wanted) == []
    assert lookup(core, key) is None


def test_questions_about_one_grain_are_answered_in_their_order() -> None:
    core = DirectoryRange(ME)
    wanted = core.step(ViewApplied(view(5, me=ACTIVE, other=ACTIVE, third=ACTIVE)))
    key = key_of(core, ME)
    core.step(QuestionReceived(7, Register("K", key, OTHER, 1), 5))
    core.step(QuestionReceived(8, Register("K", key, THIRD, 1), 5))
    first = Entry(OTHER, 1, 5)
    assert hear_all(core, wanted) == [SendAnswer(7, first), SendAnswer(8, first)]


def test_who_is_not_in_the_view_is_not_registered_and_not_named() -> None:
    core = owning(OTHER, version=5)
    key = key_of(core, ME)
    assert register(core, key, THIRD, 1) == Entry("", 0, 5)
    assert register(core, key, OTHER, 1) == Entry(OTHER, 1, 5)
    wanted = core.step(ViewApplied(view(6, me=ACTIVE, other=DEAD)))
    assert lookup(core, key) is None  # not swept yet, but not named either
    assert register(core, key, ME, 4) == Entry(ME, 4, 6)
    hear_all(core, wanted)
    assert lookup(core, key) == Entry(ME, 4, 6)


def test_the_check_of_the_invariants_sees_a_question_that_could_be_answered() -> None:
    core = owning(version=5)
    core.check()
    core._waiting[7] = QuestionReceived(7, Lookup("K", "k"), 5)
    with pytest.raises(AssertionError, match="could be answered"):
        core.check()


def test_a_grain_of_another_owner_is_not_answered_for() -> None:
    core = owning(OTHER, version=5)
    assert lookup(core, key_of(core, OTHER)) == Entry("", 0, 5)


def test_the_barrier_only_rises_and_is_itself_new_enough() -> None:
    core = owning(version=5)
    core.step(SurvivorsAsked(9))
    core.step(SurvivorsAsked(7))
    assert [core.is_current(version) for version in (8, 9, 10)] == [False, True, True]


def test_a_silo_is_alone_only_when_nobody_else_has_grains_and_nothing_is_recovered() -> None:
    core = DirectoryRange(ME)
    wanted = core.step(ViewApplied(view(5, me=ACTIVE, other=STOPPING)))
    assert not core.is_alone
    hear_all(core, wanted)
    assert not core.is_alone  # the other silo still has grains and running turns
    core.step(ViewApplied(view(6, me=ACTIVE, other=DEAD)))
    assert core.is_alone
    assert core.register_here("K", "k", 3) == 6
    assert lookup(core, "k") == Entry(ME, 3, 6)
    core = DirectoryRange(ME)
    core.step(ViewApplied(view(5, me=ACTIVE)))
    assert not core.is_alone  # the silo has not told its own grains yet


def test_a_silo_that_a_newcomer_has_asked_is_alone_no_more_whatever_its_view_says() -> None:
    core = owning(version=5)
    assert core.is_alone
    core.step(SurvivorsAsked(6))
    assert not core.is_alone


# --- sweeping ------------------------------------------------------------------------------------


def test_entries_of_the_dead_and_of_lost_ranges_are_swept_in_slices() -> None:
    core = owning(OTHER, version=5)
    mine = [k for k in map(str, range(9_000)) if core.owner_of("K", k) == ME]
    assert len(mine) > 2 * SWEPT_ENTRIES_MAX
    for number, key in enumerate(mine):
        register(core, key, OTHER if number % 2 else ME, number + 1)
    [sweep] = [
        a
        for a in core.step(ViewApplied(view(6, me=ACTIVE, other=DEAD, third=ACTIVE)))
        if isinstance(a, Sweep)
    ]
    slices = 0
    left = [sweep]
    while left:
        slices += 1
        before = count(core)
        left = core.step(Swept())  # type: ignore[assignment]
        assert before - count(core) <= SWEPT_ENTRIES_MAX
    assert slices == -(-len(mine) // SWEPT_ENTRIES_MAX)
    kept = {key for _, keys in core._partition.keys() for key in keys}
    assert kept == {k for k in mine[::2] if core.owner_of("K", k) == ME}
    assert core.step(Swept()) == []


def test_a_view_during_a_sweep_begins_it_anew_and_starts_no_second_one() -> None:
    core = owning(OTHER, version=5)
    key = key_of(core, ME)
    register(core, key, OTHER, 1)
    first = core.step(ViewApplied(view(6, me=ACTIVE, other=ACTIVE, third=ACTIVE)))
    assert any(isinstance(action, Sweep) for action in first)
    second = core.step(ViewApplied(view(7, me=ACTIVE, other=DEAD, third=ACTIVE)))
    assert not any(isinstance(action, Sweep) for action in second)
    assert core.step(Swept()) == []
    assert count(core) == 0


def test_a_sweep_goes_through_every_grain_type() -> None:
    core = owning(OTHER, version=5)
    for kind in ("A", "B", "C"):
        foreign = next(k for k in map(str, range(10_000)) if core.owner_of(kind, k) == ME)
        core.step(QuestionReceived(1, Register(kind, foreign, OTHER, 1), 0))
    key = key_of(core, ME)
    register(core, key, ME, 1)
    core.step(ViewApplied(view(6, me=ACTIVE, other=DEAD)))
    assert [core.step(Swept()) for _ in range(4)] == [[Sweep()], [Sweep()], [Sweep()], []]
    assert core._partition.keys() == [("K", [key])]


def test_a_view_that_nobody_left_sweeps_nothing() -> None:
    core = owning(OTHER, version=5)
    register(core, key_of(core, ME), ME, 1)
    assert core.step(ViewApplied(view(6, me=ACTIVE, other=ACTIVE))) == []
    assert core.step(Swept()) == []


def test_entries_of_a_silo_that_stopped_are_swept_when_it_is_gone() -> None:
    core = owning(OTHER, version=5)
    register(core, key_of(core, ME), OTHER, 1)
    core.step(ViewApplied(view(6, me=ACTIVE, other=STOPPING)))
    core.step(Swept())
    assert count(core) == 1
    assert Sweep() in core.step(ViewApplied(view(7, me=ACTIVE, other=DEAD)))
    core.step(Swept())
    assert count(core) == 0


def count(core: DirectoryRange) -> int:
    return sum(len(keys) for _, keys in core._partition.keys())


# --- segments ------------------------------------------------------------------------------------


def disjoint(points: list[int]) -> list[Segment]:
    edges = sorted(set(points))
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=False)]


segments = st.lists(st.integers(0, 60), max_size=12).map(disjoint)


@given(segments, segments)
def test_what_two_sets_of_segments_have_in_common(a: list[Segment], b: list[Segment]) -> None:
    found = within(a, b)
    for point in range(61):
        naive = [any(low <= point <= high for low, high in some) for some in (a, b)]
        assert covers(a, point) == naive[0]
        assert covers(found, point) == all(naive)
    assert found == sorted(found)


def test_segments_reach_to_both_ends() -> None:
    assert covers([(0, HASH_MAX)], 0) and covers([(0, HASH_MAX)], HASH_MAX)
    assert not covers([], 0)
