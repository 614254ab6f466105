"""Stateless workers publish to streams, and cannot subscribe to them."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, DefinitionError, Grain, Silo, grain, stateless_worker
from millstream.streams import (
    BroadcastChannel,
    Event,
    Gap,
    PersistentStreams,
    StreamNamespace,
    listen,
    on_gap,
    subscribe,
)

LANDED = StreamNamespace("landed", str)
PRICES = BroadcastChannel("prices", str)


def test_a_class_of_workers_has_no_implicit_subscription() -> None:
    with pytest.raises(DefinitionError, match=r"Hearing\.hear: a stateless worker .*`@subscribe"):

        @grain(placement=stateless_worker())
        class Hearing(Grain):
            @subscribe(LANDED)
            async def hear(self, event: Event[str]) -> None: ...


def test_a_class_of_workers_does_not_listen_to_a_channel() -> None:
    with pytest.raises(DefinitionError, match=r"Pricing\.hear: a stateless worker .*`@listen"):

        @grain(placement=stateless_worker())
        class Pricing(Grain):
            @listen(PRICES)
            async def hear(self, price: str) -> None: ...


def test_a_subclass_that_becomes_a_worker_is_checked_with_its_inherited_handlers() -> None:
    class Counting(Grain):
        @subscribe(LANDED)
        async def hear(self, event: Event[str]) -> None: ...

        @on_gap(LANDED)
        async def miss(self, gap: Gap) -> None: ...

    with pytest.raises(DefinitionError, match="a stateless worker cannot have"):

        @grain(placement=stateless_worker())
        class Worker(Counting): ...


@grain(placement=stateless_worker())
class Joining(Grain):
    async def join(self) -> None:
        await self.stream(LANDED, "a").subscribe(self._hear)

    async def publish(self, item: str) -> None:
        await self.stream(LANDED, "a").publish(item)

    async def _hear(self, event: Event[str]) -> None: ...


async def test_a_worker_publishes_and_cannot_subscribe() -> None:
    streams: dict[str, Any] = {"default": PersistentStreams(MemoryQueues())}
    async with Silo(grains=[Joining], streams=streams) as silo:
        await silo.grain(Joining, "a").publish("item")
        with pytest.raises(ConfigError, match=r"Joining\._hear: a stateless worker cannot subscri"):
            await silo.grain(Joining, "a").join()
