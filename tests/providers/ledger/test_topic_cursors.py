"""Named cursors, the messages that are deleted after them, and the limit of their backlog."""

from __future__ import annotations

import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.ledger.clocks import LoopClock
from tests.providers.ledger.worlds import World, in_a_world, plain, texts

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings
from millstream.providers.ledger.inspection import CursorRecord
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.metadata.rows import ROW_TRIES_MAX
from millstream.providers.ledger.metadata.witness import witness_key
from millstream.providers.ledger.topic.cursors.acknowledged import Acknowledged
from millstream.providers.ledger.topic.cursors.cursor import cursor_rows
from millstream.providers.ledger.topic.cursors.retention import (
    first_within,
    ledgers_to_trim,
    unread_bytes,
)
from millstream.providers.ledger.topic.form import TopicMessage
from millstream.providers.ledger.topic.record import LedgerSpan, topic_rows
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import (
    ConfigError,
    Corrupt,
    CursorTooOld,
    PublishUnknown,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
)

SMALL = LedgerTopicSettings(ledger_entries_max=5)


async def filled(
    world: World, count: int = 20, options: LedgerTopicOptions | None = None, epoch: int = 1
) -> Topic:
    topic = await world.open(epoch, options, SMALL)
    await asyncio.gather(*(topic.append(plain(f"m{n + 1}")) for n in range(count)))
    return topic


def test_what_is_acknowledged_does_not_come_again_and_the_rest_does() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        cursor = await topic.cursors.open("c")
        assert texts(await cursor.read(4, 2**20)) == ["m1", "m2", "m3", "m4"]
        cursor.acknowledge(2, also=[4, 6])
        cursor.rewind()
        assert texts(await cursor.read(2, 2**20))[0] == "m3"
        assert cursor.mark == 2
        cursor.acknowledge(0, also=[3])
        assert cursor.mark == 4
        await cursor.flush()
        await topic.let_go()
        topic = await world.open(2)
        cursor = await topic.cursors.open("c")
        assert cursor.mark == 4
        found: list[str] = []
        while page := await cursor.read(100, 2**20):
            found += texts(page)
        assert found == ["m5", *(f"m{n}" for n in range(7, 21))]

    in_a_world(main)


def test_a_crash_rolls_a_cursor_back_and_never_forward() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        cursor = await topic.cursors.open("c")
        cursor.acknowledge(5)
        await asyncio.sleep(0.6)
        cursor.acknowledge(9)
        world.processes[0].kill()
        topic = await world.open(2)
        assert (await topic.cursors.open("c")).mark == 5

    in_a_world(main)


def test_one_write_is_under_way_and_it_has_the_newest() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        cursor = await topic.cursors.open("c")
        writes = 0
        put = world.store.put

        def counted(key: str, data: bytes, expect: str | None, fence: int) -> str:
            nonlocal writes
            writes += "cursors" in key
            return put(key, data, expect, fence)

        world.store.put = counted  # type: ignore[method-assign]
        for number in range(1, 19):
            cursor.acknowledge(number)
            await asyncio.sleep(0.1)
        await cursor.flush()
        assert 3 <= writes <= 6 and cursor.is_stored

    in_a_world(main)


@pytest.mark.parametrize("is_sought", [False, True])
def test_what_is_acknowledged_while_a_cursor_is_written_is_stored_by_the_next_write(
    is_sought: bool,
) -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        cursor = await topic.cursors.open("c")
        write = world.store.write
        began, go_on = asyncio.Event(), asyncio.Event()

        async def held_up(key: str, data: bytes, expect: str | None, fence: int, /) -> str:
            if key == "ledger/c/cursors/t/c" and not began.is_set():
                began.set()
                await go_on.wait()
            return await write(key, data, expect, fence)

        world.store.write = held_up  # type: ignore[method-assign]
        cursor.acknowledge(4)
        first = asyncio.ensure_future(cursor.flush())
        await began.wait()
        if is_sought:
            cursor.seek(8)
        else:
            cursor.acknowledge(7)
        go_on.set()
        await first
        assert cursor.stored_mark == 4 and not cursor.is_stored
        await cursor.flush()
        assert cursor.stored_mark == 7 and cursor.is_stored
        await topic.let_go()
        topic = await world.open(2)
        assert (await topic.cursors.open("c")).mark == 7

    in_a_world(main)


