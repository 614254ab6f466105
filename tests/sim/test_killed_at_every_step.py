"""A silo is killed at each step of the loop while events are delivered; effects happen once.

Each step of the loop between a publish and the last effect has a run of its own. So the silo is
killed before and after each await of:

- the handler
- the write of state and position
- the sending of events that were published with the state
- the reply and the acknowledgement
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.sim.suites.run.record import Run
from tests.sim.suites.streams.log_queues import LogService

from millstream.balancers import DeploymentBalancer
from millstream.runtime import Client, Grain, MillstreamError, RuntimeOptions, grain, state
from millstream.runtime.testing import SimCluster, Simulation, current_host, run
from millstream.streams import (
    Backoff,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    StreamNamespace,
    StreamOptions,
    subscribe,
)

INPUTS = StreamNamespace("inputs", str, subscriptions="implicit")
OTHERS = StreamNamespace("others", str, subscriptions="implicit")
OUTPUTS = StreamNamespace("outputs", str, subscriptions="implicit")
EVENTS = ("a", "b", "fails", "c")
OTHER_EVENTS = ("x", "y")
OPTIONS = StreamOptions(
    delivery=DeliveryOptions(retries=3, backoff=Backoff(0.01, 2, 0.1)),
    ownership=OwnershipOptions(poll_s=0.2),
)


@dataclass
class Seen:
    items: list[str] = field(default_factory=list)
    touched: int = 0


@dataclass
class Aside:
    tries: int = 0


class Stage(Grain):
    """Has two subscriptions on one state, a state that neither commits, and a method that
    writes."""

    seen = state(Seen)
    aside = state(Aside)

    @subscribe(INPUTS, commit_with=seen)
    async def on_input(self, event: Event[str]) -> None:
        await self._take(event)
        if event.item == "fails" and event.attempt == 1:
            raise ValueError("the first time")

    @subscribe(OTHERS, commit_with=seen)
    async def on_other(self, event: Event[str]) -> None:
        await self._take(event)

    async def _take(self, event: Event[str]) -> None:
        self.aside.value.tries += 1
        self.seen.value.items.append(event.item)
        self.stream(OUTPUTS, self.key).publish_with(self.seen, event.item)
        await asyncio.sleep(0)

    async def touch(self) -> None:
        self.seen.value.touched += 1
        await self.seen.write()

    async def found(self) -> Seen:
        return self.seen.value


class Sink(Grain):
    seen = state(Seen)

    @subscribe(OUTPUTS, commit_with=seen)
    async def on_output(self, event: Event[str]) -> None:
        self.seen.value.items.append(event.item)

    async def found(self) -> Seen:
        return self.seen.value


@grain(name="idle")
class Idle(Grain):
    """The grain type of a silo without the stages."""


class Killing:
    """Kills a silo at one step of the loop, counted from `begin`, and starts it again."""

    def __init__(self, cluster: SimCluster, victim: str, step: int) -> None:
        self._cluster = cluster
        self._loop = cluster.simulation.loop
        self._victim = victim
        self._step = step
        self._began = 0
        self._is_over = False
        loop: Any = self._loop
        self._tick = loop._tick
        loop._tick = self._on_step

    def begin(self) -> None:
        self._began = self._loop.iterations

    def end(self) -> int:
        """Stop killing; return the number of steps."""
        self._is_over = True
        return self._loop.iterations - self._began

    def _on_step(self) -> None:
        is_due = self._began and self._loop.iterations - self._began >= self._step
        if is_due and self._loop._ready and not self._is_over:
            self._is_over = True
            self._loop.call_soon(self._kill, context=Context())
        self._tick()

    def _kill(self) -> None:
        self._cluster.simulation.crash(self._victim)
        self._loop.call_later(1.0, self._cluster.boot, self._victim, context=Context())


class Killed(Run):
    """One run: the queue service, and the answers to a program."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.logs = LogService(simulation, is_fenced=False, drops_repeats=True)
        self.accepted: set[str] = set()
        self.touched = 0

    def provider(self) -> PersistentStreams:
        host = current_host()
        assert host is not None
        return PersistentStreams(
            self.logs.queues_for(host),
            mapper=HashRingMapper(queues=1),
            balancer=DeploymentBalancer(silos=("silo-0",), rebalance_delay_s=0.1),
            options=OPTIONS,
        )

    def stored(self, namespace: StreamNamespace[str]) -> list[str]:
        return [
            namespace.codec.decode(item)
            for log in self.logs.all()
            for message in log.messages
            if message.stream.namespace == namespace.name
            for item in message.items
        ]

    def wanted(self) -> list[str]:
        return sorted(self.stored(INPUTS) + self.stored(OTHERS))

    async def publish(self, client: Client, killing: Killing) -> None:
        """Activate the grains with undisturbed calls; then publish the events that are
        disturbed."""
        stage = client.grain(Stage, "k")
        await stage.touch()
        killing.begin()
        with suppress(MillstreamError):
            await client.stream(INPUTS, "k").publish_many(EVENTS)
            self.accepted.update(EVENTS)
        with suppress(MillstreamError):
            await client.stream(OTHERS, "k").publish_many(OTHER_EVENTS)
            self.accepted.update(OTHER_EVENTS)
        with suppress(MillstreamError):
            await stage.touch()
            self.touched += 1

    async def effects(self, client: Client) -> None:
        """Wait until each stored event has reached the end, without activating the first stage."""
        async with asyncio.timeout(60):
            while not set(self.wanted()) <= set(await items(client.grain(Sink, "k"))):
                await asyncio.sleep(0.05)

    async def check(self, client: Client) -> None:
        """Check the effects, and the answers to a program."""
        assert self.accepted <= set(self.wanted())
        found = await client.grain(Stage, "k").found()
        for kept in (await items(client.grain(Sink, "k")), found.items):
            assert sorted(kept) == self.wanted(), kept
            for namespace in (INPUTS, OTHERS):
                stored = self.stored(namespace)
                assert [one for one in kept if one in stored] == stored
        assert 1 + self.touched <= found.touched <= 2


