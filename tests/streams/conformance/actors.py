"""The grains of the suite, and their observations: producers, implicit and explicit consumers.

The observations are global, so that they survive activations and silos.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from tests.streams.conformance.adapters import NUMBERS

from millstream.runtime import Grain, state
from millstream.streams import Event, Start, StreamNamespace, Subscription, Token, subscribe

LINES = StreamNamespace("lines", int, subscriptions="explicit")


@dataclass(frozen=True)
class Heard:
    """An event as a handler saw it."""

    item: int
    token: Token
    attempt: int
    is_redelivered: bool
    subscription: str
    headers: dict[str, str]
    at_s: float


class Ears:
    """The events that each consumer saw."""

    def __init__(self) -> None:
        self.by: defaultdict[str, list[Heard]] = defaultdict(list)
        self.sizes: defaultdict[str, list[int]] = defaultdict(list)
        """The number of events in each call."""
        self.gates: dict[int, asyncio.Event] = {}
        """Items whose handlers wait."""
        self.held: dict[str, asyncio.Event] = {}
        """Consumers that wait at each event."""
        self.waiting: list[int] = []
        self.failing: dict[int, int] = {}
        """The remaining failures of an item's handler."""
        self.woken: list[str] = []
        self.ended: list[str] = []

    def items(self, who: str) -> list[int]:
        return [one.item for one in self.by[who]]

    def count(self, *who: str) -> int:
        return sum(len(self.by[one]) for one in who)


ears = Ears()


def forget_everything() -> None:
    ears.__init__()  # type: ignore[misc]


async def hear(who: str, event: Event[int]) -> None:
    """Do the work of all handlers: wait, fail, or note the event."""
    if event.item in ears.gates:
        ears.waiting.append(event.item)
        await ears.gates[event.item].wait()
    if who in ears.held:
        ears.waiting.append(event.item)
        await ears.held[who].wait()
    if ears.failing.get(event.item, 0) > 0:
        ears.failing[event.item] -= 1
        raise ValueError(f"{event.item} fails")
    note(who, event)


def note(who: str, event: Event[int]) -> None:
    ears.by[who].append(
        Heard(
            event.item,
            event.token,
            event.attempt,
            event.redelivered,
            event.subscription,
            dict(event.headers),
            asyncio.get_running_loop().time(),
        )
    )


class Living(Grain):
    """Notes its activations and ends; ends on request."""

    async def on_activate(self) -> None:
        ears.woken.append(f"{type(self).__name__}/{self.key}")

    async def on_deactivate(self, reason: object) -> None:
        ears.ended.append(f"{type(self).__name__}/{self.key}")

    async def end(self) -> None:
        self.context.deactivate_when_idle()

    async def where(self) -> str:
        return self.context.silo


class Hearer(Living):
    """Handles NUMBERS of its key."""

    @subscribe(NUMBERS)
    async def on_number(self, event: Event[int]) -> None:
        await hear(self.key, event)


class Listener(Living):
    """Subscribes to LINES on request."""

    async def listen(self, key: str, name: str = "", start: Start | None = None) -> str:
        return (await self.stream(LINES, key).subscribe(self._on_line, name=name, start=start)).id

    async def listen_in_lists(self, key: str) -> str:
        return (await self.stream(LINES, key).subscribe(self._on_lines, name="lists")).id

    async def subscriptions(self, key: str) -> list[str]:
        return [one.id for one in await self._all(key)]

    async def resume(self, key: str, start: Start | None = None) -> list[str]:
        found = await self._all(key)
        for subscription in found:
            await subscription.resume(start=start)
        return [one.id for one in found]

    async def leave(self, key: str, name: str | None = None) -> int:
        """End the subscriptions of this name, or all; return their number."""
        found = [one for one in await self._all(key) if name is None or one.name == name]
        for subscription in found:
            await subscription.unsubscribe()
        return len(found)

    async def _all(self, key: str) -> list[Subscription[int]]:
        return list(await self.stream(LINES, key).subscriptions(self))

    async def _on_line(self, event: Event[int]) -> None:
        await hear(self.key, event)
        ears.sizes[self.key].append(1)

    async def _on_lines(self, events: list[Event[int]]) -> None:
        ears.sizes[self.key].append(len(events))
        for event in events:
            await hear(self.key, event)


class Producer(Living):
    """Publishes to LINES or NUMBERS on request."""

    async def publish(self, key: str, items: list[int]) -> None:
        for item in items:
            await self.stream(LINES, key).publish(item)

    async def publish_together(self, key: str, items: list[int]) -> None:
        stream = self.stream(LINES, key)
        await asyncio.gather(*(stream.publish(item) for item in items))

    async def publish_many(self, key: str, items: list[int]) -> None:
        await self.stream(LINES, key).publish_many(items)

    async def publish_numbers(self, key: str, items: list[int]) -> None:
        await self.stream(NUMBERS, key).publish_many(items)


@dataclass
class Tally:
    count: int = 0
    total: int = 0
    seen: list[int] = field(default_factory=list)


class Counter(Living):
    """Counts NUMBERS of its key, with effects exactly once."""

    tally = state(Tally)

    @subscribe(NUMBERS, commit_with=tally)
    async def on_number(self, event: Event[int]) -> None:
        await hear(f"counter/{self.key}", event)
        self.tally.value.count += 1
        self.tally.value.total += event.item
        self.tally.value.seen.append(event.item)

    async def counted(self) -> Tally:
        return self.tally.value


GRAINS = (Hearer, Listener, Producer)