def test_what_is_acknowledged_while_a_cursor_is_written_is_stored_without_a_flush() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        cursor = await topic.cursors.open("c")
        write = world.store.write

        async def late(key: str, data: bytes, expect: str | None, fence: int, /) -> str:
            if key == "ledger/c/cursors/t/c" and cursor.mark == 4:
                cursor.acknowledge(7)
            return await write(key, data, expect, fence)

        world.store.write = late  # type: ignore[method-assign]
        cursor.acknowledge(4)
        await asyncio.sleep(3)
        assert cursor.stored_mark == 7 and cursor.is_stored

    in_a_world(main)


def test_a_closed_topic_has_stored_its_cursors() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        (await topic.cursors.open("c")).acknowledge(7, also=[9])
        world.store.fail("write", "ledger/c/cursors/", times=2)
        await topic.aclose()
        topic = await world.open(2)
        cursor = await topic.cursors.open("c")
        assert cursor.mark == 7 and texts(await cursor.read(3, 2**20)) == ["m8", "m10"]

    in_a_world(main)


def test_a_store_that_fails_is_tried_again() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        cursor = await topic.cursors.open("c")
        world.store.fail("write", "ledger/c/cursors/", times=40)
        cursor.acknowledge(7)
        await asyncio.sleep(60)
        assert cursor.is_stored and cursor.stored_mark == 7

    in_a_world(main)


def test_the_cursor_of_an_older_owner_is_fenced_and_writes_nothing() -> None:
    async def main(world: World) -> None:
        old = await filled(world)
        theirs = await old.cursors.open("c")
        theirs.acknowledge(3)
        await theirs.flush()
        topic = await world.open(2)
        theirs.acknowledge(15)
        with pytest.raises(QueueFenced):
            await theirs.flush()
        with pytest.raises(QueueFenced):
            old.append(plain("z"))
        ours = await topic.cursors.open("c")
        assert ours.mark == 3
        await topic.let_go()
        assert (await (await world.open(3)).cursors.open("c")).mark == 3

    in_a_world(main)


def test_new_cursors_begin_where_they_are_told_and_old_ones_where_they_were() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        assert (await topic.cursors.open("a")).mark == 0
        assert (await topic.cursors.open("b", topic.reader.end)).mark == 20
        assert (await topic.cursors.open("c", 7)).mark == 6
        assert (await topic.cursors.open("d", 700)).mark == 20
        await topic.append(plain("x"))
        assert await topic.cursors.open("b") is await topic.cursors.open("b", 3)
        await topic.aclose()
        topic = await world.open(2)
        assert (await topic.cursors.open("b", 1)).mark == 20
        assert texts(await (await topic.cursors.open("b")).read(9, 99)) == ["x"]

    in_a_world(main)


def test_a_dropped_cursor_is_forgotten_and_its_name_begins_anew() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        cursor = await topic.cursors.open("c")
        cursor.acknowledge(4)
        await cursor.flush()
        row = world.store.get("ledger/c/cursors/t/c")
        await topic.cursors.drop("c")
        assert row is not None and world.store.get("ledger/c/cursors/t/c") is None
        world.store.put("ledger/c/cursors/t/c", row.data, None, 0)  # left by a drop that crashed
        assert (await topic.cursors.open("c", 3)).mark == 2
        await topic.aclose()
        assert (await (await world.open(2)).cursors.open("c")).mark == 2

    in_a_world(main)


def test_a_cursor_whose_row_was_lost_stops_nobody_else_and_nothing_is_deleted() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        for name in ("c", "other"):
            (await topic.cursors.open(name)).acknowledge(9)
        await topic.aclose()
        key = "ledger/c/cursors/t/c"
        row = world.store.get(key)
        assert row is not None
        world.store.remove(key, row.etag, 0)
        topic = await world.open(2)
        with pytest.raises(Corrupt, match=f"row {key} is missing"):
            await topic.cursors.open("c", 15)
        other = await topic.cursors.open("other")
        other.acknowledge(20)
        await asyncio.sleep(100)
        assert topic.reader.first == 1
        await topic.cursors.drop("c")
        await asyncio.sleep(1)
        assert topic.reader.first == 16
        assert (await topic.cursors.open("c")).mark == 15

    in_a_world(main)


