"""A silo with leases wants its own queues and free ones, up to its share."""

from __future__ import annotations

import asyncio

import pytest
from tests.balancers.deals import Answers, Silos

from millstream.balancers import LeaseBalancer
from millstream.balancers.lease import choose
from millstream.runtime import ConfigError
from millstream.runtime.testing import Simulation, run
from millstream.streams import QueueOwner

QUEUES = [f"queue-{n}" for n in range(6)]


def held(text: str) -> dict[str, QueueOwner]:
    """Parse owners of queue-0, queue-1, ...: a letter each, "." for none, upper case: pausing."""
    return {
        f"queue-{n}": QueueOwner(one.lower(), 1, one.isupper())
        for n, one in enumerate(text)
        if one != "."
    }


def chosen(text: str, silos: str, me: str, since: dict[str, int] | None = None) -> set[str]:
    since_s = dict.fromkeys(QUEUES, 0.0) | dict(since or {})
    return set(choose(QUEUES, silos, me, held(text), since_s))


def test_it_takes_free_queues_up_to_its_share() -> None:
    assert len(chosen("......", "a", "a")) == 6
    assert len(chosen("......", "ab", "a")) == 3
    assert chosen("bbb...", "ab", "a") == {"queue-3", "queue-4", "queue-5"}


def test_it_wants_nothing_that_another_one_keeps() -> None:
    assert chosen("bbbbbb", "ab", "a") == set()
    assert chosen("BBBbbb", "ab", "a") == {"queue-0", "queue-1", "queue-2"}


def test_it_keeps_what_it_has_and_gives_back_what_it_had_longest() -> None:
    since = {"queue-0": 3, "queue-1": 1, "queue-2": 2, "queue-3": 1}
    assert chosen("aaab..", "ab", "a", since) == {"queue-0", "queue-1", "queue-2"}
    assert chosen("aaaabb", "abc", "a", since) == {"queue-0", "queue-2"}


def test_what_it_is_letting_go_already_is_given_back_first() -> None:
    since = {"queue-0": 9, "queue-1": 1, "queue-2": 2}
    assert chosen("Aaabb.", "abc", "a", since) == {"queue-1", "queue-2"}


def test_it_needs_leases() -> None:
    async def main(simulation: Simulation) -> None:
        silos = Silos("a")
        silos.lease_s = 0.0
        with pytest.raises(ConfigError, match="OwnershipOptions"):
            await LeaseBalancer().start(QUEUES, silos, Answers())
        await LeaseBalancer().aclose()

    run(main, 1)


def test_a_lease_that_has_run_out_is_free_and_one_that_is_renewed_is_not() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a", "b"), Answers()
        silos.cluster.own("b", *QUEUES)
        await LeaseBalancer().start(QUEUES, silos, answers)
        await asyncio.sleep(30.0)
        assert answers.last == frozenset()
        for queue in QUEUES[:4]:
            silos.cluster.owners[queue] = QueueOwner("b", 1, has_lapsed=True)
        await asyncio.sleep(2.0)
        assert len(answers.last) == 3 and answers.last <= set(QUEUES[:4])

    run(main, 1)


def test_a_silo_that_joins_gets_its_share_without_waiting_and_the_oldest_go() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a"), Answers()
        silos.cluster.own("a", *QUEUES[:3])
        await LeaseBalancer().start(QUEUES, silos, answers)
        assert answers.last == frozenset(QUEUES)
        silos.cluster.own("a", *QUEUES[3:])
        await asyncio.sleep(2.0)
        silos.become("a", "b")
        await asyncio.sleep(0.001)
        assert answers.last == frozenset(QUEUES[3:])

    run(main, 1)


def test_of_what_is_free_each_silo_takes_what_comes_first_for_it() -> None:
    first = {me: frozenset(chosen("......", "abc", me)) for me in "abc"}
    assert len(set(first.values())) == 3  # otherwise all silos would want the same two


def test_it_looks_seldom_once_all_is_leased_and_not_at_all_when_it_is_closed() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a", "b"), Answers()
        silos.cluster.own("a", *QUEUES[:3])
        balancer = LeaseBalancer()
        await balancer.start(QUEUES, silos, answers)
        await asyncio.sleep(10.5)
        assert silos.reads == 11  # three are free: one look per second
        silos.cluster.own("b", *QUEUES[3:])
        await asyncio.sleep(100.0)
        assert silos.reads in (21, 22)
        await balancer.aclose()
        assert silos.cluster.listeners == []
        await asyncio.sleep(100.0)
        assert silos.reads in (21, 22)

    run(main, 1)
