"""The number of attempts, the waits and the end of a failing event, by subscription."""

from __future__ import annotations

from collections import defaultdict

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, DefinitionError, Grain, LocalCluster
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    GiveUpDecision,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    dead_letters,
    subscribe,
)

LINES = StreamNamespace("lines", str, subscriptions="implicit")
LISTS = StreamNamespace("lists", str, subscriptions="implicit")
SEEN: dict[str, list[str]] = defaultdict(list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class Hopeless(ValueError):
    pass


def see(event: Event[str]) -> None:
    SEEN[event.key].append(f"{event.item}{event.attempt}")
    if event.item == "bad":
        raise Hopeless("never")
    if event.item == "weak" and event.attempt < 3:
        raise ValueError("once more")


class Reader(Grain):
    @subscribe(LINES, retries=3, backoff=Backoff(0.001, 1.0, 0.001), give_up_on=(Hopeless,))
    async def on_line(self, event: Event[str]) -> None:
        see(event)

    @subscribe(LISTS, batch=True, give_up_on=(Hopeless,))
    async def on_list(self, events: list[Event[str]]) -> None:
        for event in events:
            see(event)


def cluster_of(on_give_up: GiveUpDecision | None = None, first_s: float = 60.0) -> LocalCluster:
    def provider() -> PersistentStreams:
        delivery = DeliveryOptions(backoff=Backoff(first_s, 1.0, first_s))
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(delivery=delivery),
            on_give_up=on_give_up,
        )

    return LocalCluster(silos=1, grains=[Reader], streams={"default": provider})


async def test_a_subscription_has_its_own_waits_and_exceptions_that_are_not_tried_again() -> None:
    async with cluster_of() as cluster:
        await cluster.stream(LINES, "k").publish_many(["a", "bad", "weak", "z"])
        await until(lambda: "z1" in SEEN["k"])  # the wait of the provider is a minute
        (letter,) = await dead_letters(cluster).list()
    assert SEEN["k"] == ["a1", "bad1", "weak1", "weak2", "weak3", "z1"]
    assert letter.failure.attempts == 1 and "Hopeless: never" in letter.failure.error


async def test_of_a_list_only_the_event_itself_is_given_up() -> None:
    async with cluster_of(first_s=0.001) as cluster:
        await cluster.stream(LISTS, "k").publish_many(["a", "bad", "z"])
        await until(lambda: "z1" in SEEN["k"])
        (letter,) = await dead_letters(cluster).list()
    assert LISTS.codec.decode(letter.failure.body) == "bad"


async def test_a_provider_may_skip_or_pause_without_a_failure_handler() -> None:
    async with cluster_of("skip") as cluster:
        await cluster.stream(LINES, "k").publish_many(["bad", "z"])
        await until(lambda: "z1" in SEEN["k"])
        assert not await dead_letters(cluster).list()
    SEEN.clear()
    async with cluster_of("pause") as cluster:
        await cluster.stream(LINES, "k").publish_many(["a", "bad", "z"])
        await cluster.stream(LINES, "other").publish("z")
        await until(lambda: "bad1" in SEEN["k"] and bool(SEEN["other"]))
        provider = cluster.silos[0].services.part("default")
        await until(lambda: sum(one.given_up for one in provider.stats()) == 1)
        assert SEEN["k"] == ["a1", "bad1"] and not await dead_letters(cluster).list()


def test_what_is_no_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_give_up='retry'.*'dead_letter', 'skip', 'pause'"):
        PersistentStreams(
            MemoryQueues(),
            balancer=DeploymentBalancer(),
            on_give_up="retry",  # type: ignore[arg-type]
        )


@pytest.mark.parametrize("given", [ValueError, (5,), ("ValueError",), (KeyboardInterrupt,)])
def test_what_is_no_tuple_of_exceptions_is_refused(given: object) -> None:
    with pytest.raises(DefinitionError, match="write a tuple of exception types"):

        class _Bad(Grain):
            @subscribe(LINES, give_up_on=given)  # type: ignore[call-overload, untyped-decorator]
            async def on_line(self, event: Event[str]) -> None: ...


def test_what_is_no_backoff_is_refused() -> None:
    with pytest.raises(DefinitionError, match="backoff is 5"):

        class _Bad(Grain):
            @subscribe(LINES, backoff=5)  # type: ignore[call-overload, untyped-decorator]
            async def on_line(self, event: Event[str]) -> None: ...