def test_there_are_only_so_many_cursors() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, options=LedgerTopicOptions(cursors_max=1))
        await topic.cursors.open("a")
        with pytest.raises(ConfigError, match="cursors_max is 1"):
            await topic.cursors.open("b")
        await topic.cursors.drop("a")
        await topic.cursors.open("b")

    in_a_world(main)


def test_a_cursor_that_is_moved_back_reads_again_also_after_a_crash() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, options=LedgerTopicOptions(retention_s=None))
        cursor = await topic.cursors.open("c")
        cursor.acknowledge(15)
        await cursor.flush()
        cursor.seek(4)
        assert texts(await cursor.read(1, 1)) == ["m4"]
        await cursor.flush()
        await topic.let_go()
        topic = await world.open(2)
        assert (await topic.cursors.open("c")).mark == 3

    in_a_world(main)


def test_a_read_waits_for_what_comes() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, 1)
        cursor = await topic.cursors.open("c")
        assert texts(await cursor.read(9, 99, 10)) == ["m1"]
        assert await cursor.read(9, 99, 1) == []
        reading = asyncio.ensure_future(cursor.read(9, 99, 10))
        await asyncio.sleep(1)
        await topic.append(plain("m2"))
        assert texts(await reading) == ["m2"]

    in_a_world(main)


def test_only_the_oldest_ranges_are_stored() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, options=LedgerTopicOptions(holes_max=2))
        cursor = await topic.cursors.open("c")
        cursor.acknowledge(0, also=[2, 4, 6, 8])
        await topic.aclose()
        topic = await world.open(2)
        cursor = await topic.cursors.open("c")
        found: list[str] = []
        while page := await cursor.read(100, 2**20):
            found += texts(page)
        assert found == [f"m{n}" for n in range(1, 21) if n not in {2, 4}]

    in_a_world(main)


def test_ledgers_go_when_all_cursors_have_stored_that_they_are_done() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        one, two = await topic.cursors.open("one"), await topic.cursors.open("two")
        one.acknowledge(20)
        await asyncio.sleep(5)
        assert topic.reader.first == 1  # cursor two retains them
        two.acknowledge(11)
        assert topic.reader.first == 1  # the position is not stored yet
        await asyncio.sleep(5)
        assert topic.reader.first == 11 and len(world.bookies.deleted) == 2
        two.acknowledge(20)
        await asyncio.sleep(5)
        assert topic.reader.first == 16  # the newest ledger with messages stays
        assert {span.ledger for span in topic.record.spans} <= world.bookies.ledgers.keys()
        assert texts(await topic.reader.read(16)) == [f"m{n}" for n in range(16, 21)]

    in_a_world(main)


def test_an_idle_owner_hears_of_its_successor_when_it_would_delete() -> None:
    async def main(world: World) -> None:
        options = LedgerTopicOptions(retention_s=100.0, tend_every_s=10.0)
        topic = await filled(world, options=options)
        cursor = await topic.cursors.open("c")
        cursor.acknowledge(20)
        await asyncio.sleep(5)
        await world.open(2)
        await asyncio.sleep(50)
        assert not topic.has_ended
        await asyncio.sleep(100)
        assert topic.has_ended
        with pytest.raises(QueueFenced):
            topic.append(plain("x"))

    in_a_world(main)


def test_what_a_cursor_could_not_store_is_kept() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, options=LedgerTopicOptions(tend_every_s=0.1))
        cursor = await topic.cursors.open("c")
        world.store.fail("write", "ledger/c/cursors/", times=10**3)
        cursor.acknowledge(20)
        await asyncio.sleep(30)
        assert topic.reader.first == 1
        world.processes[0].kill()
        assert cursor.mark == 20 and cursor.stored_mark == 0

    in_a_world(main)


