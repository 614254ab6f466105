"""One damaged row among whole ones: readers of all rows continue, report it, and delete nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.providers.ledger.alone.machine import Machine
from tests.providers.ledger.alone.test_disks import Machine as Disks
from tests.providers.ledger.alone.test_disks import produce
from tests.providers.ledger.bookie.kit import new_disk, opened
from tests.providers.ledger.clocks import LoopClock
from tests.providers.ledger.copies import COPIED_S, Copies, with_copies
from tests.providers.ledger.test_census import Process
from tests.providers.ledger.test_draining import with_rows
from tests.providers.ledger.test_serving import began
from tests.providers.ledger.virtual import virtually
from tests.providers.ledger.worlds import World, in_a_world, plain, texts

from millstream.providers.ledger import LedgerTopicSettings
from millstream.providers.ledger.inspection import BookieRecord, TopicRecord, mark_draining
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.errors import NotEnoughBookies
from millstream.providers.ledger.recovery.bookie_standing import BookieStanding, BookieStandings
from millstream.providers.ledger.serving.cluster_bookies import LOOK_S
from millstream.providers.ledger.topic.record import topic_rows
from millstream.runtime import ConfigError, Corrupt, MemoryStateStore, StorageUnavailable
from millstream.runtime.damage import TOLD_MAX
from millstream.runtime.extending import seal_content

ADVICE = "restore all of the store from one backup; until then the content of the row is unknown"


def damage(store: MemoryStateStore, key: str) -> bytes:
    """Flip a bit of a row, and return the row's earlier data."""
    row = MemoryStateStore.get(store, key)
    assert row is not None, key
    flipped = bytearray(row.data)
    flipped[-1] ^= 1
    MemoryStateStore.put(store, key, bytes(flipped), row.etag, row.fence)
    return row.data


def mend(store: MemoryStateStore, key: str, data: bytes) -> None:
    row = MemoryStateStore.get(store, key)
    assert row is not None
    MemoryStateStore.put(store, key, data, row.etag, row.fence)


def ledger_key(ledger: int, scope: str = "c") -> str:
    return f"ledger/{scope}/ledgers/{ledger:019d}"


@virtually
async def test_a_scan_goes_on_behind_a_damaged_row_and_the_log_names_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore()
    rows = topic_rows(Metadata(store, "c", LoopClock()))
    for name in "abc":
        await rows.create(name, TopicRecord(name))
    key = "ledger/c/topics/b"
    whole = damage(store, key)
    for _ in range(2):
        scan = rows.scan()
        assert [one.topic async for one in scan] == ["a", "c"]
        assert list(scan.damaged) == ["b"] and f"row {key} is damaged" in str(scan.damaged["b"])
    (said,) = caplog.messages
    assert said.startswith(f"row {key} is damaged") and ADVICE in said
    mend(store, key, whole)
    scan = rows.scan()
    assert [one.topic async for one in scan] == ["a", "b", "c"] and not scan.damaged
    damage(store, key)
    assert [one.topic async for one in rows.scan()] == ["a", "c"]
    assert len(caplog.messages) == 2


@virtually
async def test_of_very_many_damaged_rows_the_log_names_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore()
    rows = topic_rows(Metadata(store, "c", LoopClock()))
    for number in range(TOLD_MAX + 5):
        store.put(f"ledger/c/topics/{number:04}", seal_content("other", b"x"), None, 0)
    scan = rows.scan()
    assert [one async for one in scan] == [] and len(scan.damaged) == TOLD_MAX + 5
    assert len(caplog.messages) == TOLD_MAX + 1
    assert f"more than {TOLD_MAX} rows are damaged" in caplog.messages[-1]


@virtually
async def test_a_bookie_forgets_what_was_deleted_beside_a_ledger_whose_row_is_damaged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, bookie = MemoryStateStore(), await opened(new_disk())
    one = Process(store, bookie, 1)
    damaged, deleted, kept, last = [await one.write() for _ in range(4)]
    damage(store, ledger_key(damaged))
    for ledger in (deleted, last):
        await one.ledgers.delete(ledger)
    for _ in range(2):
        await one.census.collect(bookie)
        assert bookie.store.ledgers() == [damaged, kept]
    assert caplog.text.count(f"row {ledger_key(damaged)} is damaged") == 1
    await bookie.aclose()


@virtually
async def test_a_bookie_forgets_nothing_that_has_no_row_while_a_topic_cannot_be_read() -> None:
    """The damaged row may list the ledger. Then the ledger's row was lost, not deleted."""
    store, bookie = MemoryStateStore(), await opened(new_disk())
    one = Process(store, bookie, 1)
    first, second = [await one.write() for _ in range(2)]
    for name in ("t", "u"):
        await one.topics.create(name, TopicRecord(name))
    key = "ledger/c/topics/t"
    whole = damage(store, key)
    await one.ledgers.delete(first)
    await one.census.collect(bookie)
    assert bookie.store.ledgers() == [first, second]
    mend(store, key, whole)
    await one.census.collect(bookie)
    assert bookie.store.ledgers() == [second]
    await bookie.aclose()


@virtually
async def test_numbers_are_proved_gone_up_to_a_ledger_whose_row_is_damaged() -> None:
    store, bookie = MemoryStateStore(), await opened(new_disk())
    one = Process(store, bookie, 1)
    first, damaged, last = [await one.write() for _ in range(3)]
    await one.ledgers.delete(first)
    damage(store, ledger_key(damaged))
    assert await one.ids.oldest(last) == damaged
    assert await one.ids.oldest(0) == damaged
    await bookie.aclose()


