"""Topics without a silo, on the real disk, with rows in SQLite."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from millstream.providers.ledger import Position, open_topics
from millstream.runtime import ConfigError


async def test_a_directory_holds_all_that_a_topic_needs(tmp_path: Path) -> None:
    directory = tmp_path / "topics"
    async with open_topics(directory) as topics:
        orders = await topics.topic("orders", partitions=2)
        wanted = [orders.produce(f"k{n}", f"m{n}".encode()) for n in range(50)]
        assert len(set(await asyncio.gather(*wanted))) == 50
        billing = await orders.subscribe("billing")
        billing.acknowledge(*await billing.batch(10))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "bookie").stat().st_mode) == 0o700
    async with open_topics(directory) as topics:
        orders = await topics.topic("orders")
        found = [len(await orders.read(Position(at, 1))) for at in (0, 1)]
        billing = await orders.subscribe("billing")
        assert sum(found) == 50 and billing.backlog == 40


@pytest.mark.spare
async def test_a_directory_of_others_is_refused_with_file_and_advice(tmp_path: Path) -> None:
    async with open_topics(tmp_path):
        pass
    identity = tmp_path / "bookie" / "identity"
    kept = identity.read_bytes()
    for bad in (b"", kept[:-3], kept.replace(b"topics", b"others")):
        identity.write_bytes(bad)
        with pytest.raises(
            ConfigError, match=r"bookie/identity: offset 0: the file is damaged.*restore the"
        ):
            async with open_topics(tmp_path):
                pass
    identity.write_bytes(kept)
    with pytest.raises(ConfigError, match="belongs to cluster 'topics .*, not 'more .*state store"):
        async with open_topics(tmp_path, scope="more"):
            pass
    async with open_topics(tmp_path):
        pass
