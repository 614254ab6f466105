"""The decision which silos give activations to which others: properties of pairs and sessions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.runtime import ConfigError, Rebalancing
from millstream.runtime.cluster.rebalance import (
    RESTED_ROUNDS,
    Phase,
    Session,
    Transfer,
    measure_unevenness,
    pair_silos,
)
from millstream.runtime.testing import make_random

OPTIONS = Rebalancing(moves_max=10_000)
many_counts = st.dictionaries(
    st.sampled_from([f"s{at}" for at in range(8)]), st.integers(0, 10_000), max_size=8
)


def after(counts: Mapping[str, int], transfers: list[Transfer]) -> dict[str, int]:
    found = dict(counts)
    for source, to, count in transfers:
        found[source] -= count
        found[to] += count
    return found


# --- unevenness ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, 0),
        ({"a": 0, "b": 0}, 0),
        ({"a": 7}, 0),
        ({"a": 2, "b": 1, "c": 1}, 0),
        ({"a": 1, "b": 1, "c": 0}, 0),
        ({"a": 10, "b": 0}, 0.5),
        ({"a": 9, "b": 0, "c": 0}, 6 / 9),
        ({"a": 4, "b": 4, "c": 1}, 2 / 9),
        ({"a": 2, "b": 2, "c": 2, "d": 0}, 1 / 6),
        ({"a": 3, "b": 3, "c": 3, "d": 5}, 1 / 14),
    ],
)
def test_unevenness_is_the_share_that_must_move(counts: dict[str, int], expected: float) -> None:
    assert measure_unevenness(counts) == pytest.approx(expected)


@settings(max_examples=examples(200))
@given(many_counts)
def test_unevenness_is_0_exactly_if_no_two_counts_differ_by_more_than_1(
    counts: dict[str, int],
) -> None:
    unevenness = measure_unevenness(counts)
    spread = max(counts.values(), default=0) - min(counts.values(), default=0)
    assert (unevenness == 0) is (spread <= 1)
    assert 0 <= unevenness <= 1


# --- pairs ---------------------------------------------------------------------------------------


@settings(max_examples=examples(300))
@given(many_counts, st.integers(1, 20_000), st.data())
def test_a_transfer_never_changes_the_sign_of_a_difference(
    counts: dict[str, int], moves_max: int, data: st.DataObject
) -> None:
    silos = sorted(counts)
    pairs = [(a, b) for a in silos for b in silos if a != b]
    barren = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    transfers = pair_silos(counts, moves_max, barren)
    left = after(counts, transfers)
    for source, to, count in transfers:
        assert 1 <= count <= moves_max
        assert left[source] >= left[to] >= 0
        assert (source, to) not in barren
    used = [silo for one in transfers for silo in one[:2]]
    assert len(used) == len(set(used))
    assert sum(left.values()) == sum(counts.values())


@settings(max_examples=examples(200))
@given(many_counts, st.integers(1, 20_000))
def test_rounds_end_even_and_move_no_more_than_needed(
    counts: dict[str, int], moves_max: int
) -> None:
    mean = sum(counts.values()) / max(1, len(counts))
    needed = sum(
        max(0, count - math.ceil(mean)) + max(0, math.floor(mean) - count)
        for count in counts.values()
    )
    moved = rounds = 0
    while transfers := pair_silos(counts, moves_max):
        counts = after(counts, transfers)
        moved += sum(one.moves for one in transfers)
        rounds += 1
        assert moved <= needed
    assert measure_unevenness(counts) == 0
    assert rounds <= needed
    if moves_max >= 10_000:
        assert rounds <= 3 * len(counts)


def test_the_heaviest_silo_gives_to_the_lightest() -> None:
    counts = {"a": 100, "b": 0, "c": 60, "d": 40}
    assert pair_silos(counts, 1_000) == [Transfer("a", "b", 50), Transfer("c", "d", 10)]
    assert pair_silos(counts, 7) == [Transfer("a", "b", 7), Transfer("c", "d", 7)]


def test_a_pair_that_had_nothing_to_transfer_is_not_tried_again() -> None:
    counts = {"a": 100, "b": 0, "c": 60, "d": 40}
    assert pair_silos(counts, 1_000, {("a", "b")}) == [
        Transfer("a", "d", 10),
        Transfer("c", "b", 10),
    ]
    every = {("a", other) for other in "bcd"} | {("c", other) for other in "bd"} | {("d", "b")}
    assert pair_silos(counts, 1_000, every) == []


def test_if_the_mean_is_impossible_silos_are_evened_out_with_each_other() -> None:
    """No activation of `a` can be in `b`."""
    counts, rounds = {"a": 30, "b": 0, "c": 0}, 0
    while transfers := pair_silos(counts, 1_000, {("a", "b"), ("c", "b")}):
        counts, rounds = after(counts, transfers), rounds + 1
    assert counts == {"a": 15, "b": 0, "c": 15}
    assert rounds == 2


# --- sessions ------------------------------------------------------------------------------------


def test_a_session_evens_out_and_rests() -> None:
    session, counts = Session(OPTIONS), {"a": 1_000, "b": 0, "c": 20}
    rounds = 0
    while transfers := session.decide(counts):
        counts, rounds = after(counts, transfers), rounds + 1
    assert session.phase is Phase.EVEN
    assert measure_unevenness(counts) <= OPTIONS.stop_below
    assert rounds <= 4


def test_a_new_coordinator_continues_between_the_two_bounds() -> None:
    """5 % are in a wrong silo: less than starts a session, more than ends one."""
    counts = {"a": 110, "b": 90}
    assert OPTIONS.stop_below < measure_unevenness(counts) < OPTIONS.start_above
    assert Session(OPTIONS).decide(counts) == [Transfer("a", "b", 10)]
    resting = Session(OPTIONS)
    assert resting.decide({"a": 100, "b": 100}) == []
    assert resting.decide(counts) == []
    assert resting.decide({"a": 121, "b": 79}) == [Transfer("a", "b", 21)]


@pytest.mark.parametrize(
    ("counts", "is_over"), [({"a": 102, "b": 98}, True), ({"a": 103, "b": 97}, False)]
)
def test_a_session_ends_at_its_lower_bound(counts: dict[str, int], is_over: bool) -> None:
    session = Session(Rebalancing(stop_below=0.01))
    assert bool(session.decide(counts)) is not is_over


def test_rounds_without_improvement_end_a_session_and_drift_begins_another() -> None:
    session, counts = Session(OPTIONS), {"a": 200, "b": 100}
    decided = [bool(session.decide(counts)) for _ in range(6)]
    assert decided == [True] * OPTIONS.stagnant_rounds_max + [False] * (
        6 - OPTIONS.stagnant_rounds_max
    )
    assert session.phase is Phase.STAGNANT
    assert session.decide({"a": 220, "b": 100}) == []
    assert session.decide({"a": 400, "b": 100}) == [Transfer("a", "b", 150)]


def test_a_stagnant_session_starts_when_the_unevenness_has_grown_by_more_than_the_bound() -> None:
    session = Session(Rebalancing(start_above=0.125))
    decided = [session.decide({"a": 12, "b": 4}) for _ in range(6)]  # 0.25
    assert session.phase is Phase.STAGNANT and decided[-1] == []
    assert session.decide({"a": 14, "b": 2}) == []  # 0.375
    assert session.decide({"a": 15, "b": 1}) == [Transfer("a", "b", 7)]


def test_without_a_least_improvement_no_round_is_stagnant() -> None:
    session = Session(Rebalancing(improvement_min=0.0))
    assert all(session.decide({"a": 200, "b": 100}) for _ in range(10))


def test_improvement_begins_the_count_of_stagnant_rounds_again() -> None:
    session = Session(OPTIONS)
    for count in range(200, 150, -2):  # each third round improves
        for _ in range(3):
            assert session.decide({"a": count, "b": 100})


@pytest.mark.parametrize("silos", [{"a": 200, "b": 100, "c": 150}, {"a": 200, "c": 100}])
def test_a_change_of_the_silos_begins_another_session(silos: dict[str, int]) -> None:
    session = Session(OPTIONS)
    for _ in range(6):
        session.decide({"a": 200, "b": 100})
    assert session.phase is Phase.STAGNANT
    assert session.decide(silos) != []


def test_a_change_of_even_silos_begins_no_session() -> None:
    session = Session(OPTIONS)
    assert session.decide({"a": 100, "b": 100}) == []
    assert session.decide({"a": 110, "b": 100, "c": 90}) == []
    assert session.phase is Phase.EVEN
    assert session.decide({"a": 110, "b": 90}) == []
    assert session.decide({"a": 160, "b": 100, "c": 40}) != []


@pytest.mark.parametrize("other", ["b", "c"])
def test_a_session_starts_above_its_bound_and_not_at_it(other: str) -> None:
    session = Session(OPTIONS)
    assert session.decide({"a": 100, "b": 100}) == []
    assert session.decide({"a": 120, other: 80}) == []
    assert session.decide({"a": 121, other: 79}) != []


def test_a_later_session_has_as_many_stagnant_rounds() -> None:
    session, rounds = Session(OPTIONS), OPTIONS.stagnant_rounds_max
    for silos in ("ab", "ac", "bc"):
        counts = dict(zip(silos, (200, 100), strict=True))
        decided = [bool(session.decide(counts)) for _ in range(rounds + 3)]
        assert decided == [True] * rounds + [False] * 3


def test_a_stagnant_session_of_other_silos_starts_below_the_upper_bound() -> None:
    session = Session(OPTIONS)
    for _ in range(6):
        session.decide({"a": 110, "b": 90})
    assert session.phase is Phase.STAGNANT
    assert session.decide({"a": 110, "c": 90}) == [Transfer("a", "c", 10)]


def test_a_stagnant_session_tries_again_after_some_rounds() -> None:
    session, counts = Session(OPTIONS), {"a": 200, "b": 100}
    decided = [bool(session.decide(counts)) for _ in range(80)]
    rested = OPTIONS.stagnant_rounds_max + RESTED_ROUNDS
    assert decided.index(True, OPTIONS.stagnant_rounds_max) == rested + 1
    assert decided.index(True, rested + 1 + OPTIONS.stagnant_rounds_max) == 2 * (rested + 1)


def test_pairs_without_transfers_are_left_out_until_the_next_session() -> None:
    session, counts = Session(OPTIONS), {"a": 300, "b": 0, "c": 100}
    (first,) = session.decide(counts)
    assert first[:2] == ("a", "b")
    session.note_barren(first)
    (second,) = session.decide(counts)
    assert second[:2] == ("a", "c") or second[:2] == ("c", "b")
    found = session.decide({"a": 600, "b": 0, "c": 100, "d": 0})
    assert found[0][:2] == ("a", "b")


def test_small_changes_of_an_even_cluster_move_nothing() -> None:
    """Activations come and go at random in 500 rounds; the silos stay within the bounds."""
    session, rng = Session(OPTIONS), make_random("churn")
    counts = dict.fromkeys("abc", 1_000)
    for _ in range(500):
        for silo in counts:
            counts[silo] = min(1_080, max(920, counts[silo] + rng.randint(-40, 40)))
        assert session.decide(counts) == []


@settings(max_examples=examples(60))
@given(st.integers())
def test_moves_are_bounded_by_the_changes_of_the_counts(seed: int) -> None:
    """Each activation that starts or ends causes at most two moves."""
    session, rng = Session(OPTIONS), make_random(seed)
    counts, changes, moved = dict.fromkeys("abcd", 500), 0, 0
    for _ in range(100):
        for silo in counts:
            change = max(-counts[silo], rng.choice([0, 0, 0, 1, -1, 200, -200]))
            counts[silo] += change
            changes += abs(change)
        transfers = session.decide(counts)
        counts = after(counts, transfers)
        moved += sum(one.moves for one in transfers)
    assert moved <= 2 * changes


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("first_after_s", -1),
        ("every_s", 1.9),
        ("every_s", 1e9),
        ("moves_max", 0),
        ("moves_max", 10_001),
        ("moves_max", 1.5),
        ("start_above", 1.1),
        ("stop_below", -0.1),
        ("improvement_min", math.nan),
        ("stagnant_rounds_max", 0),
    ],
)
def test_options_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Rebalancing\.{name} is "):
        Rebalancing(**{name: value})


def test_a_session_cannot_end_above_its_start() -> None:
    with pytest.raises(ConfigError, match=r"stop_below is 0\.3; it must be at most start_above"):
        Rebalancing(stop_below=0.3)
    assert Rebalancing(stop_below=0.1).start_above == 0.1
