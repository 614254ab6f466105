"""The grains that handle events while streams are simulated, and the notes about them.

Owns: `Reader` (commits), `Listener` (subscribes by itself), `Careful` (acknowledges by hand),
`Handling` (their notes and delays). Not: judgement (the suites).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.sim.suites.run.record import current_run

from millstream.runtime import Grain, MemoryMembershipTable, Status, grain, state
from millstream.runtime.extending import extension_of
from millstream.runtime.testing import Delivered, SimCluster, Simulation, make_random
from millstream.streams import Event, Gap, Token, on_gap, subscribe
from millstream.streams.consumer.extension import ConsumerExtension

from .traffic import KEYS, ORDERS, TALK, Traffic

__all__ = ["HANDLING_S", "Careful", "Handling", "Heard", "Listener", "Reader"]

HANDLING_S = 0.005
SLOW_S = 8.0
SLOW_EVERY_S = 13.0  # twice in the timeout of a call, so that no call times out because of it
ACK_S = 1.5  # the longest time until an event is acknowledged by hand


class Heard(NamedTuple):
    """A handler saw an event, or heard of a gap before `token`.

    `is_stray`: the silo of the handler was dead, or the sender was no longer the owner.
    """

    stream: str
    subscription: str
    token: Token
    what: str | Gap
    is_stray: bool = False


@dataclass
class Seen:
    """The state of a reader."""

    items: list[str] = field(default_factory=list)


async def note(grain: Grain, subscription: str, stream: str, event: Event[str]) -> None:
    """Note that a handler sees an event; then take a little time, or fail.

    A silo that was declared dead and does not know it may run handlers on events that were under
    way. Such a delivery counts, but its order is not judged: writes are fenced, handlers are not.
    The same holds for late deliveries of a former owner of the queue.
    """
    run = handling_run()
    is_dead = run.is_dead(grain.context.silo)
    is_late = not is_dead and is_overtaken(run, grain, stream)
    run.figures["deliveries in dead silos"] += is_dead
    run.figures["late deliveries"] += is_late
    is_stray = is_dead or is_late
    is_redelivered = event.redelivered or event.attempt > 1
    seen = Delivered(stream, subscription, event.token, event.item, is_redelivered, is_stray)
    run.history.record(seen)
    run.heard.append(Heard(stream, subscription, event.token, event.item, is_stray))
    longest_s = HANDLING_S if run.is_over else run.handling_s
    if run.is_slow(stream):
        longest_s = SLOW_S
    await asyncio.sleep(run.simulation.rng.uniform(0.0, longest_s))
    if event.item.startswith("poison"):
        raise ValueError(f"{event.item} cannot be handled")


def note_gap(subscription: str, gap: Gap) -> None:
    """Note that a grain hears of a gap."""
    run = handling_run()
    run.figures["gaps told"] += 1
    run.heard.append(Heard(str(gap.stream), subscription, gap.first, gap))


def is_overtaken(run: Handling, grain: Grain, stream: str) -> bool:
    """Does the grain handle an event from an owner of an older epoch?"""
    consumer: ConsumerExtension = extension_of(grain, "streams")
    return any(
        epoch < run.epochs[queue]
        for subscription, epochs in consumer.epochs().items()
        if f"/{stream}/" in f"{subscription}/" or subscription.startswith("implicit/")
        for queue, epoch in epochs.items()
    )


@grain(name="reader")
class Reader(Grain):
    """Stores each order together with the position of the stream."""

    seen = state(Seen)

    @subscribe(ORDERS, commit_with=seen)
    async def on_order(self, event: Event[str]) -> None:
        """Take an order."""
        self.seen.value.items.append(event.item)
        await note(self, "reader", f"orders/{self.key}", event)

    @on_gap(ORDERS)
    async def on_lost_orders(self, gap: Gap) -> None:
        """Note lost orders."""
        note_gap("reader", gap)

    async def items(self) -> list[str]:
        """Return all stored orders."""
        return self.seen.value.items


@grain(name="listener")
class Listener(Grain):
    """Subscribes to streams of talk by itself."""

    async def listen(self, key: str) -> None:
        """Subscribe; after that the handler gets all later events."""
        await self.stream(TALK, key).subscribe(self._on_talk)

    async def _on_talk(self, event: Event[str]) -> None:
        await note(self, self.key, f"talk/{event.key}", event)

    @on_gap(TALK)
    async def on_lost_talk(self, gap: Gap) -> None:
        """Note lost talk."""
        note_gap(self.key, gap)


@grain(name="careful")
class Careful(Grain):
    """Acknowledges orders by hand: at once, later, or with a later one."""

    def __init__(self) -> None:
        self._upto: Token | None = None
        self._given: list[Event[str]] = []

    @subscribe(ORDERS, ack="manual")
    async def on_order(self, event: Event[str]) -> None:
        """Take an order."""
        run = handling_run()
        if self._upto is not None and event.token <= self._upto:
            run.on_violated(f"{event.item} was acknowledged by hand, and came again")
        await note(self, "careful", f"orders/{self.key}", event)
        self._given.append(event)
        chance = run.simulation.rng.random()
        if chance < 0.5 or run.is_over:
            await self._acknowledge(event)
        elif chance < 0.9:
            self.context.create_task(self._acknowledge_later(event, chance * ACK_S))
        else:
            run.figures["left to a later one"] += 1

    async def _acknowledge_later(self, event: Event[str], after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._acknowledge(event)

    async def _acknowledge(self, event: Event[str]) -> None:
        self._upto = event.token if self._upto is None else max(self._upto, event.token)
        given, self._given = self._given, []
        for one in given:
            if one.token <= event.token:
                handling_run().acknowledged.add(one.item)
            else:
                self._given.append(one)
        await self.context.ack(event)

    @on_gap(ORDERS)
    async def on_lost_orders(self, gap: Gap) -> None:
        """Note lost orders."""
        note_gap("careful", gap)


class Handling(Traffic):
    """The notes of a run in which events are handled."""

    handling_s = HANDLING_S  # the longest time of a handler, until the run is over

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.cluster: SimCluster | None = None
        rng = make_random(simulation.seed, "slow")
        self.slow_key = rng.choice(("", *KEYS))  # the handler of this key takes SLOW_S now and then
        self._slow_again_s = 0.0
        self.acknowledged: set[str] = set()  # items that were acknowledged by hand
        self.heard: list[Heard] = []

    def is_slow(self, stream: str) -> bool:
        """Should a handler be slow now? Only now and then, so that no call times out."""
        now_s = self.simulation.loop.time()
        is_its = bool(self.slow_key) and stream.endswith(f"/{self.slow_key}")
        if self.is_over or not is_its or now_s < self._slow_again_s:
            return False
        self._slow_again_s = now_s + SLOW_EVERY_S
        self.figures["slow events"] += 1
        return True

    def is_dead(self, silo: str) -> bool:
        """Is the silo dead according to the membership table?"""
        if self.cluster is None:
            return False
        # works while reading fails, too
        row = MemoryMembershipTable.view(self.cluster.table).row(silo)
        return row is not None and row.status is Status.DEAD


def handling_run() -> Handling:
    """Return the run that is being simulated."""
    run = current_run()
    assert isinstance(run, Handling)
    return run