@pytest.mark.parametrize(("mark", "ranges"), [(25, ()), (5, ((30, 40),)), (21, ())])
def test_a_topic_that_ends_before_what_a_cursor_has_acknowledged_is_not_opened(
    mark: int, ranges: tuple[tuple[int, int], ...]
) -> None:
    """The topic's next messages would have numbers that the subscription counts as acknowledged."""

    async def main(world: World) -> None:
        topic = await filled(world)
        await topic.cursors.open("c")
        await topic.aclose()
        rows = cursor_rows(Metadata(world.store, "c", LoopClock(9)))
        await rows.update(("t", "c"), lambda _: CursorRecord("t", "c", (1, 1), mark, ranges))
        with pytest.raises(Corrupt, match=r"topic t: its cursor c \(cursors/\) has acknowledged"):
            await world.open(2)
        await rows.update(("t", "c"), lambda _: CursorRecord("t", "c", (1, 1), 20))
        topic = await world.open(3)
        assert (await topic.cursors.open("c")).mark == 20

    in_a_world(main)


def test_a_ledger_that_its_maker_may_still_list_is_no_orphan() -> None:
    async def main(world: World) -> None:
        topic = await world.open(1, LedgerTopicOptions(enqueue_wait_s=1.0))
        world.store.fail("write", "ledger/c/topics/", times=ROW_TRIES_MAX)
        with pytest.raises(QueueUnavailable):
            await topic.append(plain("a"))
        await asyncio.sleep(4000)
        made = world.processes[0].ledgers.created
        assert len(made) == 1 and not topic.record.spans
        assert await world.process().topics.sweep() == 0
        assert await topic.append(plain("b")) == [1]
        assert [span.ledger for span in topic.record.spans] == made
        assert texts(await world.all()) == ["b"]

    in_a_world(main)


def test_a_ledger_whose_maker_was_overtaken_before_it_was_listed_is_an_orphan() -> None:
    async def main(world: World) -> None:
        topic = await world.open(1, LedgerTopicOptions(enqueue_wait_s=1.0))
        world.store.fail("write", "ledger/c/topics/", times=ROW_TRIES_MAX)
        with pytest.raises(QueueUnavailable):
            await topic.append(plain("a"))
        later = await world.open(2)
        await asyncio.sleep(4000)
        assert await world.process().topics.sweep() == 1
        with pytest.raises(QueueFenced):
            await topic.append(plain("b"))
        assert await later.append(plain("c")) == [1]
        assert texts(await world.all()) == ["c"]

    in_a_world(main)


def test_what_an_earlier_owner_wrote_and_the_list_has_is_no_orphan() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        await topic.aclose()
        topic = await world.open(2)
        await asyncio.sleep(4000)
        assert await world.process().topics.sweep() == 0
        assert texts(await world.all()) == [f"m{n}" for n in range(1, 21)]

    in_a_world(main)


def test_the_ledger_of_a_topic_that_was_deleted_takes_nothing_more_from_an_owner_that_lives() -> (
    None
):
    """The deletion crashed between the row of the topic and its ledgers."""

    async def main(world: World) -> None:
        topic = await world.open(1, LedgerTopicOptions(enqueue_wait_s=1.0))
        await topic.append(plain("a"))
        rows = topic_rows(Metadata(world.store, "c", LoopClock(9)))
        await rows.delete("t")
        await asyncio.sleep(4000)
        assert await world.process().topics.sweep() == 1
        with pytest.raises((QueueFenced, QueueUnavailable, PublishUnknown)):
            await topic.append(plain("b"))

    in_a_world(main)


def test_a_topic_without_a_cursor_keeps_everything() -> None:
    async def main(world: World) -> None:
        topic = await filled(world)
        await asyncio.sleep(1000)
        assert topic.reader.first == 1 and len(await world.all()) == 20

    in_a_world(main)


def test_acknowledged_messages_are_kept_for_a_time() -> None:
    async def main(world: World) -> None:
        topic = await filled(
            world, options=LedgerTopicOptions(retention_s=100.0, tend_every_s=10.0)
        )
        (await topic.cursors.open("c")).acknowledge(20)
        await asyncio.sleep(80)
        assert topic.reader.first == 1
        await asyncio.sleep(40)
        assert topic.reader.first == 16

    in_a_world(main)


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_crash_between_list_and_deletion_leaves_an_orphan_that_is_found(has_begun: bool) -> None:
    """With `has_begun`, the witness of the ledger's row marks the row as being deleted."""

    async def main(world: World) -> None:
        topic = await filled(world)
        for span in topic.record.spans[:2]:
            row = f"ledger/c/ledgers/{span.ledger:019d}"
            if has_begun:
                world.store.fail("clear", row, times=ROW_TRIES_MAX)
            else:
                world.store.fail("write", witness_key("ledger/c/", row), times=ROW_TRIES_MAX)
        (await topic.cursors.open("c")).acknowledge(12)
        await asyncio.sleep(100)
        assert topic.reader.first == 11
        world.processes[0].kill()
        sweeper = world.process()
        assert await sweeper.topics.sweep() == 0  # too young
        await asyncio.sleep(3600)
        orphans = world.bookies.ledgers.keys() - {span.ledger for span in topic.record.spans}
        assert len(orphans) == 2
        assert await sweeper.topics.sweep() == 2
        assert orphans.isdisjoint(world.bookies.ledgers) and await sweeper.topics.sweep() == 0
        assert [one.number for one in await world.all(11)] == list(range(11, 21))

    in_a_world(main)


