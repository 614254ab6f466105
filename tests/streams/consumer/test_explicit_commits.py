"""An explicit subscription whose position is written with a state of its grain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    ConfigError,
    Grain,
    LocalCluster,
    MemoryStateStore,
    Silo,
    State,
    StreamError,
    grain,
    state,
)
from millstream.streams import (
    Backoff,
    Capability,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    dead_letters,
    subscribe,
)

LINES = StreamNamespace("lines", int)
MARKED = StreamNamespace("marked", int)
BAD: set[int] = set()
RUNS: list[int] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    BAD.clear()
    RUNS.clear()


@dataclass
class Tally:
    items: list[int] = field(default_factory=list)


class Keeper(Grain):
    tally = state(Tally)

    async def listen(self, commits: bool = True, ack: Literal["auto", "manual"] = "auto") -> None:
        chosen = self.tally if commits else None
        await self.stream(LINES, self.key).subscribe(self._on_line, commit_with=chosen, ack=ack)

    async def listen_with(self, what: str) -> None:
        wrong: Any = {"another's": State, "its name": "tally", "the field": Keeper.tally}[what]
        await self.stream(LINES, self.key).subscribe(self._on_line, commit_with=wrong)

    async def listen_marked(self) -> None:
        await self.stream(MARKED, "other").subscribe(self.on_marked, commit_with=self.tally)

    async def items(self) -> list[int]:
        return self.tally.value.items

    async def leave(self) -> None:
        self.context.deactivate_when_idle()

    async def _on_line(self, event: Event[int]) -> None:
        RUNS.append(event.item)
        self.tally.value.items.append(event.item)
        if event.item in BAD:
            raise ValueError(event.item)

    @subscribe(MARKED, commit_with=tally)
    async def on_marked(self, event: Event[int]) -> None: ...


@grain(reentrant=True)
class Nimble(Grain):
    tally = state(Tally)

    async def listen(self) -> None:
        await self.stream(LINES, self.key).subscribe(self._on_line, commit_with=self.tally)

    async def _on_line(self, event: Event[int]) -> None: ...


def cluster_of(silos: int = 1, store: MemoryStateStore | None = None) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(
                delivery=DeliveryOptions(retries=1, backoff=Backoff(0.01, 1.0, 0.01))
            ),
        )

    return LocalCluster(
        silos=silos,
        grains=[Keeper, Nimble],
        streams={"default": provider},
        stores={"default": store or MemoryStateStore()},
    )


async def publish(cluster: LocalCluster | Silo, *items: int) -> None:
    await cluster.stream(LINES, "k").publish_many(items)


async def test_state_and_position_are_one_row_and_outlive_the_activation() -> None:
    async with cluster_of() as cluster:
        keeper = cluster.grain(Keeper, "k")
        await keeper.listen()
        await publish(cluster, *range(10))
        await until(lambda: len(RUNS) == 10)
        await keeper.leave()
        await publish(cluster, 10)
        await until(lambda: RUNS[-1:] == [10])
        assert await keeper.items() == list(range(11)) and list(range(11)) == RUNS


async def test_a_handler_that_fails_leaves_no_trace_in_the_state_and_a_redrive_commits() -> None:
    BAD.add(3)
    async with cluster_of() as cluster:
        keeper = cluster.grain(Keeper, "k")
        await keeper.listen()
        await publish(cluster, *range(6))
        await until(lambda: RUNS[-1:] == [5])
        assert await keeper.items() == [0, 1, 2, 4, 5]
        BAD.clear()
        (letter,) = await dead_letters(cluster).list()
        await dead_letters(cluster).redrive(letter.id)
        await keeper.leave()
        await publish(cluster, 6)
        await until(lambda: RUNS[-1:] == [6])
        assert await keeper.items() == [0, 1, 2, 4, 5, 3, 6]


async def test_an_event_that_comes_again_after_a_lost_answer_has_no_second_effect() -> None:
    async with cluster_of(silos=2) as cluster:
        keeper = cluster.grain(Keeper, "k")
        await keeper.listen()
        await publish(cluster, *range(20))
        await until(lambda: len(RUNS) >= 20)
        await cluster.silos[0].stop()
        other = cluster.silos[-1]
        await publish(other, 20)
        await until(lambda: RUNS[-1:] == [20])
        assert await other.grain(Keeper, "k").items() == list(range(21))


async def test_who_subscribes_again_without_it_commits_no_more_and_the_reverse() -> None:
    async with cluster_of() as cluster:
        keeper = cluster.grain(Keeper, "k")
        await keeper.listen(commits=False)
        await publish(cluster, 0)
        await until(lambda: RUNS == [0])
        await keeper.listen()
        await publish(cluster, 1)
        await until(lambda: RUNS == [0, 1])
        await keeper.leave()
        assert await keeper.items() == [0, 1]
        await keeper.listen(commits=False)
        await publish(cluster, 2)
        await until(lambda: RUNS == [0, 1, 2])
        await keeper.leave()
        assert await keeper.items() == [0, 1]


# -- refused definitions


@pytest.mark.parametrize("what", ["another's", "its name", "the field"])
async def test_what_is_no_state_of_the_grain_is_refused(what: str) -> None:
    async with cluster_of() as cluster:
        with pytest.raises(ConfigError, match="must be a state of the calling Keeper"):
            await cluster.grain(Keeper, "k").listen_with(what)
        assert len(await cluster.stream(LINES, "k").subscriptions()) == 0


async def test_what_does_not_go_with_it_is_refused_before_anything_is_stored() -> None:
    async with cluster_of() as cluster:
        keeper = cluster.grain(Keeper, "k")
        with pytest.raises(ConfigError, match="commit_with acknowledges the events that it has"):
            await keeper.listen(ack="manual")
        with pytest.raises(ConfigError, match="on_marked already has commit_with: omit"):
            await keeper.listen_marked()
        with pytest.raises(ConfigError, match="excludes every other turn"):
            await cluster.grain(Nimble, "k").listen()
        assert len(await cluster.stream(LINES, "k").subscriptions()) == 0


class Unordered(MemoryQueues):
    capabilities = frozenset({Capability.OWN_POSITION, Capability.ITEM_ACK})


class Plain(Grain):
    tally = state(Tally)

    async def listen(self) -> None:
        await self.stream(LINES, self.key).subscribe(self._on_line, commit_with=self.tally)

    async def _on_line(self, event: Event[int]) -> None: ...


async def test_a_provider_without_positions_is_refused() -> None:
    streams = {"default": PersistentStreams(Unordered())}
    stores = {"default": MemoryStateStore()}
    async with Silo(grains=[Plain], streams=streams, stores=stores) as silo:
        with pytest.raises(StreamError, match="commit_with needs ORDERED and STABLE_TOKENS"):
            await silo.grain(Plain, "k").listen()
