"""Implicit subscriptions for some keys of a namespace."""

from __future__ import annotations

import time
from collections import defaultdict
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import DefinitionError, Grain, LocalCluster
from millstream.streams import (
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamId,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.api.filters.key_pattern import PATTERN_CHARS_MAX, matches
from millstream.streams.api.implicit import ImplicitSet, ImplicitSubscription

ORDERS = StreamNamespace("orders", str)
PARCELS = StreamNamespace("parcels", str, subscriptions="implicit")
TALK = StreamNamespace("talk", str, subscriptions="explicit")
SEEN: dict[str, list[str]] = defaultdict(list)
TEXT = st.text("ab*?[]!-é", max_size=8)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class European(Grain):
    @subscribe(ORDERS, key="eu-*")
    async def on_order(self, event: Event[str]) -> None:
        SEEN[f"eu {event.key}"].append(event.item)

    @subscribe(PARCELS, key="eu-[0-9]")
    async def on_parcel(self, event: Event[str]) -> None:
        SEEN[f"parcel {event.key}"].append(event.item)


class Anywhere(Grain):
    @subscribe(ORDERS)
    async def on_order(self, event: Event[str]) -> None:
        SEEN[f"any {event.key}"].append(event.item)


@given(TEXT, TEXT)
def test_a_pattern_means_what_it_means_for_file_names(pattern: str, key: str) -> None:
    assert matches(pattern, key) == (not pattern or fnmatchcase(key, pattern))


def test_a_pattern_is_matched_in_bounded_time() -> None:
    pattern = "a*" * (PATTERN_CHARS_MAX // 2 - 1) + "b"
    began_s = time.process_time()  # the load of the machine does not count
    assert not matches(pattern, "a" * 10_000)
    assert time.process_time() - began_s < 0.5


def test_lines_are_no_end_of_a_key() -> None:
    assert matches("a*", "a\nb") and not matches("a", "a\n") and not matches("A", "a")


def test_a_set_has_those_of_a_stream() -> None:
    def one(handler: str, key: str = "") -> ImplicitSubscription:
        return ImplicitSubscription("default", "ns", "both", "A", handler, None, True, key=key)

    every, some = one("all"), one("some", "x?")
    both = ImplicitSet({"ns": {one.subscription: one for one in (every, some)}})
    assert list(both.of(StreamId("ns", "x1")).values()) == [every, some]
    assert list(both.of(StreamId("ns", "y1")).values()) == [every]
    assert not both.of(StreamId("other", "x1"))


async def test_only_streams_whose_key_fits_wake_the_grain() -> None:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=2),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(),
        )

    grains, streams = [European, Anywhere], {"default": provider}
    async with LocalCluster(silos=2, grains=grains, streams=streams) as cluster:
        keys = ["eu-1", "us-1", "eu-", "xeu-1", "eu-22"]
        for key in keys:
            await cluster.stream(ORDERS, key).publish("o")
            await cluster.stream(PARCELS, key).publish("p")
        for key in keys:
            await until(lambda key=key: bool(SEEN[f"any {key}"]))  # type: ignore[misc]
        expected = ["eu eu-", "eu eu-1", "eu eu-22", "parcel eu-1"]
        await until(lambda: all(SEEN[name] for name in expected))
        heard = sorted(name for name, items in SEEN.items() if items and "any" not in name)
        assert heard == expected
        listed = {
            key: sorted(one.consumer for one in await cluster.stream(ORDERS, key).subscriptions())
            for key in ("eu-1", "us-1")
        }
        assert listed == {"eu-1": ["Anywhere/eu-1", "European/eu-1"], "us-1": ["Anywhere/us-1"]}


@pytest.mark.parametrize("given", ["", 5, None, lambda key: True, "x" * (PATTERN_CHARS_MAX + 1)])
def test_what_is_no_pattern_is_refused(given: object) -> None:
    with pytest.raises(DefinitionError, match="key (is|has) "):

        class _Bad(Grain):
            @subscribe(ORDERS, key=given)  # type: ignore[call-overload, untyped-decorator]
            async def on_order(self, event: Event[str]) -> None: ...


def test_a_namespace_of_explicit_subscriptions_has_no_use_for_a_pattern() -> None:
    with pytest.raises(DefinitionError, match="takes explicit ones only"):

        class _Bad(Grain):
            @subscribe(TALK, key="a*")
            async def on_talk(self, event: Event[str]) -> None: ...
