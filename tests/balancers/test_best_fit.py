"""Queues are distributed evenly, equally in all silos, and with the fewest moves."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.balancers import best_fit
from millstream.balancers.best_fit import shares
from millstream.runtime import ConfigError

QUEUES = st.sets(st.integers(0, 200).map(lambda n: f"queue-{n}"), max_size=64)
SILOS = st.sets(st.integers(0, 20).map(lambda n: f"silo-{n}"), min_size=1, max_size=8)
FEW_QUEUES = st.sets(st.integers(0, 20).map(lambda n: f"queue-{n}"), max_size=5)
FEW_SILOS = st.sets(st.integers(0, 9).map(lambda n: f"silo-{n}"), min_size=1, max_size=4)
ANYBODY = st.integers(0, 9).map(lambda n: f"silo-{n}")
EIGHT = [f"queue-{n}" for n in range(8)]


def owners(dealt: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {queue: silo for silo, queues in dealt.items() for queue in queues}


def moved(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {queue for queue, silo in after.items() if before.get(queue) != silo}


@given(QUEUES, SILOS)
def test_every_queue_has_one_silo_and_shares_differ_by_one_at_most(
    queues: set[str], silos: set[str]
) -> None:
    dealt = best_fit(list(queues), list(silos))
    assert sorted(queue for found in dealt.values() for queue in found) == sorted(queues)
    sizes = [len(found) for found in dealt.values()]
    assert set(dealt) == silos and max(sizes) - min(sizes) <= 1


@given(QUEUES, SILOS, st.dictionaries(st.sampled_from(EIGHT), ANYBODY), st.randoms())
def test_the_order_of_what_is_given_does_not_matter(
    queues: set[str], silos: set[str], held: dict[str, str], rng: object
) -> None:
    shuffled_queues, shuffled_silos = sorted(queues), sorted(silos)
    rng.shuffle(shuffled_queues)  # type: ignore[attr-defined]
    rng.shuffle(shuffled_silos)  # type: ignore[attr-defined]
    expected = best_fit(sorted(queues), sorted(silos), held=held)
    assert best_fit(shuffled_queues, shuffled_silos, held=held) == expected
    assert best_fit(sorted(queues) * 2, sorted(silos) * 2, held=held) == expected


@given(QUEUES, SILOS, st.data())
def test_shares_follow_weights_within_one(
    queues: set[str], silos: set[str], data: st.DataObject
) -> None:
    weights = {silo: data.draw(st.floats(0.1, 10)) for silo in sorted(silos)}
    held = data.draw(st.dictionaries(st.sampled_from(sorted(queues) or ["none"]), ANYBODY))
    dealt = best_fit(list(queues), list(silos), weights, held)
    assert sorted(owners(dealt)) == sorted(queues)
    for silo, found in dealt.items():
        assert abs(len(found) - len(queues) * weights[silo] / sum(weights.values())) < 1 + 1e-9


@given(FEW_QUEUES, FEW_SILOS, st.data())
def test_b8_18_no_even_dealing_moves_fewer_queues(
    queues: set[str], silos: set[str], data: st.DataObject
) -> None:
    held = {queue: data.draw(ANYBODY) for queue in sorted(queues)}
    found = best_fit(list(queues), list(silos), held=held)
    fewest = len(queues)
    for choice in product(sorted(silos), repeat=len(queues)):
        sizes = [choice.count(silo) for silo in silos]
        if max(sizes) - min(sizes) <= 1:
            other = dict(zip(sorted(queues), choice, strict=True))
            fewest = min(fewest, len(moved(held, other)))
    assert len(moved(held, owners(found))) == fewest


@given(QUEUES, SILOS, st.data())
def test_what_was_dealt_out_stays_as_it_is(
    queues: set[str], silos: set[str], data: st.DataObject
) -> None:
    weights = {silo: data.draw(st.sampled_from([0.5, 1.0, 2.0])) for silo in sorted(silos)}
    held = data.draw(st.dictionaries(st.sampled_from(sorted(queues) or ["none"]), ANYBODY))
    once = best_fit(list(queues), list(silos), weights, held)
    assert best_fit(list(queues), list(silos), weights, owners(once)) == once


@given(QUEUES, SILOS, SILOS)
def test_b8_17_more_silos_than_queues_displace_nobody(
    queues: set[str], silos: set[str], more: set[str]
) -> None:
    queues = set(sorted(queues)[: len(silos)])
    before = owners(best_fit(list(queues), list(silos)))
    after = owners(best_fit(list(queues), list(silos | more), held=before))
    assert after == before


def test_b9_12_three_join_one_owner_of_eight_queues() -> None:
    before = dict.fromkeys(EIGHT, "a")
    dealt = best_fit(EIGHT, ["a", "b", "c", "d"], held=before)
    assert [len(found) for found in dealt.values()] == [2, 2, 2, 2]
    assert len(moved(before, owners(dealt))) == 6


def test_b9_13_four_silos_more_than_queues_move_nothing() -> None:
    eight, more = [f"s{n}" for n in range(8)], [f"t{n}" for n in range(4)]
    before = owners(best_fit(EIGHT, eight))
    assert owners(best_fit(EIGHT, eight + more, held=before)) == before


@pytest.mark.parametrize("leaver", range(8))
def test_b9_14_one_idle_silo_takes_the_queue_of_one_that_leaves(leaver: int) -> None:
    eight, idle = [f"s{n}" for n in range(8)], [f"t{n}" for n in range(4)]
    before = owners(best_fit(EIGHT, eight))
    rest = [silo for silo in eight if silo != f"s{leaver}"]
    after = owners(best_fit(EIGHT, rest + idle, held=before))
    (queue,) = moved(before, after)
    assert before[queue] == f"s{leaver}" and after[queue] in idle


def test_few_queues_move_without_knowing_who_has_them() -> None:
    queues = [f"queue-{n}" for n in range(240)]
    before = owners(best_fit(queues, [f"silo-{n}" for n in range(5)]))
    after = owners(best_fit(queues, [f"silo-{n}" for n in range(6)]))
    assert 240 // 6 <= len(moved(before, after)) <= 2 * 240 // 6


def test_what_is_left_over_goes_to_those_that_have_it_and_then_by_remainder() -> None:
    assert shares(5, ["a", "b"], {}, {"a": 2, "b": 3}) == {"a": 2, "b": 3}
    assert shares(5, ["a", "b"], {}, {"a": 3, "b": 2}) == {"a": 3, "b": 2}
    # 5 of weight 3:1:1 is 3, 1, 1 exactly: no remainder is left to distribute
    assert shares(5, ["a", "b", "c"], {"a": 3.0}, {"b": 4}) == {"a": 3, "b": 1, "c": 1}
    # 2 of weight 2:1:1 is 1, a half, a half
    found = shares(2, ["a", "b", "c"], {"a": 2.0}, {"a": 2})
    assert (found["a"], sum(found.values())) == (1, 2)
    for one, other in ("ab", "ba"):  # the owner of a queue keeps it
        assert shares(1, ["a", "b"], {}, {one: 1}) == {one: 1, other: 0}
    # 7 of 2:1 is 4.67 and 2.33
    assert shares(7, ["a", "b"], {"a": 2.0}) == {"a": 5, "b": 2}
    assert shares(7, ["a", "b"], {"a": 2.0}, {"b": 3}) == {"a": 4, "b": 3}


def test_no_silos_get_nothing_and_a_weight_of_nothing_is_refused() -> None:
    assert best_fit(["queue-0"], []) == {}
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="weight of silo a is"):
            best_fit(["queue-0"], ["a"], {"a": wrong})
