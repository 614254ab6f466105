"""When the deployment balancer changes its mind, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.balancers.best_fit import best_fit
from millstream.runtime import ConfigError
from millstream.runtime.extending import Tasks
from millstream.runtime.testing import Simulation, run

QUEUES = [f"queue-{n}" for n in range(8)]
DELAY_S = 5.0


class Silos:
    """The silos that one of them, `me`, sees."""

    def __init__(self, *present: str, me: str = "a") -> None:
        self.me = me
        self.present = list(present)
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        self._listeners: list[Callable[[], None]] = []

    def silos(self) -> Sequence[str]:
        return sorted(self.present)

    def names(self) -> Mapping[str, str]:
        return {silo: f"name-{silo}" for silo in self.present}

    def watch(self, changed: Callable[[], None], /) -> Callable[[], None]:
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def become(self, *present: str) -> None:
        self.present = list(present)
        for changed in list(self._listeners):
            changed()


class Answers(list[tuple[float, frozenset[str]]]):
    """What a balancer wanted, and when."""

    def __call__(self, queues: frozenset[str]) -> None:
        self.append((asyncio.get_running_loop().time(), queues))


def share(me: str, *silos: str) -> frozenset[str]:
    return frozenset(best_fit(QUEUES, silos)[me])


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
        silos, answers = Silos("b"), Answers()
        balancer = DeploymentBalancer(rebalance_delay_s=DELAY_S)
        await balancer.start(QUEUES, silos, answers)
        assert answers == [(0.0, frozenset())]
        silos.become("a", "b")
        await balancer.aclose()
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
        {"weights": {"a": float("nan")}},
        {"weights": {"a": "2"}},
        {"silos": "one"},
    ],
)
def test_what_cannot_work_is_refused_by_its_name(arguments: Any) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        DeploymentBalancer(**arguments)
