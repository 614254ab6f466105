"""The arguments of `LedgerQueues`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.conditions import until

from millstream.balancers import DeploymentBalancer
from millstream.providers.ledger import (
    BookieOptions,
    LedgerOptions,
    LedgerQueues,
    LedgerTopicOptions,
)
from millstream.runtime import ConfigError, MemoryMembershipTable, MemoryStateStore, Silo
from millstream.streams import PersistentStreams


async def test_a_relative_directory_stays_where_it_was_when_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    queues = LedgerQueues("queues")
    monkeypatch.chdir(elsewhere)
    async with Silo(
        grains=[],
        membership=MemoryMembershipTable(),
        stores={"default": MemoryStateStore()},
        streams={"default": PersistentStreams(queues, balancer=DeploymentBalancer())},
    ):
        await until(lambda: (here / "queues" / "identity").exists())
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize("directory", ["", "a\0b", None, 3, b"bytes"])
def test_what_is_no_path_is_refused(directory: object) -> None:
    with pytest.raises(ConfigError, match="it must be a path"):
        LedgerQueues(directory)  # type: ignore[arg-type]


def test_an_entry_that_a_topic_may_make_must_fit_into_the_bookie() -> None:
    with pytest.raises(ConfigError, match=r"topic\.entry_bytes_max is 9000000.*8388608"):
        LedgerOptions(topic=LedgerTopicOptions(entry_bytes_max=9_000_000))
    bookie = BookieOptions(entry_bytes_max=16 * 2**20)
    LedgerOptions(topic=LedgerTopicOptions(entry_bytes_max=9_000_000), bookie=bookie)
