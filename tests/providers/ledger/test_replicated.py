"""Silos with a directory each: each published event is in several directories."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from tests.conditions import until
from tests.providers.ledger.hearer import HEARD, WORDS, Hearer

from millstream.providers.ledger import LedgerOptions, LedgerQueues
from millstream.runtime import (
    ConfigError,
    LocalCluster,
    MemoryMembershipTable,
    MemoryStateStore,
    Silo,
)
from millstream.streams import PersistentStreams


def streams_in(directory: Path) -> PersistentStreams:
    queues = LedgerQueues(directory / "{silo}", LedgerOptions(unowned_after_s=0.0))
    return PersistentStreams(queues, balancer="deployment")


async def test_two_silos_of_one_name_cannot_have_one_directory(tmp_path: Path) -> None:
    store, table = MemoryStateStore(), MemoryMembershipTable()

    def named(name: str) -> Silo:
        return Silo(
            grains=[],
            membership=table,
            stores={"default": store},
            streams={"default": streams_in(tmp_path)},
            name=name,
        )

    async with named("a") as one:
        text = f"silo {re.escape(one.address)} uses this directory and is also named 'a': give each"
        with pytest.raises(ConfigError, match=text):
            async with named("a"):
                pass
        async with named("b"):
            pass


async def test_what_is_published_is_in_the_directory_of_each_of_three_silos(tmp_path: Path) -> None:
    HEARD.clear()
    ledger = tmp_path / "ledger"
    async with LocalCluster(
        grains=[Hearer], silos=3, streams={"default": lambda: streams_in(ledger)}
    ) as cluster:
        for number in range(10):
            await cluster.stream(WORDS, "k").publish(f"word number {number}")
        await until(lambda: len(HEARD) == 10)
    assert HEARD == [f"word number {number}" for number in range(10)]
    for name in ("silo-0", "silo-1", "silo-2"):
        stored = b"".join(path.read_bytes() for path in (ledger / name).glob("*.seg"))
        assert all(stored.count(word.encode()) == 1 for word in HEARD)
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (ledger, ledger / name)]
        assert modes == [0o700, 0o700]
        files = [stat.S_IMODE(path.stat().st_mode) for path in (ledger / name).iterdir()]
        assert files and set(files) == {0o600}
