"""The contract of all balancers, in clusters whose silos read the records at different times."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.balancers.deals import Cluster, Manager, Silos
from tests.examples import examples

from millstream.balancers import DeploymentBalancer, LeaseBalancer, RingBalancer
from millstream.runtime.testing import Random, Simulation, make_random, run
from millstream.streams import QueueBalancer

MAKERS: dict[str, Callable[[], QueueBalancer]] = {
    "deployment": lambda: DeploymentBalancer(rebalance_delay_s=1.0),
    "ring": lambda: RingBalancer(rebalance_delay_s=1.0),
    "lease": LeaseBalancer,
}
SETTLED_S = 60.0


class Trial:
    """A cluster with balancers of one kind."""

    def __init__(self, kind: str, queues: int, rng: Random) -> None:
        self.make = MAKERS[kind]
        self.queues = [f"queue-{n}" for n in range(queues)]
        self.rng = rng
        self.cluster = Cluster()
        self.managers: dict[str, Manager] = {}
        self.balancers: dict[str, QueueBalancer] = {}
        self._count = 0

    async def join(self) -> None:
        self._count += 1
        name = f"silo-{self._count}"
        self.cluster.become(*self.cluster.present, name)
        silos = Silos(me=name, cluster=self.cluster)
        silos.latency = lambda: self.rng.uniform(0.0, 0.3)
        manager = self.managers[name] = Manager(self.cluster, name, self.rng)
        balancer = self.balancers[name] = self.make()
        await balancer.start(self.queues, silos, manager.want)

    async def leave(self) -> None:
        """Crash a silo; the queues that it owns stay as they are."""
        name = self.rng.choice(sorted(self.managers))
        self.managers.pop(name).task.cancel()
        await self.balancers.pop(name).aclose()
        self.cluster.become(*sorted(self.managers))

    async def play(self, steps: list[bool]) -> None:
        await self.join()
        for is_join in steps:
            await asyncio.sleep(self.rng.choice([0.0, 0.5, 3.0, 15.0]))
            if is_join or len(self.managers) == 1:
                await self.join()
            else:
                await self.leave()
        await asyncio.sleep(SETTLED_S)

    def check(self) -> None:
        wanters = Counter(q for manager in self.managers.values() for q in manager.wanted)
        assert wanters == Counter(self.queues), "every queue has exactly one wanter"
        for name, manager in self.managers.items():
            owned = {q for q, owner in self.cluster.owners.items() if owner.silo == name}
            assert owned == manager.wanted

    async def close(self) -> None:
        for name in list(self.managers):
            self.managers.pop(name).task.cancel()
            await self.balancers.pop(name).aclose()


def play(kind: str, queues: int, steps: list[bool], seed: int) -> Trial:
    found: list[Trial] = []

    async def main(simulation: Simulation) -> None:
        trial = Trial(kind, queues, make_random(seed, "balancers"))
        await trial.play(steps)
        trial.check()
        moves = trial.cluster.moves
        await asyncio.sleep(SETTLED_S)
        assert trial.cluster.moves == moves, "nothing moves while nobody comes or goes"
        found.append(trial)
        await trial.close()

    run(main, 1)
    return found[0]


@pytest.mark.parametrize("kind", MAKERS)
@given(
    queues=st.integers(0, 12),
    steps=st.lists(st.booleans(), max_size=6),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=examples(40))
def test_once_membership_is_stable_every_queue_has_exactly_one_wanter(
    kind: str, queues: int, steps: list[bool], seed: int
) -> None:
    trial = play(kind, queues, steps, seed)
    if kind != "ring":
        sizes = trial.cluster.sizes()
        assert max(sizes) - min(sizes) <= 1
