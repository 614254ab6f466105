"""Queues and balancers that are named, or opened by a function."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import ConfigError, Grain, LocalCluster
from millstream.streams import (
    AdapterHost,
    Capability,
    Event,
    PersistentStreams,
    QueueAdapter,
    StreamNamespace,
    subscribe,
)
from millstream.streams.contracts.factories import factory_of
from millstream.streams.contracts.suite.host import BenchHost

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

    async def open_adapter(provider: str, host: AdapterHost) -> QueueAdapter:
        opened.append((provider, host))
        return await MemoryQueues().open(provider, host)

    factory, host = factory_of(open_adapter), BenchHost()
    await factory.open("orders", host)
    assert opened == [("orders", host)]
    assert factory.capabilities == MemoryQueues.capabilities
    PersistentStreams(open_adapter, balancer=DeploymentBalancer())


def test_a_function_may_say_what_its_adapter_can() -> None:
    async def open_adapter(provider: str, host: AdapterHost) -> QueueAdapter:
        raise NotImplementedError

    open_adapter.capabilities = frozenset({Capability.OWN_POSITION})  # type: ignore[attr-defined]
    assert factory_of(open_adapter).capabilities == {Capability.OWN_POSITION}


async def test_an_adapter_that_a_function_opened_says_what_it_can() -> None:
    closed: list[int] = []

    class Silent:
        async def aclose(self) -> None:
            closed.append(1)

    async def open_adapter(provider: str, host: AdapterHost) -> Any:
        return Silent()

    with pytest.raises(ConfigError, match=r"'orders': .* a Silent without `capabilities`"):
        await factory_of(open_adapter).open("orders", BenchHost())
    assert closed == [1]


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ({"ORDERED"}, "without OWN_POSITION"),
        ({"OWN_POSITION", "REWIND"}, "REWIND needs ORDERED and STABLE_TOKENS"),
        ({"OWN_POSITION", "LEASED"}, "LEASED needs ITEM_ACK"),
        ({"OWN_POSITION", "ITEM_ACK", "LEASED", "ORDERED"}, "LEASED excludes ORDERED"),
    ],
)
def test_capabilities_that_cannot_go_together_are_refused(declared: set[str], text: str) -> None:
    class Queues(MemoryQueues):
        capabilities = frozenset(Capability[name] for name in declared)

    with pytest.raises(ConfigError, match=rf"Queues.capabilities: .*{text}"):
        PersistentStreams(Queues(), balancer=DeploymentBalancer())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("kafka", "deployment"),
            r"'kafka': no plug-in of the .*queues is .*: deadline, generator, ledger, memory",
        ),
        (
            ("memory", "even"),
            r"'even': no plug-in of the group millstream.balancers .*: deployment",
        ),
    ],
)
def test_an_unknown_name_names_what_is_installed(arguments: tuple[str, str], text: str) -> None:
    queues, balancer = arguments
    with pytest.raises(ConfigError, match=text):
        PersistentStreams(queues, balancer=balancer)
