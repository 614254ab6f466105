"""A handler whose provider is missing in the silo is refused before anything is opened."""

from __future__ import annotations

import pytest

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    ConfigError,
    Grain,
    LocalCluster,
    MemoryMembershipTable,
    NotHosted,
    Silo,
)
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe

ORDERS = StreamNamespace("orders", str, provider="fast")


class Desk(Grain):
    @subscribe(ORDERS)
    async def on_order(self, event: Event[str]) -> None: ...


def streams() -> PersistentStreams:
    return PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())


def test_a_marked_handler_without_its_provider_is_refused_and_both_sides_are_named() -> None:
    table = MemoryMembershipTable()
    match = (
        r"Desk\.on_order: `@subscribe\(StreamNamespace\('orders'\)\)` needs part 'fast', and this "
        r"silo has 'default': pass Silo\(streams={'fast': \.\.\.}\)"
    )
    with pytest.raises(ConfigError, match=match):
        Silo(grains=[Desk], membership=table, streams={"default": streams()})
    assert table.view().rows == ()


async def test_a_local_cluster_refuses_it_as_well() -> None:
    with pytest.raises(ConfigError, match="this silo has none"):
        async with LocalCluster(grains=[Desk]):
            raise AssertionError("started")


async def test_a_silo_with_the_provider_starts() -> None:
    async with Silo(grains=[Desk], streams={"fast": streams()}) as silo:
        assert silo.services.part("fast").name == "fast"


async def test_a_client_that_publishes_to_a_provider_that_is_not_there_is_told_its_name() -> None:
    async with LocalCluster(grains=[], streams={"slow": streams}) as cluster:
        match = (
            r"stream orders/a: the cluster has no stream provider 'fast'. Try again if its silos "
            r"are being restarted; otherwise correct StreamNamespace\(provider=...\), or "
            r"Silo\(streams=...\); .* it has: \$ingest/slow$"
        )
        with pytest.raises(NotHosted, match=match):
            await cluster.stream(ORDERS, "a").publish("x")
