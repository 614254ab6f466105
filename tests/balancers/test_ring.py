"""Queues on a ring: a silo that joins only takes queues, and one that leaves only gives queues."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.balancers.deals import Answers, Silos

from millstream.balancers import RingBalancer
from millstream.balancers.ring import ring_owner
from millstream.runtime import ConfigError
from millstream.runtime.testing import Simulation, run

QUEUES = [f"queue-{n}" for n in range(8)]


@given(
    queues=st.integers(1, 40),
    silos=st.sets(st.integers(0, 30).map(lambda n: f"silo-{n}"), min_size=1, max_size=8),
    more=st.integers(31, 40).map(lambda n: f"silo-{n}"),
)
def test_on_the_ring_a_newcomer_only_takes_and_a_leaver_only_gives(
    queues: int, silos: set[str], more: str
) -> None:
    names = [f"queue-{n}" for n in range(queues)]
    before = ring_owner(names, sorted(silos), 30)
    after = ring_owner(names, sorted(silos | {more}), 30)
    assert set(before) == set(after) == set(names)
    assert {after[queue] for queue in names if after[queue] != before[queue]} <= {more}


def test_the_ring_is_frozen() -> None:
    names = [f"queue-{n}" for n in range(8)]
    found = ring_owner(names, ["a", "b", "c"], 30)
    assert "".join(found[queue] for queue in names) == "acaaaaab"
    assert ring_owner(names, [], 30) == {}


def test_what_lies_on_a_bucket_is_its_silos_and_what_is_behind_the_last_is_the_firsts() -> None:
    names = [f"q{n}" for n in range(200)]
    found = ring_owner(names, ["a", "b"], 1)
    at = ring_owner(["a\x000", "b\x000"], ["a", "b"], 1)
    assert at == {"a\x000": "a", "b\x000": "b"}
    assert set(found.values()) == {"a", "b"}


def test_a_silo_wants_what_lies_on_its_arcs_and_joins_are_collected() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a"), Answers()
        balancer = RingBalancer(rebalance_delay_s=2.0)
        await balancer.start(QUEUES, silos, answers)
        assert answers == [(0.0, frozenset(QUEUES))]
        silos.become("a", "b", "c")
        await asyncio.sleep(60.0)
        owners = ring_owner(QUEUES, ["a", "b", "c"], 30)
        mine = frozenset(queue for queue in QUEUES if owners[queue] == "a")
        assert answers[1:] == [(2.0, mine)] and silos.reads == 0
        await balancer.aclose()
        silos.become("a")
        await asyncio.sleep(60.0)
        assert len(answers) == 2

    run(main, 1)


@pytest.mark.parametrize("buckets", [0, -1, 1_001, 2.0, True, "3"])
def test_buckets_that_cannot_be_are_refused(buckets: object) -> None:
    with pytest.raises(ConfigError, match="buckets"):
        RingBalancer(buckets=buckets)  # type: ignore[arg-type]


def test_as_many_buckets_as_may_be_and_one_are_taken() -> None:
    RingBalancer(buckets=1)
    RingBalancer(buckets=1_000)
    with pytest.raises(ConfigError, match="rebalance_delay_s"):
        RingBalancer(rebalance_delay_s=-1.0)
