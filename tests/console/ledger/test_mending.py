"""`millstream ledger verify` and `recover`: their findings, their changes and their errors."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.console.ledger.commands import Shop, run

from millstream.balancers import DeploymentBalancer
from millstream.console.main import main
from millstream.providers.ledger import LedgerOptions, LedgerQueues, Position, open_topics
from millstream.providers.ledger.topic.appending.takeover import LEFT_OUT
from millstream.runtime import (
    CursorTooOld,
    MemoryMembershipTable,
    PublishUnknown,
    QueueUnavailable,
    Silo,
)
from millstream.streams import PersistentStreams, StreamNamespace

WORDS = StreamNamespace("words", str)


def test_a_whole_directory_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(tmp_path, capsys)
    shop.fill()
    bookie = shop.places[0] / "bookie"
    before = {path.name: path.read_bytes() for path in bookie.iterdir()}
    said = shop.say("verify", bookie, offline=True)
    assert said.code == 0 and said.out.endswith("  no faults\n"), said
    (found,) = shop.say("verify", bookie, "--json", offline=True).value
    assert shop.say("verify", shop.places[0], offline=True).out == said.out
    assert found["entries"] >= 4 and found["faults"] == [] and found["cluster"].startswith("topics")
    assert {path.name: path.read_bytes() for path in bookie.iterdir()} == before


def test_damage_is_named_with_file_offset_and_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys)
    shop.fill()
    segment = next((shop.places[0] / "bookie").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    at = data.index(b"value c")
    data[at] ^= 1
    segment.write_bytes(data)
    said = shop.say("verify", segment.parent, offline=True)
    assert said.code == 1 and "1 faults" in said.out
    assert f"damaged: {segment}: offset " in said.out and "What can be done: " in said.out
    (found,) = shop.say("verify", segment.parent, "--json", offline=True).value
    (fault,) = found["faults"]
    assert fault["offset"] < at < fault["offset"] + 512


def test_what_cannot_be_verified_is_said_and_the_others_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys)
    shop.fill()
    (tmp_path / "empty").mkdir()
    wrong = [tmp_path / "none", tmp_path / "empty", shop.rows]
    said = shop.say("verify", *wrong, shop.places[0] / "bookie", offline=True)
    assert said.code == 1 and said.out.endswith("  no faults\n")
    texts = said.error.splitlines()
    assert "the directory does not exist" in texts[0]
    assert "the directory is empty" in texts[1]
    assert "there are no files of a bookie" in texts[2]
    (tmp_path / "file").write_text("x")
    said = shop.say("verify", tmp_path / "file", offline=True)
    assert said.code == 1 and "the path is not a directory" in said.error

    async def in_use() -> None:
        async with open_topics(shop.places[0]):
            place = shop.places[0] / "bookie"
            said = await asyncio.to_thread(shop.say, "verify", place, offline=True)
            assert said.code == 1 and "a running bookie uses this directory; stop" in said.error

    run(in_use())


@pytest.mark.spare
def test_an_open_ledger_gets_its_end_without_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys)
    shop.fill(["a", "a", "a"], dies=True)
    (ledger,) = [one["ledger"] for one in shop.say("ls", "--json").value["ledgers"]]
    said = shop.say("recover", ledger)
    assert said.code == 0 and f"ledger {ledger} ends with entry " in said.out
    assert shop.say("recover", ledger).out == said.out

    async def read() -> None:
        async with open_topics(shop.places[0]) as topics:
            orders = await topics.topic("orders")
            found = [await orders.read(Position(at, 1)) for at in (0, 1)]
            assert sorted(map(len, found)) == [0, 3]
            assert await orders.produce("a", b"more") is not None

    run(read())


@pytest.mark.spare
def test_a_ledger_whose_bookie_is_lost_ends_only_when_the_loss_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys)
    shop.fill(["a", "a", "a"], dies=True)
    shutil.rmtree(shop.places[0] / "bookie")
    (ledger,) = [one["ledger"] for one in shop.say("ls", "--json").value["ledgers"]]
    words = ("recover", ledger, "--wait", "0.1")
    said = shop.say(*words)
    assert said.code == 1 and "start its bookies" in said.error
    said = shop.say(*words, "--accept-loss")
    assert said.code == 1 and "all entries: messages from 1 on, an unknown number" in said.out
    assert "nothing is given up yet: to accept the loss" in said.out
    facts = shop.say(*words, "--accept-loss", "--json").value
    assert facts["last"] == -1 and not facts["is_lost"] and not facts["had_end"]
    assert shop.say("ls", "--json").value["ledgers"][0]["state"] == "recovering"
    said = shop.say(*words, "--accept-loss", "--yes")
    assert said.code == 1 and "may return: wait until it is lost, or give --gone" in said.error
    (away,) = facts["away_bookies"]
    said = shop.say(*words, "--accept-loss", "--yes", "--gone", away[:3])
    assert said.code == 1 and "give at least 4 characters of the UUID" in said.error
    said = shop.say(*words, "--accept-loss", "--yes", "--gone", away[:8])
    assert said.code == 0 and "the ledger was not closed; it has no entry" in said.out
    assert shop.say(*words, "--accept-loss", "--yes").out.endswith("no entry is missing\n")

    async def go_on() -> None:
        async with open_topics(shop.places[0]) as topics:
            orders = await topics.topic("orders")
            where = await orders.produce("a", b"more")
            assert where is not None and where.number == 1 + LEFT_OUT

    run(go_on())


@pytest.mark.spare
def test_closed_ledgers_whose_bookie_is_lost_hold_a_partition_up_until_the_loss_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys)
    shop.fill(["a", "a", "a"])
    shutil.rmtree(shop.places[0] / "bookie")
    (ledger,) = [one["ledger"] for one in shop.say("ls", "--json").value["ledgers"]]

    async def held_up() -> None:
        async with open_topics(shop.places[0]) as topics:
            orders = await topics.topic("orders")
            (reason,) = orders.unavailable.values()
            assert list(orders.unavailable) == [1] and "cannot be taken over" in str(reason)
            with pytest.raises(QueueUnavailable, match="cannot be taken over"):
                await orders.produce("a", b"more")

    run(held_up())
    words = ("recover", ledger, "--accept-loss")
    assert shop.say("recover", ledger).out.startswith(f"ledger {ledger} ends with entry 2")
    said = shop.say(*words)
    assert said.code == 1 and "entries 0 to 2: messages 1 to 3 (3)" in said.out, said
    assert "in total 3 entries with 3 messages\n" in said.out
    facts = shop.say(*words, "--json").value
    (part,) = facts["parts"]
    assert (part["first"], part["last"], part["first_message"]) == (0, 2, 1)
    assert (facts["entries"], facts["messages"], facts["topic"]) == (3, 3, "orders/1")
    assert shop.say(*words, "--yes").code == 1
    run(held_up())
    said = shop.say(*words, "--yes", "--gone", *facts["away_bookies"])
    assert said.code == 0 and "these entries are lost for good" in said.out, said
    assert "lost:       0 to 2\n" in shop.say("show", ledger).out
    assert "accepted the loss of entries 0 to 2" in shop.say("read", ledger).error
    assert "messages 1 to 3 are lost" in shop.say("read", "orders/1").error

    async def go_on() -> None:
        async with open_topics(shop.places[0]) as topics:
            orders = await topics.topic("orders")
            assert not orders.unavailable
            more = await orders.produce("a", b"more", producer="p", sequence=0)
            # the sequence numbers of producers are lost with the messages
            assert more == Position(1, 4)
            billing = await orders.subscribe("billing")
            with pytest.raises(CursorTooOld, match="messages 1 to 3 are lost") as gone:
                await billing.batch(messages_max=9)
            assert gone.value.first == more
            (found,) = await billing.batch(messages_max=9)
            assert found.value == b"more"
            billing.acknowledge(found)
            await billing.flush()
        async with open_topics(shop.places[0]) as topics:
            billing = await (await topics.topic("orders")).subscribe("billing")
            assert billing.backlog == 0

    run(go_on())


def test_a_ledger_of_a_directory_in_use_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys)
    shop.fill()

    async def main() -> None:
        async with open_topics(shop.places[0]) as topics:
            orders = await topics.topic("orders")
            await orders.produce("a", b"x")
            listed = (await asyncio.to_thread(shop.say, "ls", "--json")).value["ledgers"]
            (ledger,) = [one["ledger"] for one in listed if one["state"] == "open"]
            said = await asyncio.to_thread(shop.say, "recover", ledger)
            assert said.code == 1 and "another process has this directory" in said.error
            assert "give --gateway instead of --store, or stop the silos" in said.error
            await orders.produce("a", b"y")

    run(main())


def test_a_ledger_that_is_not_there_names_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys)
    shop.fill()
    said = shop.say("recover", 77)
    assert said.code == 1 and "there is no ledger 77" in said.error
    with pytest.raises(SystemExit) as raised:
        shop.say("recover", 0)
    assert raised.value.code == 2


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[tuple[Silo, str]]:
    """Run a silo with ledgers that have some events, and yield it with its gateway."""
    queues = LedgerQueues(directory, LedgerOptions(unowned_after_s=0.0))
    silo = Silo(
        grains=[],
        membership=MemoryMembershipTable(),
        streams={"default": PersistentStreams(queues, balancer=DeploymentBalancer())},
        can_own_queues=False,
    )
    async with silo:
        await silo.stream(WORDS, "k").publish("one")
        yield silo, silo.address.partition("@")[0]


async def test_a_running_cluster_is_asked_and_its_writer_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path) as (silo, gateway):
        words = ["ledger", "recover", "1", "--gateway", gateway, "--wait", "1"]
        assert await asyncio.to_thread(main, words) == 0
        assert capsys.readouterr().out.startswith("ledger 1 ends with entry ")
        await silo.stream(WORDS, "k").publish("two")
        assert await asyncio.to_thread(main, [*words[:2], "77", *words[3:]]) == 1
        assert "LedgerGone: there is no ledger 77" in capsys.readouterr().err


@pytest.mark.slow
async def test_a_running_cluster_ends_a_ledger_with_loss_when_it_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path / "ledger") as (silo, gateway):
        words = ["ledger", "recover", "1", "--gateway", gateway, "--wait", "0.1"]
        (tmp_path / "ledger").rename(tmp_path / "gone")
        async with asyncio.timeout(30):
            while not (tmp_path / "ledger" / "identity").exists():  # the silo creates an empty one
                await asyncio.sleep(0)
        assert await asyncio.to_thread(main, words) == 1
        assert "start its bookies" in capsys.readouterr().err
        assert await asyncio.to_thread(main, [*words, "--accept-loss"]) == 1
        assert "repeat the command with --yes" in capsys.readouterr().out
        assert await asyncio.to_thread(main, [*words, "--accept-loss", "--yes"]) == 1
        assert "wait until it is lost, or give --gone" in capsys.readouterr().err
        assert await asyncio.to_thread(main, [*words, "--accept-loss", "--json"]) == 1
        (away,) = json.loads(capsys.readouterr().out)["away_bookies"]
        words += ["--accept-loss", "--yes", "--gone", away]
        assert await asyncio.to_thread(main, [*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["last"] == -1
        with pytest.raises(PublishUnknown, match="an operator closed ledger 1 at entry -1 and acc"):
            await silo.stream(WORDS, "k").publish("two")
        async with asyncio.timeout(30):
            await silo.stream(WORDS, "k").publish("three")
