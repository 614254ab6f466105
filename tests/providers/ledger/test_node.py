"""One silo's ledgers: a directory is bound to its rows, and works again with them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.conditions import until
from tests.providers.ledger.hearer import HEARD, WORDS, Hearer

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import LedgerOptions, LedgerQueues
from millstream.runtime import (
    ConfigError,
    MemoryMembershipTable,
    MemoryStateStore,
    PublishUnknown,
    Silo,
)
from millstream.streams import PersistentStreams


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


async def test_who_wrote_a_queue_that_nobody_owned_sends_to_its_owner_later(tmp_path: Path) -> None:
    HEARD.clear()
    store, table = MemoryStateStore(), MemoryMembershipTable()

    def member(reads: bool) -> Silo:
        queues = LedgerQueues(tmp_path, LedgerOptions(unowned_after_s=0.0))
        return Silo(
            grains=[Hearer],
            membership=table,
            stores={"default": store},
            streams={"default": PersistentStreams(queues, balancer=DeploymentBalancer())},
            can_own_queues=reads,
        )

    async with member(reads=False) as one:
        await one.stream(WORDS, "k").publish("a")
        async with member(reads=True):
            await until(lambda: HEARD == ["a"])
            with pytest.raises(PublishUnknown):  # this tells it of the new owner
                await one.stream(WORDS, "k").publish("b")
            await one.stream(WORDS, "k").publish("c")
            await until(lambda: HEARD == ["a", "c"])


async def test_a_directory_of_other_rows_is_refused_and_says_so(tmp_path: Path) -> None:
    store = MemoryStateStore()
    async with silo(tmp_path, store):
        pass
    with pytest.raises(
        ConfigError, match="belongs to .*rows .* not .*store that the directory was"
    ):
        async with silo(tmp_path, MemoryStateStore()):
            pass
    async with silo(tmp_path, store):
        pass


async def test_a_directory_that_is_gone_at_a_start_is_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, directory = MemoryStateStore(), tmp_path / "queues"
    async with silo(directory, store, reads=False) as one:
        await one.stream(WORDS, "k").publish("a")
    assert "this directory is new" not in caplog.text
    shutil.rmtree(directory)
    async with silo(directory, store, reads=False):
        found = (
            "this directory is new, but earlier entries are in the directory of bookie [0-9a-f]{32}"
        )
        assert re.search(found, caplog.text)
    caplog.clear()
    async with silo(directory, store, reads=False):
        assert "this directory is new" not in caplog.text


async def test_a_directory_without_its_identity_is_not_begun_anew(tmp_path: Path) -> None:
    store, directory = MemoryStateStore(), tmp_path / "queues"
    async with silo(directory, store, reads=False) as one:
        await one.stream(WORDS, "k").publish("a")
    kept = (directory / "identity").read_bytes()
    (directory / "identity").unlink()
    with pytest.raises(ConfigError, match="no file 'identity'.*restore its file"):
        async with silo(directory, store):
            pass
    HEARD.clear()
    (directory / "identity").write_bytes(kept)
    async with silo(directory, store):
        await until(lambda: HEARD == ["a"])


async def test_two_directories_of_one_store_keep_to_themselves(tmp_path: Path) -> None:
    def both(store: MemoryStateStore) -> Silo:
        made = {
            name: PersistentStreams(
                LedgerQueues(tmp_path / name, LedgerOptions(unowned_after_s=0.0)),
                balancer=DeploymentBalancer(),
            )
            for name in ("default", "second")
        }
        return Silo(
            grains=[],
            membership=MemoryMembershipTable(),
            stores={"default": store},
            streams=made,
            can_own_queues=False,
        )

    def bytes_in(name: str) -> int:
        files = (tmp_path / name).glob("*.seg")
        return sum(path.read_bytes().count(b"first and only") for path in files)

    async with both(MemoryStateStore()) as one:
        for number in range(20):
            await one.stream(WORDS, str(number)).publish("first and only")
    assert bytes_in("default") == 20 and bytes_in("second") == 0