BACKLOG = LedgerTopicOptions(backlog_bytes_max=4000, enqueue_wait_s=1.0)


def large(number: int) -> list[TopicMessage]:
    return [TopicMessage(f"{number}".encode().ljust(500))]


def test_appends_wait_for_the_slowest_cursor_then_hear_queue_full() -> None:
    async def main(world: World) -> None:
        topic = await world.open(1, BACKLOG, SMALL)
        cursor = await topic.cursors.open("c")
        quick = await topic.cursors.open("quick")
        count = 0
        with pytest.raises(QueueFull) as full:
            while True:
                await topic.append(large(count))
                count += 1
                quick.acknowledge(count)
        assert 5 <= count <= 8
        text = r"backlog_bytes_max \(4000\) is reached: cursor 'c' has not acknowledged the"
        assert re.search(text + r" [34]\d{3} bytes from message 1 on$", str(full.value))
        waiting = topic.append(large(count))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        cursor.acknowledge(4)
        assert await waiting == [count + 1]

    in_a_world(main)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_backlog_that_grows_by_a_cursor_leaves_no_room(is_new: bool) -> None:
    """The cursor moves back, or a new cursor begins before the others."""

    async def main(world: World) -> None:
        topic = await world.open(1, BACKLOG)
        cursor = await topic.cursors.open("c")
        for number in range(1, 18):
            await topic.append(large(number))
            cursor.acknowledge(number)
        await topic.append(large(18))  # there is space for more
        if is_new:
            await topic.cursors.open("new", 1)
        else:
            cursor.seek(1)
        with pytest.raises(QueueFull, match="backlog_bytes_max"):
            await topic.append(large(19))

    in_a_world(main)


def test_the_slowest_cursor_loses_its_oldest_if_that_is_asked_for_and_hears_so() -> None:
    async def main(world: World) -> None:
        options = LedgerTopicOptions(backlog_bytes_max=4000, backlog_policy="evict")
        topic = await world.open(1, options, SMALL)
        cursor = await topic.cursors.open("c")
        assert len(await cursor.read(1, 1)) == 0
        for number in range(40):
            await topic.append(large(number))
        with pytest.raises(CursorTooOld) as gone:
            await cursor.read(1, 1)
        first = gone.value.first
        assert first > 20 and (await cursor.read(1, 1))[0].number == first
        await asyncio.sleep(5)
        assert 20 < topic.reader.first <= first
        await topic.append(large(40))

    in_a_world(main)


def test_a_gap_that_was_not_told_is_told_by_the_next_owner() -> None:
    async def main(world: World) -> None:
        options = LedgerTopicOptions(backlog_bytes_max=4000, backlog_policy="evict")
        topic = await world.open(1, options, SMALL)
        await topic.cursors.open("c")
        for number in range(40):
            await topic.append(large(number))
        await topic.aclose()
        topic = await world.open(2, options)
        cursor = await topic.cursors.open("c")
        with pytest.raises(CursorTooOld):
            await cursor.read(1, 1)
        assert await cursor.read(1, 1)

    in_a_world(main)


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=25),
    st.integers(0, 31),
)
def test_acknowledged_is_a_set_of_numbers(
    mark: int, ranges: list[tuple[int, int]], upto: int
) -> None:
    done, numbers = Acknowledged(mark), set(range(mark + 1))
    for first, count in ranges:
        done.add(first, first + count - 1)
        numbers |= set(range(first, first + count))
    done.advance(upto)
    numbers |= set(range(upto + 1))
    assert [n for n in range(45) if n in done] == sorted(n for n in numbers if n >= 0)
    assert done.mark == next(n for n in range(50) if n + 1 not in numbers)
    ranges_left = done.ranges(100)
    assert all(first <= last for first, last in ranges_left)
    ends = [done.mark, *(last for _, last in ranges_left)]
    assert all(end + 1 < first for end, (first, _) in zip(ends, ranges_left, strict=False))
    for number in range(1, 45):
        wanted = next(n for n in range(max(number, done.mark + 1), 99) if n not in numbers)
        assert done.next_after(number) == wanted


