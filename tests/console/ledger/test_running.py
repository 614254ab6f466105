"""`millstream ledger` beside running silos, each with its own directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.console.ledger.commands import Said, Shop

from millstream.providers.ledger import LedgerOptions, LedgerQueues
from millstream.providers.sqlite import SqliteStateStore
from millstream.runtime import LocalCluster
from millstream.streams import PersistentStreams, StreamNamespace

WORDS = StreamNamespace("words", str)


@pytest.mark.spare
async def test_what_silos_write_is_read_while_they_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys)
    shop.rows = tmp_path / "rows"

    def streams() -> PersistentStreams:
        queues = LedgerQueues(tmp_path / "ledger" / "{silo}", LedgerOptions(unowned_after_s=0.0))
        return PersistentStreams(queues, balancer="deployment")

    async def say(*words: object, offline: bool = False) -> Said:
        return await asyncio.to_thread(shop.say, *words, offline=offline)

    async with LocalCluster(
        grains=[],
        silos=3,
        stores={"default": SqliteStateStore(shop.rows)},
        streams={"default": streams},
    ) as cluster:
        async with asyncio.timeout(60):  # on a busy machine a bookie may be late
            while len((await say("bookies", "--json")).value["bookies"]) < 3:
                await asyncio.sleep(0)
        for number in range(5):
            await cluster.stream(WORDS, "k").publish(f"word {number}")
        found = (await say("ls", "--json")).value
        (ledger,) = found["ledgers"]
        assert ledger["state"] == "open" and ledger["write_quorum"] == 3
        assert len(ledger["bookies"]) == 3 and ledger["under_replicated"] == ""
        read = (await say("read", ledger["topic"], "--json")).value
        assert [one["items"] for one in read][:4] == [[f'"word {n}"'] for n in range(4)]
        assert read[0]["stream"] == "words/k"
        bookies = (await say("bookies", "--json")).value["bookies"]
        assert {one["state"] for one in bookies} == {"writable"}
        assert {one["directory"] for one in bookies} == {
            str(tmp_path / "ledger" / f"silo-{n}") for n in range(3)
        }
        refused = await say("bookies", "--drain", bookies[0]["bookie"])
        assert refused.code == 1 and "but there are 2; start more" in refused.error
        refused = await say("verify", tmp_path / "ledger", offline=True)
        assert (
            refused.code == 1 and refused.error.count("a running bookie uses this directory") == 3
        )
        refused = await say("recover", ledger["ledger"], "--gateway", "127.0.0.1:1")
        assert refused.code == 1 and "--gateway or --store, not both" in refused.error
    whole = await say("verify", tmp_path / "ledger", offline=True)
    assert whole.code == 0 and whole.out.count("  no faults\n") == 3


@pytest.mark.spare
async def test_a_bookie_that_is_emptied_is_said_to_be_draining_and_named_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys)
    shop.rows.mkdir(parents=True)

    def streams() -> PersistentStreams:
        queues = LedgerQueues(tmp_path / "ledger" / "{silo}", LedgerOptions(unowned_after_s=0.0))
        return PersistentStreams(queues, balancer="deployment")

    async def say(*words: object) -> Said:
        return await asyncio.to_thread(shop.say, *words)

    async with LocalCluster(
        grains=[],
        silos=4,
        stores={"default": SqliteStateStore(shop.rows)},
        streams={"default": streams},
    ) as cluster:
        await cluster.stream(WORDS, "k").publish("word")
        (ledger,) = (await say("ls", "--json")).value["ledgers"]
        bookie = ledger["bookies"][0]
        assert (await say("bookies", "--drain", bookie[:8])).code == 0
        found = {
            one["bookie"]: one["state"] for one in (await say("bookies", "--json")).value["bookies"]
        }
        assert found.pop(bookie) == "draining, 1 ledgers to move"
        assert set(found.values()) == {"writable"}
        listed = (await say("ls")).out
        assert f"under-replicated: {bookie[:8]} is being drained" in listed
        assert bookie not in listed and bookie in (await say("ls", "--json")).out
