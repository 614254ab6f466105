"""Dead letters through whole clusters: kept, listed, and delivered again to their subscriptions."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass

import pytest
from tests.conditions import until
from tests.operators import operator_of

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    ConfigError,
    Grain,
    LocalCluster,
    NotHosted,
    NotInCluster,
    RuntimeOptions,
    Silo,
    StreamError,
    state,
)
from millstream.streams import (
    DeadLetter,
    DeadLetters,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    dead_letters,
    subscribe,
)

LINES = StreamNamespace("lines", str, subscriptions="implicit")
LISTS = StreamNamespace("lists", str, subscriptions="implicit")
TALK = StreamNamespace("talk", str, subscriptions="explicit")
SEEN: dict[str, list[Event[str]]] = defaultdict(list)
BAD: set[str] = set()


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()
    BAD.clear()


def see(who: str, event: Event[str]) -> None:
    if event.item in BAD:
        raise ValueError(f"cannot read {event.item}")
    SEEN[who].append(event)


def texts(who: str) -> list[str]:
    return [event.item for event in SEEN[who]]


@dataclass
class Count:
    lines: int = 0


class Reader(Grain):
    count = state(Count)

    @subscribe(LINES)
    async def on_line(self, event: Event[str]) -> None:
        see("first", event)

    @subscribe(LINES, commit_with=count)
    async def on_counted(self, event: Event[str]) -> None:
        self.count.value.lines += 1
        see("counted", event)

    @subscribe(LISTS, batch=True)
    async def on_list(self, events: list[Event[str]]) -> None:
        for event in events:
            see("list", event)

    async def counted(self) -> int:
        return self.count.value.lines

    async def end(self) -> None:
        self.context.deactivate_when_idle()

    async def listen(self) -> None:
        await self.stream(TALK, "t").subscribe(self._on_talk)

    async def leave(self) -> None:
        for subscription in await self.stream(TALK, "t").subscriptions(self):
            await subscription.unsubscribe()

    async def letters(self) -> int:
        return len(await dead_letters(self).list())

    async def _on_talk(self, event: Event[str]) -> None:
        see("talk", event)


def provider() -> PersistentStreams:
    return PersistentStreams(
        MemoryQueues(),
        mapper=HashRingMapper(queues=2),
        balancer=DeploymentBalancer(rebalance_delay_s=0.05),
        options=StreamOptions(delivery=DeliveryOptions(retries=0)),
    )


def cluster_of(silos: int = 1) -> LocalCluster:
    return LocalCluster(silos=silos, grains=[Reader], streams={"default": provider})


async def until_letters(cluster: LocalCluster, count: int) -> list[DeadLetter]:
    letters = dead_letters(cluster)
    found: list[DeadLetter] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found = [letter async for letter in letters.all()]
    return found


def of(letters: list[DeadLetter], handler: str) -> list[DeadLetter]:
    return [letter for letter in letters if letter.failure.handler == handler]


async def test_every_event_of_a_stream_that_was_given_up_is_kept() -> None:
    BAD.update("abcde")
    async with cluster_of() as cluster:
        await cluster.stream(LINES, "k").publish_many("axbycdze")
        await until(lambda: texts("first") == [*"xyz"])
        found = of(await until_letters(cluster, 10), "on_line")
        bodies = [LINES.codec.decode(letter.failure.body) for letter in found]
    assert bodies == [*"abcde"]
    failure = found[0].failure
    assert (failure.grain_type, failure.grain_key) == ("Reader", "k")
    assert failure.queue.startswith("queue-") and failure.attempts == 1


async def test_a_client_lists_shows_redrives_and_deletes_letters() -> None:
    BAD.update("ab")
    async with cluster_of(2) as cluster:
        await cluster.stream(LINES, "k").publish_many("abz")
        mine = of(await until_letters(cluster, 4), "on_line")
        BAD.clear()
        async with operator_of(cluster.silos[1]) as client:
            letters = dead_letters(client)
            assert isinstance(letters, DeadLetters)
            assert list(await letters.list(mine[0].failure.subscription)) == mine
            assert await letters.get(mine[0].id) == mine[0]
            await letters.redrive(mine[1].id)
            with pytest.raises(LookupError, match="there is no dead letter"):
                await letters.redrive(mine[1].id)
            assert await letters.delete(mine[0].id)
            assert not await letters.list(mine[0].failure.subscription)
    assert texts("first") == ["z", "b"] and texts("counted") == ["z"]
    (_, again) = SEEN["first"]
    assert again.redriven and again.redelivered and again.attempt == 2
    assert again.token == mine[1].failure.token and not SEEN["first"][0].redriven


async def test_a_letter_whose_handler_fails_again_stays_and_its_error_is_raised() -> None:
    BAD.add("a")
    async with cluster_of(2) as cluster:
        await cluster.stream(LISTS, "k").publish("a")
        (letter,) = await until_letters(cluster, 1)
        async with operator_of(cluster.silos[0]) as client:
            with pytest.raises(ValueError, match="cannot read a"):
                await dead_letters(client).redrive(letter.id)
            assert list(await dead_letters(client).list()) == [letter]
        BAD.clear()
        await dead_letters(cluster).redrive(letter.id)
        assert texts("list") == ["a"] and not await dead_letters(cluster).list()


async def test_a_redriven_event_does_not_move_the_position_of_its_subscription() -> None:
    BAD.add("a")
    async with cluster_of() as cluster:
        await cluster.stream(LINES, "k").publish_many("abc")
        (letter,) = of(await until_letters(cluster, 2), "on_counted")
        await until(lambda: texts("counted") == [*"bc"])
        BAD.clear()
        await dead_letters(cluster).redrive(letter.id)
        await cluster.stream(LINES, "k").publish("d")
        await until(lambda: texts("counted") == [*"bcad"])


async def test_what_a_redriven_event_did_to_the_state_is_stored_and_what_failed_is_not() -> None:
    BAD.add("a")
    async with cluster_of() as cluster:
        await cluster.stream(LINES, "k").publish_many("ab")
        (letter,) = of(await until_letters(cluster, 2), "on_counted")
        await until(lambda: texts("counted") == ["b"])
        reader = cluster.grain(Reader, "k")
        with pytest.raises(ValueError, match="cannot read a"):
            await dead_letters(cluster).redrive(letter.id)
        assert await reader.counted() == 1
        BAD.clear()
        await dead_letters(cluster).redrive(letter.id)
        await reader.end()
        assert await reader.counted() == 2  # as read from the store


async def test_an_explicit_subscription_gets_its_letter_and_one_that_ended_does_not() -> None:
    BAD.update("ab")
    async with cluster_of() as cluster:
        reader = cluster.grain(Reader, "r")
        await reader.listen()
        await cluster.stream(TALK, "t").publish_many("ab")
        first, second = await until_letters(cluster, 2)
        assert await reader.letters() == 2
        BAD.clear()
        await dead_letters(cluster.silos[0]).redrive(first.id)
        assert texts("talk") == ["a"]
        await reader.leave()
        with pytest.raises(StreamError, match="has ended: subscribe again, or delete the letter"):
            await dead_letters(cluster).redrive(second.id)
        assert list(await dead_letters(cluster).list()) == [second]


async def test_letters_of_a_provider_that_is_not_there_are_refused_by_name() -> None:
    async with cluster_of() as cluster:
        with pytest.raises(ConfigError, match="other"):
            dead_letters(cluster.silos[0], "other")
        async with operator_of(cluster.silos[0]) as client:
            with pytest.raises(NotHosted, match="other"):
                await dead_letters(client, "other").list()
    with pytest.raises(NotInCluster):
        dead_letters(Silo(grains=[Reader], streams={"default": provider()}))


async def test_letters_of_the_largest_events_are_listed_shown_and_redriven_over_small_frames() -> (
    None
):
    """Each error fits into a frame with its letter, and so does a list of them."""
    frame = 256 * 1024
    words = [chr(ord("a") + n) * (frame // 2 - 5) for n in range(8)]
    BAD.update(words)
    cluster = LocalCluster(
        silos=2,
        grains=[Reader],
        streams={"default": provider},
        options=RuntimeOptions(frame_bytes_max=frame),
    )
    async with cluster:
        for word in words:
            await cluster.stream(LISTS, "k").publish(word)
        with pytest.raises(ValueError, match="message_bytes_max"):
            await cluster.stream(LISTS, "k").publish(words[0] + "x")
        kept = await until_letters(cluster, len(words))
        BAD.clear()
        async with operator_of(cluster.silos[0]) as client:
            letters = dead_letters(client)
            assert [one async for one in letters.all()] == kept
            for letter in kept:
                assert await letters.get(letter.id) == letter
                await letters.redrive(letter.id)
    assert texts("list") == words