def spans_of(sizes: list[int], is_open: bool) -> list[LedgerSpan]:
    made, first = [], 1
    for at, size in enumerate(sizes):
        is_sealed = at < len(sizes) - 1 or not is_open
        made.append(
            LedgerSpan(at, first, is_sealed, size, size - 1, size * 100, at * 1000, at * 1000)
        )
        first += size
    return made


@given(
    st.lists(st.integers(1, 5), max_size=8),
    st.booleans(),
    st.integers(1, 45),
    st.none() | st.integers(0, 10),
    st.none() | st.integers(0, 3000),
)
def test_what_goes_is_acknowledged_and_not_the_newest(
    sizes: list[int], is_open: bool, floor: int, age_s: int | None, kept_bytes: int | None
) -> None:
    spans = spans_of(sizes, is_open)
    options = LedgerTopicOptions(retention_s=age_s, retention_bytes=kept_bytes)
    count = ledgers_to_trim(spans, floor, 9000, options)
    assert count <= max(0, len(spans) - 1)
    assert all(span.is_sealed and span.end <= floor for span in spans[:count])
    if age_s is None and kept_bytes is None:
        assert count == 0
    if age_s == 0:
        rest = spans[count:-1]
        assert not rest or rest[0].end > floor


@pytest.mark.parametrize(
    ("age_s", "kept_bytes", "count"),
    [
        (9, None, 1),  # ages of 0 s, 1 s and 2 s, at 9 s
        (8, None, 2),
        (8.001, None, 1),
        (7.999, None, 2),
        (10, None, 0),
        (None, 600, 0),  # sizes of 200, 300 and 100 bytes
        (None, 599, 1),
        (None, 400, 1),
        (None, 399, 2),
        (None, 100, 2),
        (None, 99, 3),
    ],
)
def test_what_goes_is_as_old_or_too_much_to_the_very_number(
    age_s: float | None, kept_bytes: int | None, count: int
) -> None:
    options = LedgerTopicOptions(retention_s=age_s, retention_bytes=kept_bytes)
    assert ledgers_to_trim(spans_of([2, 3, 1, 1], False), 99, 9000, options) == count


@pytest.mark.parametrize(("floor", "count"), [(2, 0), (3, 1), (5, 1), (6, 2), (7, 3), (99, 3)])
def test_what_goes_is_acknowledged_up_to_its_very_end(floor: int, count: int) -> None:
    options = LedgerTopicOptions(retention_s=0)
    assert ledgers_to_trim(spans_of([2, 3, 1, 1], False), floor, 9000, options) == count


def test_what_lies_between_two_ranges_is_in_neither() -> None:
    done = Acknowledged(0)
    done.add(8, 9)
    done.add(5, 6)
    assert [number for number in range(12) if number in done] == [0, 5, 6, 8, 9]


def test_unread_bytes_are_as_many_as_the_messages_have() -> None:
    spans = spans_of([2, 3], True)
    assert [unread_bytes(spans, floor) for floor in range(1, 8)] == [500, 400, 300, 200, 100, 0, 0]
    assert first_within(spans, 500) == 1 and first_within(spans, 499) == 3
    assert first_within(spans, 299) == 6 and first_within([], 5) == 0


@given(st.lists(st.integers(0, 5), max_size=8), st.booleans(), st.integers(0, 3000))
def test_what_is_kept_of_a_backlog_is_the_most_that_fits(
    sizes: list[int], is_open: bool, bytes_max: int
) -> None:
    spans = spans_of(sizes, is_open)
    firsts = [span.first for span in spans] + [spans[-1].end if spans else 0]
    fitting = [first for first in firsts if unread_bytes(spans, first) <= bytes_max]
    assert first_within(spans, bytes_max) == fitting[0]
