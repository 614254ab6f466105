"""`millstream ledger ls`, `show`, `read` and `bookies`: their output and their errors."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.console.ledger.commands import Shop, run

from millstream.providers.ledger import open_topics
from millstream.providers.ledger.alone.process import OneProcess
from millstream.providers.ledger.inspection import RecoveryReport, ScrubReport
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.recovery.report import BookieReport, Stuck, report_rows
from millstream.providers.ledger.scrubbing.report import ScrubFault, scrub_rows
from millstream.providers.sqlite import SqliteStateStore
from millstream.runtime import Env


@pytest.fixture
def shop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shop:
    made = Shop(tmp_path, capsys)
    made.fill()
    return made


def test_topics_and_ledgers_are_listed(shop: Shop) -> None:
    said = shop.say("ls")
    assert said.code == 0 and said.error == ""
    lines = said.out.splitlines()
    assert lines[0].split()[:4] == ["TOPIC", "EPOCH", "LEDGERS", "MESSAGES"]
    assert [line.split()[0] for line in lines[1:3]] == ["orders/0", "orders/1"]
    assert "closed" in lines[-1] and "1/1/1" in lines[-1] and "under-replicated" not in said.out
    found = shop.say("ls", "--json").value
    assert found["cluster"] == "topics"
    assert sum(one["messages"] for one in found["topics"]) == 4
    assert {one["state"] for one in found["ledgers"]} == {"closed"}
    assert all(one["bytes"] > 0 and one["under_replicated"] == "" for one in found["ledgers"])


def test_damaged_rows_are_counted_named_and_left_out(shop: Shop) -> None:
    found = shop.say("ls", "--json").value
    (first, second), (topic, _) = (
        [one["ledger"] for one in found["ledgers"]],
        [one["topic"] for one in found["topics"]],
    )
    (bookie,) = (one["bookie"] for one in shop.say("bookies", "--json").value["bookies"])
    assert found["damaged_rows"] == []

    async def damage() -> None:
        store = SqliteStateStore(shop.rows)
        for name in (f"ledgers/{first:019d}", f"topics/{topic.replace('/', '%2F')}"):
            row = await store.read(f"ledger/topics/{name}")
            assert row is not None
            await store.write(f"ledger/topics/{name}", row.data[:-1], row.etag, 0)
        await store.aclose()

    run(damage())
    rows = [f"topics/{topic.replace('/', '%2F')}", f"ledgers/{first:019d}"]
    said = shop.say("ls")
    last = f"damaged rows, not listed: 2 ({', '.join(rows)})"
    assert said.code == 1 and said.out.splitlines()[-1] == last
    value = shop.say("ls", "--json").value
    assert value["damaged_rows"] == rows
    assert [one["ledger"] for one in value["ledgers"]] == [second]
    assert shop.say("bookies").out.splitlines()[-1] == said.out.splitlines()[-1]
    assert shop.say("bookies", "--json").value["damaged_rows"] == rows
    for name in (topic, str(first)):
        refused = shop.say("show", name)
        assert refused.code == 1 and "Corrupt: row ledger/topics/" in refused.error
    assert "there is no topic" in shop.say("show", "none").error
    assert shop.say("bookies", "--drain", bookie).code == 1


def test_one_topic_and_one_ledger_are_shown(shop: Shop) -> None:
    text = shop.say("show", "orders/0").out
    assert "epoch:" in text and "billing" in text and "sealed" in text
    topic = shop.say("show", "orders/0", "--json").value
    (cursor,) = topic["cursors"]
    assert cursor["cursor"] == "billing" and cursor["backlog"] == topic["messages"]
    ledger = topic["spans"][0][0]
    text = shop.say("show", ledger).out
    assert "ensemble=1, write_quorum=1, ack_quorum=1" in text and "from entry 0 on:" in text
    assert "(no silo runs it)" in text
    assert shop.say("show", ledger, "--json").value["fragments"][0][0] == 0


def test_which_messages_are_kept_is_said_also_where_there_are_none(shop: Shop) -> None:
    def kept() -> str:
        return next(one for one in shop.say("show", "more/0").out.splitlines() if "messages" in one)

    async def main() -> None:
        async with open_topics(shop.places[0]) as topics:
            more = await topics.topic("more")
            assert "none; the next is 1" in await asyncio.to_thread(kept)
            await more.produce(None, b"x")
            assert "from 1 on" in await asyncio.to_thread(kept)

    run(main())
    assert "1 to 1" in kept()


def test_damage_is_shown_with_its_file_and_advice(shop: Shop) -> None:
    (bookie,) = (one["bookie"] for one in shop.say("bookies", "--json").value["bookies"])
    fault = ScrubFault("/d/1.seg", 512, 3, 7, "no good copy", True, "put the file back")
    report = ScrubReport(
        bookie,
        since_s=1e9,
        said_s=1.1e9,
        passes=2,
        passed_s=1.05e9,
        began_s=1.06e9,
        segment=4,
        segments=9,
        pass_bytes=5_000_000,
        damaged=12,
        missing=3,
        repaired=14,
        failed=21,
        faults=(fault,),
    )

    async def main() -> None:
        store = SqliteStateStore(shop.places[0] / "rows")
        rows = scrub_rows(Metadata(store, "topics", OneProcess(Env()).clock))
        await rows.update(bookie, lambda _: report)
        await store.aclose()

    run(main())
    said = shop.say("bookies").out
    assert f"damage in bookie {bookie}: last full pass 2003-04-10" in said
    assert "reads segment 4 (9 in total)" in said
    assert "12 damaged and 3 missing replicas found, 14 repaired, 21 could not be repaired" in said
    assert "/d/1.seg: offset 512: entry 7 of ledger 3 cannot be repaired: no good copy. " in said
    assert "What can be done: put the file back" in said and "and 1 more" in said
    (found,) = shop.say("bookies", "--json").value["scrubs"]
    assert found["repaired"] == 14 and found["faults"][0]["offset"] == 512


def test_a_bookie_without_a_name_is_not_marked(shop: Shop) -> None:
    for option in ("--drain", "--keep"):
        said = shop.say("bookies", option, "")
        assert said.code == 1 and "there is no bookie ''" in said.error


def test_messages_are_read(shop: Shop) -> None:
    found = [one for at in (0, 1) for one in shop.say("read", f"orders/{at}", "--json").value]
    assert sorted(one["value"] for one in found) == [f"value {one}" for one in "abcd"]
    assert all(one["producer"] == "p" for one in found)
    at = 0 if len(shop.say("read", "orders/0", "--json").value) > 1 else 1
    said = shop.say("read", f"orders/{at}", "--from", 2, "--count", 1)
    assert said.out.startswith("2  20") and said.error == ""
    assert "the files have messages" in shop.say("read", f"orders/{at}", "--from", 99).error


def test_entries_are_read(shop: Shop) -> None:
    ledger = shop.say("show", "orders/0", "--json").value["spans"][0][0]
    said = shop.say("read", ledger)
    assert "messages 1 to 1" in said.out and "the ledger ends with entry" in said.error
    assert [one["entry"] for one in shop.say("read", ledger, "--json").value][:1] == [0]
    assert shop.say("read", ledger, "--count", 1).error == ""


@pytest.mark.spare
def test_what_a_dead_program_left_is_read_as_far_as_it_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys)
    shop.fill(["a", "a", "a", "a"], dies=True)
    found = shop.say("ls", "--json").value
    assert [one["state"] for one in found["ledgers"]] == ["open"]
    (topic,) = [one["topic"] for one in found["topics"] if one["is_open"]]
    assert "one open" in shop.say("ls").out and "- " in shop.say("ls").out
    values = [one["value"] for one in shop.say("read", topic, "--json").value]
    assert values in (["value a"] * 3, ["value a"] * 4)
    assert "from 1 on" in shop.say("show", topic).out


def test_bookies_are_listed(shop: Shop) -> None:
    said = shop.say("bookies")
    assert "away" in said.out and str(shop.places[0] / "bookie") in said.out
    (bookie,) = shop.say("bookies", "--json").value["bookies"]
    assert bookie["ledgers"] > 0 and bookie["boot"] == 1 and bookie["free_bytes"] > 0
    said = shop.say("bookies", "--drain", bookie["bookie"][:6])
    assert said.code == 1 and "but there are 0; start more" in said.error
    said = shop.say("bookies", "--keep", bookie["bookie"])
    assert said.code == 0
    said = shop.say("bookies", "--drain", "zzz")
    assert "there is no bookie 'zzz'; similar names: " in said.error
    assert bookie["bookie"] in said.error


@pytest.mark.parametrize("action", ["show", "read"])
def test_what_is_not_there_names_what_is_near(shop: Shop, action: str) -> None:
    said = shop.say(action, "ordres/0")
    assert said.code == 1 and said.out == ""
    assert "there is no topic 'ordres/0'; similar names: orders/0, orders/1" in said.error
    said = shop.say(action, "999")
    assert (
        "there is no ledger 999: it was deleted, or never created; the nearest ones:" in said.error
    )


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, shop: Shop) -> None:
    shop.rows = tmp_path / "none"
    said = shop.say("ls")
    assert said.code == 1 and f"there is no directory {tmp_path / 'none'}" in said.error
    assert not (tmp_path / "none").exists()
    shop.rows = tmp_path
    said = shop.say("ls")
    assert "has no rows of a state store: give the store of the silos" in said.error
    shop.rows = shop.places[0] / "rows"
    said = shop.say("ls", "--cluster", "dev")
    assert "has no ledgers of cluster 'dev'; its clusters with ledgers: topics" in said.error
    assert shop.say("ls", "--cluster", "topics").code == 0


def test_a_directory_that_was_moved_is_named_by_hand(shop: Shop, tmp_path: Path) -> None:
    (shop.places[0] / "bookie").rename(tmp_path / "moved")
    said = shop.say("read", "orders/0")
    assert (
        said.code == 1 and "the directory of bookie" in said.error and "was not given" in said.error
    )
    assert shop.say("read", "orders/0", "--directory", tmp_path / "moved").code == 0
    said = shop.say("read", "orders/0", "--directory", tmp_path)
    assert "identity: offset 0: the file does not exist" in said.error


@pytest.mark.spare
def test_what_copies_are_left_is_read_when_a_directory_was_lost_and_made_anew_or_swapped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys, disks=3)
    shop.fill()
    shutil.rmtree(shop.places[1] / "bookie")

    async def go_on() -> None:
        store = SqliteStateStore(shop.rows)
        async with open_topics(*shop.places, store=store) as topics:
            await topics.topic("orders")
        await store.aclose()

    run(go_on())
    (shop.places[0] / "bookie").rename(tmp_path / "kept")
    (shop.places[2] / "bookie").rename(shop.places[0] / "bookie")
    (tmp_path / "kept").rename(shop.places[2] / "bookie")
    assert len(shop.say("bookies", "--json").value["bookies"]) == 4
    found = [one for at in (0, 1) for one in shop.say("read", f"orders/{at}", "--json").value]
    assert sorted(one["value"] for one in found) == [f"value {one}" for one in "abcd"]


@pytest.mark.spare
def test_a_damaged_directory_is_left_out_while_others_have_what_was_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(tmp_path, capsys, disks=3)
    shop.fill()
    for place in shop.places:
        for segment in (place / "bookie").glob("*.seg"):
            segment.write_bytes(b"")
        said = shop.say("read", "orders/0")
        assert "skipped a directory: " in said.error and "it was emptied or truncated" in said.error
        assert (said.code == 0) == (place is not shop.places[-1]), said


def test_what_is_copied_and_what_cannot_be_is_shown(shop: Shop) -> None:
    (bookie,) = [one["bookie"] for one in shop.say("bookies", "--json").value["bookies"]]
    ledger = shop.say("show", "orders/0", "--json").value["spans"][0][0]
    report = RecoveryReport(
        "data/{silo}",
        "127.0.0.1:7@1",
        1.7e9,
        ledgers=9,
        lacking=2,
        places=3,
        entries=1_234,
        bookies=(BookieReport(bookie, "lost", 1),),
        stuck=(Stuck(ledger, True, "nobody has entries 3 to 5\x1b"),),
    )

    async def write() -> None:
        store = SqliteStateStore(shop.rows)
        rows = report_rows(Metadata(store, "topics", OneProcess(Env()).clock))
        await rows.update(report.place, lambda _: report)
        await store.aclose()

    run(write())
    out = shop.say("bookies").out
    assert "lost" in out and "2 of 9 ledgers lack replicas, in 3 places" in out
    assert f"ledger {ledger}: nobody has entries 3 to 5\\x1b" in out and "1,234 entries" in out
    (copies,) = shop.say("bookies", "--json").value["copies"]
    assert copies["stuck"][0]["is_lost"] and copies["lacking"] == 2
    assert "under-replicated: nobody has entries 3 to 5" in shop.say("ls").out
