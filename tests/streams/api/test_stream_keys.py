"""Keys of streams: any text that can be encoded, even with separators of store keys."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import Grain, LocalCluster, MemoryStateStore, Silo
from millstream.streams import Event, HashRingMapper, PersistentStreams, StreamId, StreamNamespace
from millstream.streams.api.rendezvous import parse_rendezvous_key, rendezvous_key

LINES = StreamNamespace("li\x1fnes", str, subscriptions="explicit")
SEEN: dict[str, list[str]] = defaultdict(list)
KEYS = ["", "\x1f", "a\x1fb", "a", "b", "\x1b", "\x1b1", "\x1f\x1b0", "a\x1fexplicit/", "%1F", "/"]


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class Hearer(Grain):
    async def listen(self) -> str:
        return (await self.stream(LINES, self.key).subscribe(self._on_line)).id

    async def subscriptions(self) -> list[str]:
        return [one.id for one in await self.stream(LINES, self.key).subscriptions(self)]

    async def leave(self) -> None:
        for one in await self.stream(LINES, self.key).subscriptions(self):
            await one.unsubscribe()

    async def name(self, name: str) -> None:
        await self.stream(LINES, self.key).subscribe(self._on_line, name=name)

    async def name_badly(self) -> None:
        names: list[Any] = ["\ud800", 5, None]
        for name in names:
            with pytest.raises(TypeError, match=r"name of a subscription.*(surrogate|str\()"):
                await self.stream(LINES, self.key).subscribe(self._on_line, name=name)

    async def _on_line(self, event: Event[str]) -> None:
        SEEN[self.key].append(event.item)


def cluster_of(store: MemoryStateStore) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=2),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
        )

    return LocalCluster(
        silos=2, grains=[Hearer], streams={"default": provider}, stores={"default": store}
    )


async def test_a_stream_of_any_key_can_be_subscribed_to_and_left() -> None:
    store = MemoryStateStore()
    async with cluster_of(store) as cluster:
        ids = {key: await cluster.grain(Hearer, key).listen() for key in KEYS}
        for key in KEYS:
            await cluster.stream(LINES, key).publish(f"1 {key}")
        await until(lambda: all(SEEN[key] == [f"1 {key}"] for key in KEYS))
    async with cluster_of(store) as cluster:  # rows are read from the store
        for key in KEYS:
            assert await cluster.grain(Hearer, key).subscriptions() == [ids[key]]
        for key in KEYS:
            await cluster.stream(LINES, key).publish(f"2 {key}")
        await until(lambda: all(SEEN[key] == [f"1 {key}", f"2 {key}"] for key in KEYS))
        for key in KEYS:
            await cluster.grain(Hearer, key).leave()
            assert await cluster.grain(Hearer, key).subscriptions() == []
        assert not await store.scan("subscription/", "", 1000)


TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.text("\x1f\x1b01a", max_size=8)

ODD = st.text("\x1f\x1b0", max_size=2)


@given(TEXT, TEXT, TEXT)
def test_the_key_of_a_streams_registry_is_read_back(provider: str, name: str, key: str) -> None:
    made = rendezvous_key(provider, StreamId(name, key))
    assert parse_rendezvous_key(made) == (provider, StreamId(name, key))


@example([("", "", "a"), ("", "", "a\x1fexplicit/")])
@given(st.lists(st.tuples(ODD, ODD, ODD), min_size=2, max_size=2, unique=True))
def test_no_streams_rows_lie_among_those_of_another(names: list[tuple[str, str, str]]) -> None:
    one, two = (rendezvous_key(provider, StreamId(name, key)) for provider, name, key in names)
    assert not f"{one}\x1f".startswith(f"{two}\x1f") and not f"{two}\x1f".startswith(f"{one}\x1f")


def test_keys_without_control_characters_stay_as_they_were_stored() -> None:
    assert rendezvous_key("default", StreamId("c", "a/b ü")) == "default\x1fc\x1fa/b ü"


@pytest.mark.parametrize("key", ["\ud800", "a\udfffb"])
async def test_a_stream_key_with_a_lone_surrogate_is_refused_where_it_is_given(key: str) -> None:
    async with cluster_of(MemoryStateStore()) as cluster:
        silo: Silo = cluster.silos[0]
        for runtime in (cluster, cluster.client, silo):
            with pytest.raises(
                TypeError, match=r"the key of a stream.*surrogate.*errors='replace'"
            ):
                runtime.stream(LINES, key)


async def test_a_stream_key_that_is_no_text_says_what_to_write() -> None:
    async with cluster_of(MemoryStateStore()) as cluster:
        key: Any = 5
        with pytest.raises(TypeError, match=r"the key of a stream must be a str, not 5.*str\("):
            cluster.stream(LINES, key)


async def test_the_name_of_a_subscription_is_text_that_can_be_stored() -> None:
    async with cluster_of(MemoryStateStore()) as cluster:
        await cluster.grain(Hearer, "a").name("\x1f/ü")
        await cluster.grain(Hearer, "a").name_badly()
        assert len(await cluster.grain(Hearer, "a").subscriptions()) == 1


async def test_headers_that_are_no_mapping_are_refused() -> None:
    async with cluster_of(MemoryStateStore()) as cluster:
        headers: list[Any] = ["x", [("a", "b")], 5, []]
        for wrong in headers:
            with pytest.raises(
                TypeError, match=r"headers=.* is not a mapping: pass \{'name': 'text'\}"
            ):
                await cluster.silos[0].stream(LINES, "k").publish("a", headers=wrong)
