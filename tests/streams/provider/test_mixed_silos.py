"""Silos that host different grains: each reader of a queue knows all subscriptions."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    Client,
    Grain,
    MembershipOptions,
    MemoryMembershipTable,
    MemoryStateStore,
    NotHosted,
    Silo,
    connect,
    grain,
)
from millstream.runtime.cluster.member import Gossip
from millstream.runtime.wire.address import endpoint_of
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    HashRingMapper,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

NOTES = StreamNamespace("notes", int)
QUICK = StreamNamespace("quick", int, subscriptions="implicit")
ELSEWHERE = StreamNamespace("notes", int, provider="other")
KEYS = tuple(f"key-{number}" for number in range(20))
SEEN: dict[str, list[int]] = defaultdict(list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


def see(label: str, item: int) -> None:
    SEEN[label].append(item)


class Reader(Grain):
    @subscribe(NOTES)
    async def on_note(self, event: Event[int]) -> None:
        see(self.key, event.item)

    @subscribe(QUICK)
    async def on_quick(self, event: Event[int]) -> None:
        see(f"quick/{self.key}", event.item)


@grain(name="Reader")
class NextReader(Grain):
    """The next version of `Reader`: it lacks one handler and has another."""

    @subscribe(NOTES)
    async def on_note_too(self, event: Event[int]) -> None:
        see(f"too/{self.key}", event.item)


class Other(Grain):
    async def ping(self) -> None: ...


class Places:
    """A membership table and a store, and the silos that use them."""

    def __init__(self) -> None:
        self.table, self.store = MemoryMembershipTable(), MemoryStateStore()
        self.providers: list[PersistentStreams] = []

    def silo(
        self,
        *grains: type[Grain],
        reads: bool = True,
        name: str = "",
        provider: str = "default",
        **options: float,
    ) -> Silo:
        delivery = DeliveryOptions(retries=0, backoff=Backoff(0.01, 2, 0.05))
        streams = PersistentStreams(
            MemoryQueues(),
            mapper=HashRingMapper(queues=4),
            balancer=DeploymentBalancer(rebalance_delay_s=0.05),
            options=StreamOptions(delivery=delivery, **options),  # type: ignore[arg-type]
        )
        self.providers.append(streams)
        return Silo(
            grains=list(grains),
            membership=self.table,
            stores={"default": self.store},
            streams={provider: streams},
            can_own_queues=reads,
            membership_options=MembershipOptions(refresh_s=0.2),
            name=name,
        )

    @property
    def unheard(self) -> int:
        return sum(row.unheard for provider in self.providers for row in provider.stats())


async def publish(silo: Silo, item: int) -> None:
    for key in KEYS:
        await silo.stream(NOTES, key).publish(item)


async def test_grains_that_only_another_silo_hosts_hear_their_streams() -> None:
    places = Places()
    async with places.silo(Reader), places.silo(Other) as other:
        await publish(other, 1)
        await other.stream(QUICK, "a").publish(2)
        await until(lambda: sum(map(len, SEEN.values())) == len(KEYS) + 1)
        assert SEEN == {"quick/a": [2], **{key: [1] for key in KEYS}}
        assert places.unheard == 0


@pytest.mark.parametrize("gossips", [True, False])
async def test_what_is_published_once_a_silo_has_started_is_heard_there(
    gossips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places()
    async with places.silo(Other) as owner:
        await publish(owner, 0)  # no silo hosts a reader yet
        await until_unheard(places, len(KEYS))
        if not gossips:  # joining must not depend on gossip, which may be late
            monkeypatch.setattr(Gossip, "tell_all", lambda gossip, view: [])
        async with places.silo(Reader, reads=False):
            await publish(owner, 1)
            await until(lambda: all(SEEN[key] == [1] for key in KEYS))
            monkeypatch.undo()
        assert places.unheard == len(KEYS)


async def until_unheard(places: Places, count: int) -> None:
    async with asyncio.timeout(20):
        while places.unheard < count:
            await asyncio.sleep(0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ends", ["stop", "kill"])
async def test_events_wait_while_the_only_host_of_their_grain_is_away(
    ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    places = Places()
    async with places.silo(Other) as owner:
        reader = places.silo(Reader, reads=False)
        await reader.start()
        await publish(owner, 1)
        await until(lambda: all(SEEN[key] == [1] for key in KEYS))
        with caplog.at_level(logging.WARNING):
            await getattr(reader, ends)()
            await publish(owner, 2)
            await owner.stream(NOTES, "new").publish(3)
            async with places.silo(Reader, reads=False):
                await until(lambda: SEEN["new"] == [3] and all(SEEN[k] == [1, 2] for k in KEYS))
        assert places.unheard == 0
        if ends == "stop":
            assert "no silo hosts grain type Reader; its events wait for one" in caplog.text


async def test_a_type_that_stays_away_is_given_up_in_time() -> None:
    places = Places()
    async with places.silo(Other, absent_type_retention_s=0.2) as owner:
        async with places.silo(Reader, reads=False):
            await publish(owner, 1)
            await until(lambda: all(SEEN[key] == [1] for key in KEYS))
        await publish(owner, 2)
        await until_unheard_or_done(places)
        assert all(SEEN[key] == [1] for key in KEYS)


async def until_unheard_or_done(places: Places) -> None:
    """Wait until the caches of the first silo are empty: events were handled or dropped."""
    async with asyncio.timeout(20):
        while any(row.cached for provider in places.providers[:1] for row in provider.stats()):
            await asyncio.sleep(0)


async def test_a_new_version_under_the_same_name_ends_what_it_does_not_declare() -> None:
    places = Places()
    async with places.silo(Other) as owner:
        async with places.silo(Reader, reads=False, name="readers"):
            await publish(owner, 1)
            await until(lambda: all(SEEN[key] == [1] for key in KEYS))
        async with places.silo(NextReader, reads=False, name="readers"):
            await publish(owner, 2)
            await until(lambda: all(SEEN[f"too/{key}"] == [2] for key in KEYS))
            await until_unheard_or_done(places)
        assert all(SEEN[key] == [1] for key in KEYS)


async def test_while_two_versions_run_a_subscription_waits_for_the_one_that_has_it() -> None:
    places = Places()
    async with places.silo(Other) as owner:
        old = places.silo(Reader, reads=False)
        await old.start()
        async with places.silo(NextReader, reads=False):
            await publish(owner, 1)
            await until(lambda: any(SEEN[key] for key in KEYS))
            await old.stop()  # its grains move to the new version
            await until(lambda: all(SEEN[f"too/{key}"] == [1] for key in KEYS))
            await until_unheard_or_done(places)
        stats = [row for provider in places.providers[:1] for row in provider.stats()]
        assert sum(row.given_up for row in stats) == 0, "no event became a dead letter"


FAR = StreamNamespace("far", int, provider="other", subscriptions="explicit")


class FarReader(Grain):
    async def listen(self) -> None:
        await self.stream(FAR, self.key).subscribe(self._on_far)

    async def _on_far(self, event: Event[int]) -> None:
        see(self.key, event.item)


async def test_silos_with_other_providers_keep_no_subscriptions_of_streams_they_lack() -> None:
    places = Places()
    async with places.silo(Other), places.silo(FarReader, provider="other") as far:
        for key in KEYS:
            await far.grain(FarReader, key).listen()
            await far.stream(FAR, key).publish(1)
        await until(lambda: all(SEEN[key] == [1] for key in KEYS))


def started(*silos: Silo) -> Client:
    """Connect to silos that are running when the client starts."""
    return connect(*(endpoint_of(silo.address) for silo in silos))


class OtherReader(Grain):
    @subscribe(ELSEWHERE)
    async def on_note(self, event: Event[int]) -> None:
        see(f"other/{self.key}", event.item)


async def test_a_client_publishes_through_a_silo_that_has_the_provider() -> None:
    """The gateway that the stream's key chooses makes no difference."""
    places = Places()
    here, there = places.silo(Reader), places.silo(OtherReader, provider="other")
    async with here, there, started(here, there) as client:
        await until(lambda: len(client.gateways.known) == 2)
        for key in KEYS:
            await client.stream(NOTES, key).publish(1)
            await client.stream(ELSEWHERE, key).publish(2)
        await until(lambda: sum(map(len, SEEN.values())) == 2 * len(KEYS))
        assert SEEN == {key: [1] for key in KEYS} | {f"other/{key}": [2] for key in KEYS}
        nowhere = StreamNamespace("notes", int, provider="third")
        with pytest.raises(NotHosted, match="the cluster has no stream provider 'third'"):
            await client.stream(nowhere, "a").publish(1)
        await there.stop()
        with pytest.raises(NotHosted, match="no stream provider 'other'"):
            await client.stream(ELSEWHERE, "a").publish(1)
