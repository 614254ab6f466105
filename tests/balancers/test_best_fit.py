"""How queues are dealt out: evenly, the same everywhere, with few moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.balancers.best_fit import best_fit
from millstream.runtime import ConfigError

QUEUES = st.sets(st.integers(0, 200).map(lambda n: f"queue-{n}"), max_size=64)
SILOS = st.sets(st.integers(0, 20).map(lambda n: f"silo-{n}"), min_size=1, max_size=8)


def owners(dealt: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {queue: silo for silo, queues in dealt.items() for queue in queues}


@given(QUEUES, SILOS)
def test_every_queue_has_one_silo_and_shares_differ_by_one_at_most(
    queues: set[str], silos: set[str]
) -> None:
    dealt = best_fit(list(queues), list(silos))
    assert sorted(queue for found in dealt.values() for queue in found) == sorted(queues)
    sizes = [len(found) for found in dealt.values()]
    assert set(dealt) == silos and max(sizes) - min(sizes) <= 1


@given(QUEUES, SILOS, st.randoms())
def test_the_order_of_what_is_given_does_not_matter(
    queues: set[str], silos: set[str], rng: object
) -> None:
    shuffled_queues, shuffled_silos = sorted(queues), sorted(silos)
    rng.shuffle(shuffled_queues)  # type: ignore[attr-defined]
    rng.shuffle(shuffled_silos)  # type: ignore[attr-defined]
    assert best_fit(shuffled_queues, shuffled_silos) == best_fit(sorted(queues), sorted(silos))


@given(QUEUES, SILOS, st.data())
def test_shares_follow_weights_within_one(
    queues: set[str], silos: set[str], data: st.DataObject
) -> None:
    weights = {silo: data.draw(st.floats(0.1, 10)) for silo in sorted(silos)}
    dealt = best_fit(list(queues), list(silos), weights)
    for silo, found in dealt.items():
        assert abs(len(found) - len(queues) * weights[silo] / sum(weights.values())) < 1 + 1e-9


def test_few_queues_move_when_a_silo_joins_or_leaves() -> None:
    queues = [f"queue-{n}" for n in range(240)]
    before = owners(best_fit(queues, [f"silo-{n}" for n in range(5)]))
    after = owners(best_fit(queues, [f"silo-{n}" for n in range(6)]))
    moved = sum(before[queue] != after[queue] for queue in queues)
    assert 240 // 6 <= moved <= 2 * 240 // 6  # the newcomer's share has to move


def test_no_silos_get_nothing_and_a_weight_of_nothing_is_refused() -> None:
    assert best_fit(["queue-0"], []) == {}
    with pytest.raises(ConfigError, match="weight of a is 0"):
        best_fit(["queue-0"], ["a"], {"a": 0})
