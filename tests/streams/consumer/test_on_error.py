"""Grains hear of their events that were given up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import DefinitionError, Grain, LocalCluster
from millstream.streams import (
    DeliveryFailure,
    DeliveryOptions,
    Event,
    GiveUpDecision,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    dead_letters,
    on_error,
    subscribe,
)
from millstream.streams.testing import owners

LINES = StreamNamespace("lines", str)
TALK = StreamNamespace("talk", str, subscriptions="implicit")
SEEN: list[str] = []
TOLD: list[DeliveryFailure] = []
TRICKS: list[str] = []


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    TOLD.clear()
    TRICKS.clear()


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        SEEN.append(event.item)
        if event.item == "bad":
            raise ValueError("never")

    async def listen(self) -> None:
        await self.stream(LINES, "other").subscribe(self.on_line, on_give_up="skip")

    @on_error(LINES)
    async def failed(self, failure: DeliveryFailure) -> None:
        TOLD.append(failure)
        SEEN.append("told")
        if "raise" in TRICKS:
            raise ValueError("not even that")
        if "cancel" in TRICKS:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        if "leave" in TRICKS:
            for one in await self.stream(LINES, "other").subscriptions(self):
                await one.unsubscribe()


class Deaf(Grain):
    @subscribe(TALK)
    async def on_talk(self, event: Event[str]) -> None:
        SEEN.append(event.item)
        if event.item == "bad":
            raise ValueError("never")


def cluster_of(silos: int = 1, on_give_up: GiveUpDecision | None = None) -> LocalCluster:
    def provider() -> PersistentStreams:
        return PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=2),
            balancer=DeploymentBalancer(rebalance_delay_s=0.02),
            options=StreamOptions(delivery=DeliveryOptions(retries=0, max_batch=1)),
            on_give_up=on_give_up,
        )

    return LocalCluster(silos=silos, grains=[Reader, Deaf], streams={"default": provider})


@pytest.mark.parametrize("silos", [1, 2])
@pytest.mark.parametrize("decision", ["dead_letter", "skip", "pause"])
async def test_a_grain_hears_what_became_of_an_event_before_the_next_one(
    decision: GiveUpDecision, silos: int
) -> None:
    async with cluster_of(silos, decision) as cluster:
        here: Any = SimpleNamespace(silos=lambda: cluster.silos)
        # no queue moves during the test
        await until(lambda: len(set(owners(here).values())) == silos)
        await cluster.stream(LINES, "k").publish_many(["a", "bad", "z"])
        await until(lambda: bool(TOLD) and (decision == "pause" or "z" in SEEN))
        (failure,) = TOLD
        assert failure.decision == decision and "ValueError: never" in failure.error
        assert LINES.codec.decode(failure.body) == "bad"
        assert SEEN == ["a", "bad", "told", "z"][: 3 if decision == "pause" else 4]
        letters = await dead_letters(cluster).list()
        assert [one.failure.decision for one in letters] == ["dead_letter"] * len(letters)


async def test_explicit_subscriptions_are_heard_of_too() -> None:
    async with cluster_of() as cluster:
        await cluster.grain(Reader, "k").listen()
        await cluster.stream(LINES, "other").publish_many(["bad", "z"])
        # that of the mark, in the grain "other", and this one
        await until(lambda: SEEN.count("z") == 2)
        by = {one.subscription.partition("/")[0]: one.decision for one in TOLD}
        assert by == {"implicit": "dead_letter", "explicit": "skip"}


@pytest.mark.parametrize("trick", ["raise", "cancel"])
async def test_a_method_that_fails_is_not_told_again_and_holds_nothing_up(
    trick: str, caplog: pytest.LogCaptureFixture
) -> None:
    TRICKS.append(trick)
    async with cluster_of() as cluster:
        await cluster.stream(LINES, "k").publish_many(["bad", "z"])
        await until(lambda: "z" in SEEN)
        assert len(TOLD) == 1
    assert ("the call of @on_error of" in caplog.text) is (trick == "raise")


async def test_a_method_that_unsubscribes_hears_nothing_more() -> None:
    TRICKS.append("leave")
    async with cluster_of() as cluster:
        await cluster.grain(Reader, "k").listen()
        await cluster.stream(LINES, "other").publish_many(["bad", "z"])
        await until(lambda: "z" in SEEN)
        stream = cluster.stream(LINES, "other")
        listed = [one for one in await stream.subscriptions() if not one.is_implicit]
        assert listed == []


async def test_a_grain_without_such_a_method_goes_on() -> None:
    async with cluster_of() as cluster:
        await cluster.stream(TALK, "k").publish_many(["bad", "z"])
        await until(lambda: SEEN == ["bad", "z"])


def test_a_method_of_another_form_is_refused() -> None:
    with pytest.raises(DefinitionError, match="annotate `failure: DeliveryFailure`, not str"):

        class _Text(Grain):
            @on_error(LINES)  # type: ignore[arg-type]
            async def failed(self, failure: str) -> None: ...

    with pytest.raises(DefinitionError, match="already handles errors of streams named 'lines'"):

        class _Twice(Grain):
            @on_error(LINES)
            async def failed(self, failure: DeliveryFailure) -> None: ...

            @on_error(LINES)
            async def failed_too(self, failure: DeliveryFailure) -> None: ...

    with pytest.raises(DefinitionError, match="has no method with `@subscribe"):

        class _Deaf(Grain):
            @on_error(TALK)
            async def failed(self, failure: DeliveryFailure) -> None: ...

    given: Any = test_a_method_of_another_form_is_refused
    with pytest.raises(DefinitionError, match="write `@on_error\\(NAMESPACE\\)`"):
        on_error(given)
