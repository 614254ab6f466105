"""A cluster whose queues are moved by hand: two silos that read, one with the grains, a log."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.contract.reference import LEDGER, Broker, ReferenceQueues

from millstream.runtime import Grain, RuntimeOptions, Silo, grain
from millstream.runtime.extending import extension_of
from millstream.runtime.testing import SimCluster, Simulation, current_host, run
from millstream.streams import (
    Capability,
    DeliveryOptions,
    Event,
    HashRingMapper,
    OwnershipOptions,
    PersistentStreams,
    QueueId,
    SiloSet,
    StreamNamespace,
    StreamOptions,
    subscribe,
)
from millstream.streams.agent.agent import PullingAgent
from millstream.streams.consumer.extension import ConsumerExtension
from millstream.streams.ownership.record import QueueRecord
from millstream.streams.ownership.store import OwnershipStore

__all__ = ["KEPT", "NOTES", "OPEN", "QUEUE", "Desk", "Keeper", "Seen", "play"]

NOTES = StreamNamespace("notes", str)
KEPT = StreamNamespace("kept", str)
OPEN = StreamNamespace("open", str)
QUEUE = "queue-0"
READERS = ("silo-0", "silo-1")


@dataclass(frozen=True)
class Seen:
    """A run of a handler. `epoch`: that of the agent that sent the event."""

    item: str
    at_s: float
    epoch: int
    redelivered: bool


@dataclass
class Notes:
    """The events that the handlers of one run have seen."""

    begun: list[Seen] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    shut: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)

    def items(self) -> list[str]:
        return [one.item for one in self.begun]

    def of(self, epoch: int) -> list[tuple[str, bool]]:
        return [(one.item, one.redelivered) for one in self.begun if one.epoch == epoch]


NOW: list[Notes] = []  # the notes of the current run


class Reader(Grain):
    """Handles an event when its gate is open."""

    @subscribe(NOTES)
    async def on_note(self, event: Event[str]) -> None:
        notes, consumer = NOW[-1], extension_of(self, "streams")
        assert isinstance(consumer, ConsumerExtension)
        epoch = max(e for epochs in consumer.epochs().values() for e in epochs.values())
        now_s = asyncio.get_running_loop().time()
        notes.begun.append(Seen(event.item, now_s, epoch, event.redelivered))
        if event.item in notes.shut:
            await notes.gates[event.item].wait()
        if event.item in notes.failing:
            notes.failing.remove(event.item)
            raise ValueError(f"{event.item} cannot be handled yet")
        notes.ended.append(event.item)


@grain(reentrant=True)
class Open(Grain):
    """Like `Reader`, but reentrant."""

    @subscribe(OPEN)
    async def on_note(self, event: Event[str]) -> None:
        notes = NOW[-1]
        now_s = asyncio.get_running_loop().time()
        notes.begun.append(Seen(event.item, now_s, 0, event.redelivered))
        if event.item in notes.shut:
            await notes.gates[event.item].wait()
        if event.item in notes.failing:
            notes.failing.remove(event.item)
            raise ValueError(f"{event.item} cannot be handled yet")
        notes.ended.append(event.item)


class Keeper(Grain):
    """Acknowledges an event on request, or if the event says so: `B5!`."""

    def __init__(self) -> None:
        self._events: dict[str, Event[str]] = {}

    @subscribe(KEPT, ack="manual")
    async def on_kept(self, event: Event[str]) -> None:
        notes, consumer = NOW[-1], extension_of(self, "streams")
        epoch = max(e for epochs in consumer.epochs().values() for e in epochs.values())
        now_s = asyncio.get_running_loop().time()
        notes.begun.append(Seen(event.item, now_s, epoch, event.redelivered))
        if event.item in notes.shut:
            raise ValueError(f"{event.item} cannot be handled")
        self._events[event.item] = event
        if event.item.endswith("!"):
            await self.context.ack(event)

    async def acknowledge(self, item: str) -> None:
        await self.context.ack(self._events[item])

    async def leave(self) -> None:
        self.context.deactivate_when_idle()


class ByHand:
    """A balancer whose wish the test sets."""

    def __init__(self) -> None:
        self.want: Callable[[Iterable[QueueId]], None] = lambda queues: None

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[Iterable[QueueId]], None],
        /,
    ) -> None:
        self.want = wanted

    async def aclose(self) -> None:
        self.want = lambda queues: None


class Desk:
    """The cluster, and the actions of a test."""

    def __init__(
        self,
        simulation: Simulation,
        ownership: OwnershipOptions,
        capabilities: frozenset[Capability],
        delivery: DeliveryOptions,
    ) -> None:
        self.simulation = simulation
        self.notes = Notes()
        self.broker = Broker()
        self.balancers: dict[str, ByHand] = {}
        self._capabilities = capabilities
        self._options = StreamOptions(ownership=ownership, delivery=delivery)
        self.cluster = SimCluster(
            simulation,
            silos=3,
            grains=[Reader, Keeper, Open],
            streams={"default": self._provider},
            lacking={name: [Reader, Keeper, Open] for name in READERS},
            options=RuntimeOptions(idle_after_s=3600.0),
        )
        simulation.network.set_latency(0.0005, 0.001)

    def _provider(self) -> PersistentStreams:
        host = current_host()
        assert host is not None
        balancer = self.balancers[host.name] = ByHand()
        return PersistentStreams(
            ReferenceQueues(self.broker, self._capabilities),
            mapper=HashRingMapper(queues=1),
            balancer=balancer,
            options=self._options,
        )

    @property
    def now_s(self) -> float:
        return self.simulation.loop.time()

    def give(self, name: str | None) -> None:
        """Let this silo want the queue, and no other."""
        for other, balancer in self.balancers.items():
            balancer.want([QUEUE] if other == name else [])

    @property
    def home(self) -> Silo:
        """The silo with the grains."""
        silo = self.cluster.silo("silo-2")
        assert silo is not None
        return silo

    async def publish(self, *items: str, key: str = "B") -> None:
        await self.home.stream(NOTES, key).publish_many(list(items))

    async def keep(self, *items: str) -> None:
        """Publish items that are acknowledged by hand, one message each."""
        for item in items:
            await self.home.stream(KEPT, "B").publish(item)

    @property
    def keeper(self) -> Keeper:
        return self.home.grain(Keeper, "B")

    def agent(self, name: str) -> PullingAgent:
        silo = self.cluster.silo(name)
        assert silo is not None
        agent = silo.services.part("default").manager.agent(QUEUE)
        assert isinstance(agent, PullingAgent)
        return agent

    async def record(self) -> QueueRecord:
        stored = await OwnershipStore(self.cluster.stores["default"], "default").read(QUEUE)
        assert stored is not None
        return stored.record

    async def until(self, condition: Callable[[], bool], within_s: float = 30.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_owner(self, name: str) -> None:
        async with asyncio.timeout(60):
            while (await self.record()).owner.split(":")[0] != name:
                await asyncio.sleep(0.01)

    def shut(self, *items: str) -> None:
        """Let the handlers of these items wait until they are opened."""
        self.notes.shut |= set(items)

    def open(self, *items: str) -> None:
        for item in items:
            self.notes.gates[item].set()


def play(
    test: Callable[[Desk], Coroutine[Any, Any, None]],
    *,
    seed: int = 1,
    capabilities: frozenset[Capability] = LEDGER,
    ownership: OwnershipOptions | None = None,
    delivery: DeliveryOptions | None = None,
) -> None:
    """Run a test with a cluster in virtual time; silo-0 owns the queue."""
    limits = delivery or DeliveryOptions(max_batch=2, handler_timeout_s=50.0)

    async def main(simulation: Simulation) -> None:
        desk = Desk(simulation, ownership or OwnershipOptions(), capabilities, limits)
        NOW.append(desk.notes)
        await desk.cluster.start()
        desk.give("silo-0")
        await asyncio.sleep(2.0)
        await desk.until_owner("silo-0")
        await test(desk)
        for gate in desk.notes.gates.values():
            gate.set()
        desk.notes.shut.clear()
        await desk.cluster.close()

    try:
        run(main, seed)
    finally:
        NOW.clear()
