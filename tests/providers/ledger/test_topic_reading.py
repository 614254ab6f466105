"""Reading a topic by number and time: from memory, from ledgers, and in other silos."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.ledger.memory_ledgers import MemoryReader
from tests.providers.ledger.worlds import World, in_a_world, marked, plain, texts

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings
from millstream.providers.ledger.topic.appending.outbox import Batch
from millstream.providers.ledger.topic.form import TopicMessage
from millstream.providers.ledger.topic.reading.index import EntryIndex
from millstream.providers.ledger.topic.reading.pages import READERS_MAX
from millstream.providers.ledger.topic.reading.tail import TopicTail
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import Corrupt, CursorTooOld, QueueUnavailable

SMALL = LedgerTopicSettings(ledger_entries_max=4)
NO_CACHE = LedgerTopicOptions(cache_bytes_max=1, snapshot_entries=3)


async def filled(world: World, count: int, options: LedgerTopicOptions = NO_CACHE) -> Topic:
    """Make a topic with messages `m1`, `m2`, ..., three in an entry and four entries in a
    ledger.
    """
    topic = await world.open(1, options, SMALL)
    for first in range(1, count + 1, 3):
        numbers = range(first, min(first + 3, count + 1))
        await topic.append([TopicMessage(f"m{n}".encode(), "p", n) for n in numbers])
        await asyncio.sleep(1)
    return topic


def test_every_number_is_found_out_of_ledgers_by_the_owner_and_by_others() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, 40)
        reader = world.process().topics.reader("t")
        for number in [*range(40, 0, -1), *range(1, 41)]:
            for found in (await topic.reader.read(number, 5), await reader.read(number, 5)):
                assert texts(found) == [f"m{number + at}" for at in range(len(found))] and found
                assert [one.number for one in found] == [number + at for at in range(len(found))]
        assert await topic.reader.read(41) == [] == await reader.read(41)
        await reader.aclose()
        await topic.aclose()
        assert all(process.ledgers.open_readers == 0 for process in world.processes)

    in_a_world(main)


def test_reading_on_costs_no_search() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, 400)
        await topic.aclose()
        process = world.process()
        reader = process.topics.reader("t")
        number = 150
        await reader.read(number, 3)
        before, number = process.ledgers.reads, 153
        for _ in range(20):
            page = await reader.read(number, 3)
            number = page[-1].number + 1
        assert process.ledgers.reads - before <= 50  # a ledger has four entries
        assert process.ledgers.open_readers <= READERS_MAX
        await reader.aclose()

    in_a_world(main)


def test_a_reader_elsewhere_sees_what_is_confirmed_and_the_next_ledger_as_it_comes() -> None:
    async def main(world: World) -> None:
        topic = await world.open(1, settings=SMALL)
        reader = world.process().topics.reader("t")
        assert await reader.bounds() == (1, 1) and not await reader.wait(1, 0.5)
        now = asyncio.get_running_loop().time
        for number in range(1, 20):
            waiting = asyncio.ensure_future(reader.wait(number, 30))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            await topic.append(plain(f"m{number}"))
            began = now()
            assert await waiting and now() - began <= 0.15
            assert texts(await reader.read(number)) == [f"m{number}"]
            assert await reader.bounds() == (1, number + 1)
        await reader.aclose()

    in_a_world(main)


def test_a_bookie_that_says_what_is_no_news_delays_no_reader_nor_keeps_it_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    async def at_once(self: MemoryReader, confirmed: int, wait_s: float, /) -> int:
        asked.append(confirmed)
        return await self._last()

    async def main(world: World) -> None:
        topic = await world.open(1)
        await topic.append(plain("a"))
        reader = world.process().topics.reader("t")
        monkeypatch.setattr(MemoryReader, "wait", at_once)
        now = asyncio.get_running_loop().time
        waiting = asyncio.ensure_future(reader.wait(2, 30))
        await asyncio.sleep(1.0)
        # asks for new messages and for the end
        assert not waiting.done() and 40 <= len(asked) <= 110
        await topic.append(plain("b"))
        began = now()
        assert await waiting and now() - began <= 0.03
        await reader.aclose()

    in_a_world(main)


def test_nobody_reads_what_is_on_its_way() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        reader = world.process().topics.reader("t")
        await topic.append(plain("a"))
        world.bookies.gate.clear()
        future = topic.append(plain("b"))
        waiting = asyncio.ensure_future(topic.reader.wait(2, 10))
        await asyncio.sleep(1)
        assert await topic.reader.read(2) == [] == await reader.read(2) and topic.reader.end == 2
        assert not waiting.done() and not await topic.reader.wait(2, 0.0)
        world.bookies.gate.set()
        async with asyncio.timeout(1):
            assert await waiting and await future == [2]
        assert texts(await topic.reader.read(2)) == ["b"]
        await reader.aclose()

    in_a_world(main)


def test_a_time_is_found_in_sealed_ledgers_and_in_the_open_one() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, 60)
        reader = world.process().topics.reader("t")
        times = {one.number: one.time_ms for one in await world.all()}
        for number in range(1, 61, 3):
            at_s = times[number] / 1000
            for source in (topic.reader, reader):
                assert await source.seek(at_s) == number
                assert await source.seek(at_s - 0.5) == number
        for source in (topic.reader, reader):
            assert await source.seek(0.0) == 1
            assert await source.seek(times[60] / 1000 + 1) == 61
        await reader.aclose()

    in_a_world(main)


def test_what_is_gone_is_cursor_too_old_and_names_the_first() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, 40)
        reader = world.process().topics.reader("t")
        assert texts(await reader.read(1, 1)) == ["m1"]
        cursor = await topic.cursors.open("c")
        cursor.acknowledge(30)
        await asyncio.sleep(5)
        assert topic.reader.first > 1
        for source in (topic.reader, reader):
            with pytest.raises(CursorTooOld) as gone:
                await source.read(1)
            assert gone.value.first == topic.reader.first
            assert texts(await source.read(topic.reader.first, 1)) == [f"m{topic.reader.first}"]
        assert (await reader.bounds())[0] == topic.reader.first
        await reader.aclose()

    in_a_world(main)


def test_a_listed_ledger_that_is_gone_is_damage_to_whoever_reads() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, 40)
        await topic.aclose()
        reader = world.process().topics.reader("t")
        del world.bookies.ledgers[topic.record.spans[0].ledger]  # against all rules
        with pytest.raises(Corrupt, match="topic t: its row .topics/. lists ledger 1, but the row"):
            await reader.read(1)
        with pytest.raises(Corrupt, match="topic t: its row .topics/. lists ledger 1, but the row"):
            await topic.reader.read(1)
        await reader.aclose()

    in_a_world(main)


def test_who_waits_hears_when_the_topic_is_closed() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        waiting = asyncio.ensure_future(topic.reader.wait(1, 100))
        await asyncio.sleep(1)
        await topic.aclose()
        with pytest.raises(QueueUnavailable):
            await waiting
        with pytest.raises(QueueUnavailable):
            await topic.reader.wait(1, 1)

    in_a_world(main)


def test_the_tail_answers_without_ledgers_and_keeps_to_its_bytes() -> None:
    async def main(world: World) -> None:
        topic = await filled(world, 60, LedgerTopicOptions())
        before = world.processes[0].ledgers.reads
        assert texts(await topic.reader.read(1, 100)) == [f"m{n}" for n in range(1, 61)]
        assert texts(await topic.reader.read(17, 2)) == ["m17", "m18"]
        assert world.processes[0].ledgers.reads == before

    in_a_world(main)


def batch(first: int, sizes: list[int]) -> Batch:
    return Batch(first, 7, [TopicMessage(b"x" * size) for size in sizes], sum(sizes), {})


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), max_size=700))
def test_the_tail_has_the_newest_without_a_gap(entries: list[list[int]]) -> None:
    tail, number, sizes = TopicTail(200), 1, []
    for entry in entries:
        tail.add(batch(number, entry))
        number += len(entry)
        sizes += entry
        assert tail.first is not None
        found = tail.read(tail.first, 10**6, 10**6)
        assert found is not None
        assert [one.number for one in found] == list(range(tail.first, number))
        assert [len(one.message.payload) for one in found] == sizes[tail.first - 1 :]
        held = sum(sizes[tail.first - 1 :])
        assert held <= 200 or held == sum(entry)
        assert tail.read(tail.first - 1, 1, 1) is None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_an_index_finds_the_entry_by_halving(counts: list[int], data: st.DataObject) -> None:
    firsts, number = [], 1
    for count in counts:
        firsts.append(number)
        number += count
    times = [first * 10 for first in firsts]
    index, end = EntryIndex(), len(counts)
    for entry in data.draw(st.lists(st.integers(0, end - 1), max_size=20)):
        index.note(entry, firsts[entry], times[entry])
    wanted = data.draw(st.integers(1, number))
    while True:
        low, high = index.around_number(wanted, end)
        if high - low <= 1:
            break
        index.note((low + high) // 2, firsts[(low + high) // 2], times[(low + high) // 2])
    assert low == max((at for at in range(end) if firsts[at] <= wanted), default=0)
    when = data.draw(st.integers(0, number * 10 + 10))
    while True:
        low, high = index.around_time(when, end)
        if high - low <= 1:
            break
        index.note((low + high) // 2, firsts[(low + high) // 2], times[(low + high) // 2])
    assert high == min((at for at in range(end) if times[at] >= when), default=end)


def test_marks_come_back_with_their_messages() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        await topic.append([*marked("ü", 2**63), *plain("x")])
        found = await world.all()
        assert [one.message for one in found] == [*marked("ü", 2**63), *plain("x")]

    in_a_world(main)