async def items(one: Sink) -> list[str]:
    try:
        return (await one.found()).items
    except MillstreamError:
        return []


async def play(simulation: Simulation, victim: str, step: int) -> int:
    """Publish, kill, start again, and judge; return the number of steps."""
    one = Killed(simulation)
    host = simulation.host("client")
    cluster = SimCluster(
        simulation,
        silos=2,
        grains=[Stage, Sink, Idle],
        streams={"default": one.provider},
        options=RuntimeOptions(call_timeout_s=2.0, idle_after_s=3.0, collect_every_s=0.5),
        lacking={"silo-0": [Stage, Sink]},
    )
    await cluster.start()
    killing = Killing(cluster, victim, step)

    async def program() -> int:
        async with cluster.client(host) as client:
            await one.publish(client, killing)
            await one.effects(client)
            steps = killing.end()
            await asyncio.sleep(5.0)  # duplicates would arrive now, and idle grains are activated
            await one.check(client)
            return steps

    steps = await simulation.call(host, program())
    await cluster.close()
    one.logs.service.close()
    return steps


def killed_at(victim: str, step: int) -> int:
    return run(
        lambda simulation: play(simulation, victim, step),
        7,
        max_virtual_s=300.0,
        replay=f"killed_at({victim!r}, {step})",
    ).result


NEVER = 10**9
PARTS = 24


@pytest.fixture(scope="module")
def steps() -> int:
    """Return the number of steps of an undisturbed run."""
    return killed_at("silo-1", NEVER)


@pytest.mark.spare
@pytest.mark.rotates
@pytest.mark.parametrize("victim", ["silo-0", "silo-1"], ids=["reads the queue", "has the grains"])
@pytest.mark.parametrize(
    "part",
    [pytest.param(at, marks=pytest.mark.slow if at else ()) for at in range(PARTS)],
)
def test_effects_happen_once_whichever_silo_is_killed_at_whichever_step(
    victim: str, part: int, steps: int
) -> None:
    for step in range(part, steps, PARTS):
        killed_at(victim, step)
