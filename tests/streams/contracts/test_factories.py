"""Queues and balancers given by name, or as a function."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Grain, LocalCluster
from millstream.streams import (
    AdapterContext,
    Capability,
    Event,
    PersistentStreams,
    QueueAdapter,
    StreamNamespace,
    subscribe,
)
from millstream.streams.contracts.factories import factory_of

PINGS = StreamNamespace("pings", int)
HEARD = asyncio.Event()


class Hearer(Grain):
    @subscribe(PINGS)
    async def on_ping(self, event: Event[int]) -> None:
        HEARD.set()


async def test_names_of_installed_plug_ins_make_a_provider_that_carries_events() -> None:
    def provider() -> PersistentStreams:
        return PersistentStreams("memory", balancer="deployment")

    async with LocalCluster(silos=1, grains=[Hearer], streams={"default": provider}) as cluster:
        await cluster.stream(PINGS, "a").publish(1)
        async with asyncio.timeout(20):
            await HEARD.wait()


async def test_an_async_function_that_opens_an_adapter_is_a_factory() -> None:
    opened: list[tuple[str, object]] = []

    async def open_adapter(provider: str, context: AdapterContext) -> QueueAdapter:
        opened.append((provider, context))
        return await MemoryQueues().open(provider, context)

    factory, context = factory_of(open_adapter), Any
    assert factory.capabilities == frozenset()
    await factory.open("orders", context)  # type: ignore[arg-type]
    assert opened == [("orders", context)]
    PersistentStreams(open_adapter, balancer=DeploymentBalancer())


def test_a_function_may_say_what_its_adapter_can() -> None:
    async def open_adapter(provider: str, context: AdapterContext) -> QueueAdapter:
        raise NotImplementedError

    open_adapter.capabilities = frozenset({Capability.ORDERED})  # type: ignore[attr-defined]
    assert factory_of(open_adapter).capabilities == {Capability.ORDERED}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("kafka", "deployment"), r"'kafka': no millstream.queues plug-in .*: generator, memory"),
        (("memory", "even"), r"'even': no millstream.balancers plug-in .*: deployment"),
    ],
)
def test_an_unknown_name_names_what_is_installed(arguments: tuple[str, str], text: str) -> None:
    queues, balancer = arguments
    with pytest.raises(ConfigError, match=text):
        PersistentStreams(queues, balancer=balancer)
