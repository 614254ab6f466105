"""The events that programs publish while streams are simulated.

Owns: the namespaces and keys, `Traffic` (the answers to publishers), `Publisher`. Not: the further
way of the events (the suites). Invariant: each item is published once under its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.sim.suites.run.programs import again_and_again
from tests.sim.suites.run.record import Run

from millstream.runtime import MillstreamError, QueueFull, QueueUnavailable
from millstream.runtime.testing import Host, Published, Random, Simulation, make_random
from millstream.streams import StreamNamespace

__all__ = ["KEYS", "ORDERS", "TALK", "Publisher", "Traffic"]

KEYS = tuple(f"key-{number}" for number in range(6))
POISON_SHARE = 0.02
ORDERS = StreamNamespace("orders", str, subscriptions="implicit")
TALK = StreamNamespace("talk", str, subscriptions="explicit")


class Traffic(Run):
    """The notes of a run in which events are published."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.accepted: dict[str, list[str]] = defaultdict(list)
        self.refused: dict[str, str] = {}  # items that are certainly not stored, with the error
        self.unknown: set[str] = set()  # items that may be stored

    def send_again(self, items: list[str]) -> None:
        """Note a repeat: refused items may now be stored, and if this program crashes nobody learns
        it."""
        for item in items:
            self.refused.pop(item, None)


class Publisher:
    """A program that publishes items, one after the other, until the run is over."""

    def __init__(self, run: Traffic, host: Host, name: str) -> None:
        self._run = run
        self._loop = run.simulation.loop
        self._rng: Random = make_random(run.simulation.seed, "publisher", name, host.incarnation)
        self._name = f"{name}#{host.incarnation}"
        self._sent = 0

    async def work(self, handle: Callable[[], Any]) -> None:
        """Publish until the run is over; `handle` gives a silo or client, or None."""
        await again_and_again(self._run, self._rng, 0.3, handle, self._publish)

    async def _publish(self, runtime: Any) -> None:
        namespace = self._rng.choice((ORDERS, TALK))
        await self.publish(runtime, namespace, self._rng.choice(KEYS))

    async def publish(self, runtime: Any, namespace: StreamNamespace[str], key: str) -> None:
        """Publish some items, and note the result."""
        items = [self._next_item(namespace) for _ in range(self._rng.choice((1, 1, 3)))]
        started_s = self._loop.time()
        self._run.figures["published"] += len(items)
        try:
            stored = await self._send(runtime, namespace, key, items)
        except MillstreamError as error:
            self._on_failed(items, error)
            return
        stream = f"{namespace.name}/{key}"
        for item in stored:
            self._run.history.record(Published(stream, item, started_s))
        self._run.accepted[stream].extend(stored)

    async def _send(
        self, runtime: Any, namespace: StreamNamespace[str], key: str, items: list[str]
    ) -> list[str]:
        """Publish; return the accepted items."""
        await runtime.stream(namespace, key).publish_many(items)
        return items

    def _on_failed(self, items: list[str], error: MillstreamError) -> None:
        self._run.figures[type(error).__name__] += len(items)
        if isinstance(error, QueueFull | QueueUnavailable):
            self._run.refused.update(dict.fromkeys(items, type(error).__name__))
        else:
            self._run.unknown.update(items)

    def _next_item(self, namespace: StreamNamespace[str]) -> str:
        self._sent += 1
        is_poison = namespace is TALK and self._rng.random() < POISON_SHARE
        return f"{'poison ' if is_poison else ''}{self._name}:{self._sent}"
