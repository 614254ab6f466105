"""A silo that runs only a ledger's bookie, beside silos that publish and read."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.conditions import until
from tests.providers.ledger.hearer import HEARD, WORDS, Hearer

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerQueues
from millstream.providers.memory import MemoryQueues
from millstream.runtime import (
    ConfigError,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
)
from millstream.streams import PersistentStreams


def silo(directory: Path, table: MemoryMembershipTable, store: MemoryStateStore) -> Silo:
    queues = LedgerQueues(directory)
    return Silo(
        grains=[Hearer],
        membership=table,
        stores={"default": store},
        streams={
            "default": PersistentStreams(queues, balancer=DeploymentBalancer()),
            "live": PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer()),
        },
    )


async def test_others_publish_to_it_and_read_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    HEARD.clear()
    caplog.set_level(logging.INFO, "millstream.ledger")
    table, store = MemoryMembershipTable(), MemoryStateStore()
    bookie = silo(tmp_path, table, store)
    bookie.reduce_to_bookie()
    async with bookie:
        assert caplog.text.count("runs here, boot number 1") == 1
        async with silo(tmp_path, table, store) as whole:
            for word in ("a", "b", "c"):
                await whole.stream(WORDS, "k").publish(word)
            await until(lambda: len(HEARD) == 3)
            assert bookie.services.activation_count == 0
        assert caplog.text.count("runs here") == 1
    assert HEARD == ["a", "b", "c"]


def test_streams_without_a_ledger_have_no_bookie() -> None:
    streams = {"live": PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())}
    alone = Silo(grains=[], membership=MemoryMembershipTable(), streams=streams)
    with pytest.raises(
        ConfigError, match=r"no part .* has a bookie \(it has 'live'\): .*LedgerQueues"
    ):
        alone.reduce_to_bookie()