@pytest.mark.parametrize("what", ["ledgers", "topics"])
def test_a_sweep_deletes_orphans_beside_a_damaged_row(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: World) -> None:
        topic = await world.open(1, settings=LedgerTopicSettings(ledger_entries_max=2))
        await topic.append(plain(*"abcd"))
        await topic.aclose()
        process = world.process()
        other = await process.topics.open("other", 1)
        await other.append(plain("x"))
        listed, orphan = topic.record.spans[0].ledger, process.ledgers.created[-1]
        await other.aclose()
        await process.ledgers.create(None, "gone")  # its topic never existed
        key = ledger_key(listed) if what == "ledgers" else "ledger/c/topics/t"
        whole = damage(world.store, key)
        await asyncio.sleep(4000)
        assert await world.process().topics.sweep() == 1
        assert f"row {key} is damaged" in caplog.text and ADVICE in caplog.text
        mend(world.store, key, whole)
        assert texts(await world.all()) == ["a", "b", "c", "d"]
        assert world.bookies.deleted and orphan not in world.bookies.deleted

    in_a_world(main)


@virtually
async def test_bookies_are_followed_beside_a_damaged_row_and_keep_what_was_known() -> None:
    world, _, bookie = await began()
    await world.rows.create("u", BookieRecord("u", "b", 1, True, 10, place="data/{silo}"))
    await asyncio.sleep(2 * LOOK_S)
    damage(world.store, f"ledger/c/bookies/{bookie.name}")
    await world.rows.update("u", lambda _: BookieRecord("u", "b", 2, False, place="data/{silo}"))
    await asyncio.sleep(2 * LOOK_S)
    assert set(world.bookies.writable()) == {bookie.name}
    assert world.bookies.list_known()["u"].boot == 2
    assert world.bookies.runs(bookie.name) and set(world.bookies.unreadable()) == {bookie.name}
    await bookie.aclose()


def test_a_bookie_whose_row_is_damaged_is_never_lost() -> None:
    standings = BookieStandings(lost_after_s=10.0)
    standings.see(0.0, {"a"}, {"a", "b"}, ())
    standings.see(5.0, {"a"}, {"a"}, (), {"b"})
    standings.see(100.0, {"a"}, {"a"}, (), {"b"})
    assert standings.of("b") is BookieStanding.AWAY
    standings.see(101.0, {"a"}, {"a", "b"}, ())
    assert standings.of("b") is BookieStanding.AWAY
    standings.see(111.0, {"a"}, {"a", "b"}, ())
    assert standings.of("b") is BookieStanding.LOST


def test_copies_are_made_beside_a_damaged_row_and_no_bookie_is_called_drained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: Copies) -> None:
        caplog.set_level(logging.INFO)
        damaged, *others = [await world.ledger() for _ in range(4)]
        key = ledger_key(damaged, "tests")
        gone = (await world.record(damaged)).fragments[0].bookies[0]
        whole = damage(world.store, key)
        auditor = world.auditor()
        world.bookies.all[gone].is_leaving = True
        await asyncio.sleep(COPIED_S)
        for ledger in others:
            assert gone not in (await world.record(ledger)).fragments[0].bookies
        assert auditor.auditor.report().damaged == 1 and auditor.auditor.report().ledgers == 3
        assert "is drained" not in caplog.text and f"row {key} is damaged" in caplog.text
        mend(world.store, key, whole)
        await asyncio.sleep(COPIED_S)
        assert f"bookie {gone} is drained" in caplog.text
        await world.check()

    with_copies(main)


@virtually
async def test_no_bookie_is_marked_to_be_emptied_while_a_ledger_cannot_be_read() -> None:
    process = await with_rows(5)
    assert isinstance(process.store, MemoryStateStore)
    key = ledger_key(1, "tests")
    whole = damage(process.store, key)
    with pytest.raises(Corrupt, match=f"row {key} is damaged"):
        await mark_draining(process.metadata, "b1")
    mend(process.store, key, whole)
    for name in ("b3", "b4"):
        damage(process.store, f"ledger/tests/bookies/{name}")
    with pytest.raises(NotEnoughBookies, match="but there are 2"):  # b0 and b2
        await mark_draining(process.metadata, "b1")


@virtually
async def test_topics_are_named_also_if_the_row_of_one_is_damaged() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        for name in ("a", "b/c", "d"):
            await topics.topic(name)
        key = "ledger/topics/managed/b%2Fc"
        damage(machine.store, key)
        assert await topics.names() == ["a", "b/c", "d"]


@virtually
async def test_nothing_is_opened_without_a_disk_while_it_is_not_known_what_is_on_it() -> None:
    machine = Disks()
    async with machine.topics() as topics:
        await produce(await topics.topic("orders"), range(1, 3))
    machine.disks.away = {"/b"}
    keys = [key for key, _ in machine.store.range("ledger/topics/ledgers/", "", 9)]
    whole = damage(machine.store, keys[0])
    with pytest.raises((ConfigError, StorageUnavailable), match=f"row {keys[0]} is damaged"):
        async with machine.topics():
            pass
    mend(machine.store, keys[0], whole)
    async with machine.topics():
        pass
