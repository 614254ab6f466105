"""The times at which the deployment balancer changes its wish, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.balancers.deals import Answers, Silos

from millstream.balancers import DeploymentBalancer, best_fit
from millstream.runtime import ConfigError
from millstream.runtime.testing import Simulation, run

QUEUES = [f"queue-{n}" for n in range(8)]
DELAY_S = 5.0


def share(me: str, *silos: str, held: dict[str, str] | None = None) -> frozenset[str]:
    return frozenset(best_fit(QUEUES, silos, held=held)[me])


def all_of(silo: str) -> dict[str, str]:
    return dict.fromkeys(QUEUES, silo)


def test_the_first_answer_comes_at_once_and_joins_are_collected() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a"), Answers()
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        assert answers == [(0.0, frozenset(QUEUES))]
        silos.become("a", "b")
        await asyncio.sleep(1.0)
        silos.become("a", "b", "c")
        await asyncio.sleep(60.0)
        assert answers[1:] == [(6.0, share("a", "a", "b", "c"))]

    run(main, 1)


def test_joins_that_never_end_wait_three_delays_at_most() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a"), Answers()
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        for number in range(5):
            silos.become("a", *(f"b{n}" for n in range(number + 1)))
            await asyncio.sleep(4.0)
        assert answers[1][0] == 3 * DELAY_S

    run(main, 1)


def test_a_silo_that_dies_is_replaced_at_once() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a", "b"), Answers()
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        await asyncio.sleep(2.0)
        silos.become("a")
        await asyncio.sleep(1.0)
        assert answers[1:] == [(2.0, frozenset(QUEUES))]

    run(main, 1)


def test_a_silo_that_comes_and_goes_within_the_delay_moves_nothing() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a", "b"), Answers()
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        silos.become("a", "b", "c")
        await asyncio.sleep(1.0)
        silos.become("a", "b")
        await asyncio.sleep(60.0)
        assert {wanted for _, wanted in answers} == {share("a", "a", "b")}

    run(main, 1)


def test_a_static_deployment_keeps_the_queues_of_a_silo_that_is_down() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a", "b"), Answers()
        balancer = DeploymentBalancer(silos=["name-a", "name-b"], rebalance_delay_s=DELAY_S)
        await balancer.start(QUEUES, silos, answers)
        silos.become("a")
        await asyncio.sleep(60.0)
        mine = frozenset(best_fit(QUEUES, ["name-a", "name-b"])["name-a"])
        assert {wanted for _, wanted in answers} == {mine}

    run(main, 1)


def test_a_silo_that_is_not_active_wants_nothing_and_a_closed_one_says_no_more() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers, tasks = Silos("b"), Answers(), len(asyncio.all_tasks())
        balancer = DeploymentBalancer(rebalance_delay_s=DELAY_S)
        await balancer.start(QUEUES, silos, answers)
        assert answers == [(0.0, frozenset())]
        silos.become("a", "b")
        await balancer.aclose()
        assert len(asyncio.all_tasks()) == tasks and silos.cluster.listeners == []
        await asyncio.sleep(60.0)
        assert len(answers) == 1

    run(main, 1)


def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(ConfigError, match="rebalance_delay_s is -1"):
        DeploymentBalancer(rebalance_delay_s=-1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"rebalance_delay_s": float("nan")},
        {"rebalance_delay_s": "5"},
        {"weights": {"a": -1}},
        {"weights": {"a": 0}},
        {"weights": {"a": float("nan")}},
        {"weights": {"a": "2"}},
        {"silos": "one"},
    ],
)
def test_what_cannot_work_is_refused_by_its_name(arguments: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        DeploymentBalancer(**arguments)


def test_b9_12_three_joins_within_the_delay_are_one_rebalance_of_six_moves() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a"), Answers()
        silos.cluster.own("a", *QUEUES)
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        for number in range(3):
            silos.become("a", *"bcd"[: number + 1])
            await asyncio.sleep(1.0)
        await asyncio.sleep(60.0)
        assert answers[1:] == [(7.0, share("a", *"abcd", held=all_of("a")))]
        assert len(answers.last) == 2

    run(main, 1)


def test_a_silo_keeps_what_it_has_when_shares_allow_it() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a", "b"), Answers()
        silos.cluster.own("a", *QUEUES[4:])
        silos.cluster.own("b", *QUEUES[:4])
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        assert answers == [(0.0, frozenset(QUEUES[4:]))]

    run(main, 1)


def test_it_looks_again_until_queues_are_where_they_belong_and_seldom_from_then_on() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a"), Answers()
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        await asyncio.sleep(10.5)
        assert silos.reads == 11  # nobody has acquired a queue: one look per second
        silos.cluster.own("a", *QUEUES)
        await asyncio.sleep(100.0)
        assert silos.reads in (21, 22) and len(answers) == 1
        silos.cluster.own("b", *QUEUES[:4])  # a silo that is not yet in any view
        silos.become("a", "b")
        await asyncio.sleep(DELAY_S + 1.0)
        assert answers.last == frozenset(QUEUES[4:])

    run(main, 1)


def test_while_the_records_are_away_it_wants_what_it_wanted() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a", "b"), Answers()
        silos.cluster.own("a", *QUEUES[4:])
        silos.cluster.own("b", *QUEUES[:4])
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        silos.cluster.is_away = True
        silos.become("a")
        await asyncio.sleep(20.0)
        assert answers == [(0.0, frozenset(QUEUES[4:]))]
        silos.cluster.is_away = False
        await asyncio.sleep(1.0)
        assert answers.last == frozenset(QUEUES)

    run(main, 1)


def test_records_that_are_away_at_the_start_are_read_later() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a"), Answers()
        silos.cluster.is_away = True
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        assert answers == [(0.0, frozenset())]
        silos.cluster.is_away = False
        await asyncio.sleep(1.5)
        assert answers.last == frozenset(QUEUES)

    run(main, 1)


def test_a_balancer_that_fails_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a"), Answers()
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        names, silos.names = silos.names, None  # type: ignore[method-assign, assignment]
        silos.cluster.own("b", *QUEUES[:4])
        await asyncio.sleep(3.0)
        assert "a balancer failed" in caplog.text
        silos.names = names  # type: ignore[method-assign]
        silos.become("a", "b")
        await asyncio.sleep(10.0)
        assert answers.last == frozenset(QUEUES[4:])

    run(main, 1)


def test_a_death_is_answered_at_once_also_when_no_look_is_due() -> None:
    async def main(simulation: Simulation) -> None:
        silos, answers = Silos("a", "b"), Answers()
        silos.cluster.own("a", *QUEUES[4:])
        silos.cluster.own("b", *QUEUES[:4])
        await DeploymentBalancer(rebalance_delay_s=DELAY_S).start(QUEUES, silos, answers)
        await asyncio.sleep(2.0)
        silos.become("a")
        await asyncio.sleep(0.001)
        assert answers[1:] == [(2.0, frozenset(QUEUES))]

    run(main, 1)
