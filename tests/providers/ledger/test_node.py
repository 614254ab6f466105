"""One silo's ledgers: a directory is bound to its rows, and comes back with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues
from millstream.runtime import ConfigError, Grain, MemoryMembershipTable, MemoryStateStore, Silo
from millstream.streams import Event, PersistentStreams, StreamNamespace, subscribe

WORDS = StreamNamespace("words", str)
HEARD: list[str] = []


class Hearer(Grain):
    @subscribe(WORDS)
    async def on_word(self, event: Event[str]) -> None:
        HEARD.append(event.item)


def silo(directory: Path, store: MemoryStateStore, reads: bool = True) -> Silo:
    queues = LedgerQueues(directory, LedgerOptions(unowned_after_s=0.0))
    return Silo(
        grains=[Hearer],
        membership=MemoryMembershipTable(),
        stores={"default": store},
        streams={"default": PersistentStreams(queues, balancer=DeploymentBalancer())},
        can_own_queues=reads,
    )


async def test_what_nobody_read_is_read_by_the_next_program(tmp_path: Path) -> None:
    HEARD.clear()
    store = MemoryStateStore()
    async with silo(tmp_path, store, reads=False) as one:
        for word in ("a", "b", "c"):
            await one.stream(WORDS, "k").publish(word)
    assert HEARD == []
    async with silo(tmp_path, store) as two:
        await two.stream(WORDS, "k").publish("d")
        await until(lambda: len(HEARD) == 4)
    assert HEARD == ["a", "b", "c", "d"]


async def test_a_directory_of_other_rows_is_refused_and_says_so(tmp_path: Path) -> None:
    store = MemoryStateStore()
    async with silo(tmp_path, store):
        pass
    with pytest.raises(ConfigError, match="belongs to .*rows .* not .*store that it was made"):
        async with silo(tmp_path, MemoryStateStore()):
            pass
    async with silo(tmp_path, store):
        pass
