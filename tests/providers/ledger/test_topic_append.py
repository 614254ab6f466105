"""Appending to a topic: numbers, repeats, limits, and the move from ledger to ledger."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.providers.ledger.worlds import World, in_a_world, marked, plain, texts

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings, Quorum
from millstream.providers.ledger.metadata.rows import ROW_TRIES_MAX
from millstream.providers.ledger.topic.appending import current_ledger
from millstream.providers.ledger.topic.form import TopicMessage
from millstream.runtime import (
    ConfigError,
    PublishUnknown,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
    StorageUnavailable,
)


def test_messages_are_numbered_from_one_without_a_gap() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        assert not world.processes[0].ledgers.created  # an idle topic has no ledger
        futures = [topic.append(plain("a", "b")), topic.append(plain("c")), topic.append([])]
        assert [await future for future in futures] == [[1, 2], [3], []]
        assert texts(await topic.reader.read(1)) == ["a", "b", "c"]
        assert texts(await topic.reader.read(2, messages_max=1)) == ["b"]
        assert texts(await topic.reader.read(1, bytes_max=1)) == ["a"]
        assert await topic.reader.read(4) == [] and (topic.reader.first, topic.reader.end) == (1, 4)
        assert texts(await world.all()) == ["a", "b", "c"]

    in_a_world(main)


def test_numbers_go_on_from_ledger_to_ledger() -> None:
    async def main(world: World) -> None:
        settings = LedgerTopicSettings(ledger_entries_max=3)
        topic = await world.open(settings=settings)
        numbers = await asyncio.gather(*(topic.append(plain(f"m{n}")) for n in range(20)))
        assert numbers == [[n + 1] for n in range(20)]
        spans = topic.record.spans
        assert [span.count for span in spans[:-1]] == [3] * (len(spans) - 1) and len(spans) >= 6
        assert all(one.end == other.first for one, other in pairwise(spans))
        assert texts(await world.all()) == [f"m{n}" for n in range(20)]

    in_a_world(main)


def test_the_list_has_the_times_of_the_first_and_the_last_entry_of_a_ledger() -> None:
    async def main(world: World) -> None:
        topic = await world.open(settings=LedgerTopicSettings(ledger_entries_max=3))
        for n in range(7):
            await topic.append(plain(f"m{n}"))
            await asyncio.sleep(1)
        times = {one.number: one.time_ms for one in await world.all()}
        assert [(one.first_ms, one.last_ms) for one in topic.record.spans[:2]] == [
            (times[1], times[3]),
            (times[4], times[6]),
        ]

    in_a_world(main)


def test_a_long_list_is_cut_and_one_that_is_too_large_alone_is_refused_before_it_is_sent() -> None:
    async def main(world: World) -> None:
        topic = await world.open(options=LedgerTopicOptions(entry_bytes_max=1000))
        assert await topic.append([TopicMessage(b"x" * 300)] * 10) == list(range(1, 11))
        stored = next(iter(world.bookies.ledgers.values()))
        assert len(stored.entries) == 5 and max(map(len, stored.entries)) <= 1000
        with pytest.raises(ValueError, match="entry_bytes_max"):
            topic.append([TopicMessage(b"ok"), TopicMessage(b"x" * 1000)])
        assert topic.reader.end == 11 and await topic.append(plain("ok")) == [11]

    in_a_world(main)


def test_a_repeat_has_its_old_number_if_that_is_remembered() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        assert await topic.append(marked("p", 5, 7)) == [1, 2]
        assert await topic.append(marked("p", 7)) == [2]
        assert await topic.append(marked("p", 5, 6, 7, 8)) == [None, None, 2, 3]
        assert await topic.append([*marked("q", 1, 1), *plain("x")]) == [4, 4, 5]
        assert texts(await topic.reader.read(1)) == ["p5", "p7", "p8", "q1", "x"]

    in_a_world(main)


def test_a_repeat_is_known_while_the_first_one_is_on_its_way_and_waits_for_it() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        await topic.append(plain("a"))
        world.bookies.gate.clear()
        first, repeat = topic.append(marked("p", 1, 2)), topic.append(marked("p", 2, 1))
        mixed = topic.append([*marked("p", 2), *plain("b")])
        await asyncio.sleep(1)
        assert not first.done() and not repeat.done() and not mixed.done()
        world.bookies.gate.set()
        assert [await one for one in (first, repeat, mixed)] == [[2, 3], [3, None], [3, 4]]

    in_a_world(main)


@pytest.mark.parametrize("closes_failed", [True, False])
@pytest.mark.parametrize("fault", ["refused", "lost", "hang"])
def test_a_ledger_that_fails_is_ended_and_the_rest_goes_to_the_next_one(
    fault: str, closes_failed: bool
) -> None:
    async def main(world: World) -> None:
        world.bookies.closes_failed = closes_failed
        topic = await world.open(options=LedgerTopicOptions(enqueue_wait_s=10.0))
        world.bookies.faults.extend(["", "", fault])
        futures = [topic.append(marked("p", n)) for n in range(1, 8)]
        numbers = await asyncio.gather(*futures)
        assert numbers == [[n] for n in range(1, 8)]
        assert texts(await world.all()) == [f"p{n}" for n in range(1, 8)]
        assert len(topic.record.spans) == 2 and topic.record.spans[0].is_sealed
        # Closed by its writer, the ledger ends with the entries that the writer knew. A recovery
        # also keeps entries that had arrived.
        assert topic.record.spans[0].count in ({2} if closes_failed else {2, 3})

    in_a_world(main)


def test_nothing_is_sent_again_before_the_ledger_has_its_end() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        await topic.append(plain("a"))
        world.bookies.closes_failed = True
        world.bookies.faults.append("lost")
        world.store.fail("write", "ledger/c/ledgers/", times=3)
        world.store.fail("write", "ledger/c/topics/", times=3)
        future = topic.append(plain("b"))
        first = topic.record.spans[0].ledger
        async with asyncio.timeout(60):
            while len(world.bookies.ledgers) < 2:
                await asyncio.sleep(0.001)
        sealed = await world.processes[0].ledgers.rows.read(first)
        assert sealed is not None and sealed.state.value == "closed"
        assert await future == [2] and texts(await world.all()) == ["a", "b"]
        assert topic.record.spans[0].is_sealed

    in_a_world(main)


def test_appends_wait_for_a_ledger_and_then_hear_that_nothing_was_sent() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        world.bookies.refuse_creation = 10**6
        with pytest.raises(QueueUnavailable, match="no ledger"):
            await topic.append(plain("a"))
        world.bookies.refuse_creation = 0
        await asyncio.sleep(2)
        assert await topic.append(plain("b")) == [1]
        assert texts(await world.all()) == ["b"]

    in_a_world(main)


def test_what_was_sent_and_has_no_ledger_to_go_to_is_of_unknown_fate_and_stored_later() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        await topic.append(plain("a"))
        world.bookies.refuse_creation = 10**6
        world.bookies.faults.append("refused")
        sent = topic.append(marked("p", 1))
        await asyncio.sleep(0.1)
        waiting = topic.append(marked("p", 2))
        with pytest.raises(PublishUnknown):
            await sent
        with pytest.raises(QueueUnavailable):
            await waiting
        world.bookies.refuse_creation = 0
        await asyncio.sleep(2)
        assert await topic.append(marked("p", 1, 2)) == [2, 3]
        assert texts(await world.all()) == ["a", "p1", "p2"]

    in_a_world(main)


def test_what_bookies_do_not_answer_for_is_of_unknown_fate_after_a_while_and_stored_later() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        world.bookies.gate.clear()  # as if a bookie process hangs and keeps its connections
        before_s = asyncio.get_running_loop().time()
        first = topic.append(marked("p", 1))
        await asyncio.sleep(1.0)
        second = topic.append(marked("p", 1, 2))
        with pytest.raises(PublishUnknown, match="did not answer within 3.0 s"):
            await first
        assert asyncio.get_running_loop().time() - before_s == pytest.approx(3.0)
        assert not second.done()
        with pytest.raises(PublishUnknown):
            await second
        assert asyncio.get_running_loop().time() - before_s == pytest.approx(4.0)
        world.bookies.gate.set()
        assert await topic.append(marked("p", 1, 2, 3)) == [None, 2, 3]
        assert texts(await world.all()) == ["p1", "p2", "p3"]

    in_a_world(main)


def test_an_append_that_waits_for_room_is_sent_as_soon_as_there_is_some() -> None:
    async def main(world: World) -> None:
        options = LedgerTopicOptions(entry_bytes_max=1000, in_flight_bytes_max=2000)
        topic = await world.open(options=options)
        async with asyncio.timeout(1):
            numbers = await asyncio.gather(
                *(topic.append([TopicMessage(b"x" * 500)]) for _ in range(20))
            )
        assert numbers == [[n] for n in range(1, 21)]

    in_a_world(main)


def test_bytes_on_the_way_are_limited_and_who_waits_too_long_hears_queue_full() -> None:
    async def main(world: World) -> None:
        options = LedgerTopicOptions(entry_bytes_max=1000, in_flight_bytes_max=2000)
        topic = await world.open(options=options)
        await topic.append(plain("a"))
        world.bookies.gate.clear()
        futures = [topic.append([TopicMessage(b"x" * 500, "p", n)]) for n in range(6)]
        assert topic.in_flight_bytes <= 2000
        await asyncio.sleep(5.1)
        with pytest.raises(PublishUnknown):  # this message was sent
            await futures[2]
        with pytest.raises(QueueFull, match="in_flight_bytes_max"):
            await futures[3]
        world.bookies.gate.set()
        await asyncio.gather(*futures, return_exceptions=True)
        assert await topic.append([TopicMessage(b"y", "p", 3)]) == [5]
        assert topic.in_flight_bytes == 0

    in_a_world(main)


def test_too_many_that_wait_are_refused_at_once() -> None:
    async def main(world: World) -> None:
        topic = await world.open(options=LedgerTopicOptions(waiting_appends_max=2))
        world.bookies.refuse_creation = 10**6
        waiting = [topic.append(plain("a")), topic.append(plain("b"))]
        with pytest.raises(QueueFull, match="waiting_appends_max is 2"):
            topic.append(plain("c"))
        world.bookies.refuse_creation = 0
        assert await asyncio.gather(*waiting) == [[1], [2]]

    in_a_world(main)


def test_too_many_bytes_that_wait_are_refused_at_once() -> None:
    async def main(world: World) -> None:
        topic = await world.open(options=LedgerTopicOptions(waiting_bytes_max=1000))
        world.bookies.refuse_creation = 10**6
        waiting = [topic.append([TopicMessage(b"x" * 900)])]
        with pytest.raises(QueueFull, match="waiting_bytes_max is 1000"):
            topic.append([TopicMessage(b"x" * 900)])
        world.bookies.refuse_creation = 0
        assert await asyncio.gather(*waiting) == [[1]]
        assert await topic.append([TopicMessage(b"x" * 900)]) == [2]

    in_a_world(main)


def test_a_topic_has_only_so_many_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_ledger, "LEDGERS_MAX", 2)

    async def main(world: World) -> None:
        options = LedgerTopicOptions(enqueue_wait_s=1.0)
        topic = await world.open(1, options, LedgerTopicSettings(ledger_entries_max=1))
        cursor = await topic.cursors.open("c")
        assert await topic.append(plain("a")) == [1] and await topic.append(plain("b")) == [2]
        with pytest.raises(QueueUnavailable):
            await topic.append(plain("c"))
        cursor.acknowledge(2)
        await asyncio.sleep(5)
        assert await topic.append(plain("c")) == [3]

    in_a_world(main)


def test_a_cancelled_append_that_waits_is_never_sent_nor_what_its_producer_gave_behind_it() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        world.bookies.refuse_creation = 3
        first = topic.append(marked("p", 1))
        second, other = topic.append(marked("p", 2)), topic.append(marked("q", 1))
        first.cancel()
        with pytest.raises(
            QueueUnavailable, match="an earlier append of the producer was not sent"
        ):
            await second
        assert await other == [1]
        assert await topic.append(marked("p", 1, 2)) == [2, 3]

    in_a_world(main)


def test_a_cancelled_append_that_was_sent_is_stored() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        await topic.append(plain("a"))
        future = topic.append(plain("b"))
        future.cancel()
        assert await topic.append(plain("c")) == [3]
        assert texts(await world.all()) == ["a", "b", "c"]

    in_a_world(main)


def test_a_ledger_that_could_have_more_replicas_by_now_is_ended() -> None:
    async def main(world: World) -> None:
        topic = await world.open(options=LedgerTopicOptions(tend_every_s=10.0))
        await topic.append(plain("a"))
        world.processes[0].ledgers.writers[0].is_short = True
        await asyncio.sleep(11)
        assert topic.record.spans[0].is_sealed
        assert await topic.append(plain("b")) == [2]
        assert len(world.processes[0].ledgers.created) == 2

    in_a_world(main)


def test_an_old_ledger_is_ended_by_age_and_the_next_one_begins_with_the_next_append() -> None:
    async def main(world: World) -> None:
        options = LedgerTopicOptions(tend_every_s=10.0)
        topic = await world.open(options=options, settings=LedgerTopicSettings(ledger_age_s=100.0))
        await topic.append(plain("a"))
        await asyncio.sleep(90)
        assert not topic.record.spans[0].is_sealed
        await asyncio.sleep(30)
        assert topic.record.spans[0].is_sealed and len(world.processes[0].ledgers.created) == 1
        assert await topic.append(plain("b")) == [2]
        assert texts(await world.all()) == ["a", "b"]

    in_a_world(main)


def test_a_ledger_is_ended_by_size() -> None:
    async def main(world: World) -> None:
        topic = await world.open(settings=LedgerTopicSettings(ledger_bytes_max=1000))
        for n in range(6):
            assert await topic.append([TopicMessage(b"x" * 400)]) == [n + 1]
        await asyncio.sleep(1)
        assert [span.count for span in topic.record.spans] == [3, 3]

    in_a_world(main)


def test_other_settings_hold_from_the_next_ledger_on_and_are_kept() -> None:
    async def main(world: World) -> None:
        topic = await world.open(settings=LedgerTopicSettings(ledger_entries_max=2))
        await topic.append(plain("a"))
        await topic.change(LedgerTopicSettings(quorum=Quorum(3, 3, 2), ledger_entries_max=2))
        await topic.append(plain("b"))
        await topic.append(plain("c"))
        records = [
            await world.processes[0].ledgers.rows.read(span.ledger) for span in topic.record.spans
        ]
        assert [one.quorum for one in records if one] == [Quorum(1, 1, 1), Quorum(3, 3, 2)]
        await topic.aclose()
        assert (await world.open(2)).record.settings.quorum == Quorum(3, 3, 2)

    in_a_world(main)


def test_times_never_go_back() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        await topic.append(plain("a"))
        world.processes[0].clock.skew_s = -500.0
        await topic.append(plain("b"))
        await topic.aclose()
        topic = await world.open(2)
        world.processes[1].clock.skew_s = -900.0
        await topic.append(plain("c"))
        times = [one.time_ms for one in await world.all()]
        assert times == sorted(times) and times[0] == times[1] == times[2]

    in_a_world(main)


def test_a_closed_topic_takes_nothing_and_the_next_owner_finds_everything_ended() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        futures = [topic.append(plain(f"m{n}")) for n in range(5)]
        await futures[0]
        await topic.aclose()
        await topic.aclose()
        assert [await future for future in futures] == [[n + 1] for n in range(5)]
        with pytest.raises(QueueUnavailable, match="closed"):
            topic.append(plain("x"))
        assert all(span.is_sealed for span in topic.record.spans)
        world.bookies.refuse_recovery = 10**6  # no recovery is needed
        topic = await world.open(2)
        assert await topic.append(plain("y")) == [6]

    in_a_world(main)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="ensemble=2, write_quorum=3"):
        LedgerTopicSettings(quorum=Quorum(2, 3, 2))
    with pytest.raises(ConfigError, match="entry_bytes_max"):
        LedgerTopicOptions(entry_bytes_max=2**26)


def test_a_topic_that_was_deleted_fences_whoever_had_it() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        await topic.append(plain("a"))
        await world.process().topics.delete("t")
        other = await world.open(1)
        with pytest.raises(PublishUnknown):
            await topic.append(plain("b"))
        with pytest.raises(QueueFenced):
            topic.append(plain("c"))
        assert await other.append(plain("z")) == [1]

    in_a_world(main)


def test_the_deletion_of_a_topic_that_stopped_halfway_is_ended_when_it_is_deleted_again() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        await topic.append(plain("a"))
        key = "ledger/c/topics/t"
        world.store.fail("clear", key, times=ROW_TRIES_MAX)
        with pytest.raises(StorageUnavailable):
            await world.process().topics.delete("t")
        assert world.store.get(key) is not None
        await world.process().topics.delete("t")
        assert world.store.get(key) is None

    in_a_world(main)
