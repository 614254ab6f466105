"""Opening a topic in an epoch: fencing, recovery, remembered producers and zombies."""

from __future__ import annotations

import asyncio

import pytest
from tests.providers.ledger.topic_history import History
from tests.providers.ledger.worlds import World, in_a_world, marked, plain, texts

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings
from millstream.runtime import Corrupt, PublishUnknown, QueueFenced, QueueUnavailable


def test_a_successor_has_all_that_was_acknowledged_and_the_older_owner_is_fenced() -> None:
    async def main(world: World) -> None:
        old = await world.open(1)
        await old.append(plain("a", "b"))
        new = await world.open(2)
        zombie = old.append(plain("z"))
        assert await new.append(plain("c")) == [3]
        with pytest.raises(PublishUnknown):
            await zombie
        with pytest.raises(QueueFenced):
            old.append(plain("y"))
        assert texts(await world.all()) == ["a", "b", "c"]
        await old.aclose()
        assert texts(await new.reader.read(1)) == ["a", "b"]  # to the end of a ledger
        assert texts(await new.reader.read(3)) == ["c"]

    in_a_world(main)


def test_a_lower_epoch_is_refused_and_the_same_one_of_another_process() -> None:
    async def main(world: World) -> None:
        topic = await world.open(5)
        for epoch in (1, 4, 5):
            with pytest.raises(QueueFenced, match="has epoch 5"):
                await world.open(epoch)
        assert await topic.append(plain("a")) == [1]

    in_a_world(main)


def test_the_same_process_may_open_its_epoch_again_and_fences_its_topic_of_before() -> None:
    async def main(world: World) -> None:
        process = world.process()
        old = await process.topics.open("t", 3)
        await old.append(plain("a"))
        new = await process.topics.open("t", 3)
        assert await new.append(plain("b")) == [2]
        with pytest.raises(PublishUnknown):
            await old.append(plain("z"))
        with pytest.raises(QueueFenced):
            old.append(plain("z"))
        assert texts(await world.all()) == ["a", "b"]

    in_a_world(main)


def test_an_opening_that_failed_can_be_repeated_in_its_epoch() -> None:
    async def main(world: World) -> None:
        await (await world.open(1)).append(plain("a"))
        world.bookies.refuse_recovery = 1
        process = world.process()
        with pytest.raises(QueueUnavailable, match="NotRecoverable"):
            await process.topics.open("t", 2)
        topic = await process.topics.open("t", 2)
        assert await topic.append(plain("b")) == [2]

    in_a_world(main)


def test_an_idle_owner_is_fenced_before_it_has_a_ledger() -> None:
    async def main(world: World) -> None:
        old = await world.open(1)
        new = await world.open(2)
        with pytest.raises(QueueFenced):
            await old.append(plain("z"))
        assert await new.append(plain("a")) == [1]
        assert texts(await world.all()) == ["a"]

    in_a_world(main)


def test_a_zombie_whose_list_write_comes_late_appends_nothing() -> None:
    async def main(world: World) -> None:
        old = await world.open(1, settings=LedgerTopicSettings(ledger_entries_max=1))
        await old.append(plain("a"))
        world.store.fail("write", "ledger/c/topics/", times=6)
        zombie = old.append(plain("z"))
        await asyncio.sleep(0.01)
        new = await world.open(2)
        assert await new.append(plain("b")) == [2]
        with pytest.raises(QueueFenced):
            await zombie  # the message was never sent
        assert texts(await world.all()) == ["a", "b"]

    in_a_world(main)


def test_a_ledger_that_a_successor_may_have_listed_is_not_deleted_by_who_made_it() -> None:
    async def main(world: World) -> None:
        old = await world.open(1)
        world.store.fail("write", "ledger/c/topics/", is_done=True)
        future = old.append(plain("z"))
        while not world.bookies.ledgers:
            await asyncio.sleep(0.0001)
        new = await world.open(2)
        await asyncio.wait([future])
        await asyncio.sleep(5)
        listed = {span.ledger for span in new.record.spans}
        assert listed <= world.bookies.ledgers.keys()

    in_a_world(main)


def test_someone_who_fences_a_ledger_without_taking_the_topic_over_costs_a_new_ledger() -> None:
    async def main(world: World) -> None:
        topic = await world.open()
        await topic.append(plain("a"))
        await world.process().ledgers.recover(topic.record.spans[0].ledger)
        assert await topic.append(plain("b")) == [2]
        assert texts(await world.all()) == ["a", "b"] and len(topic.record.spans) == 2

    in_a_world(main)


@pytest.mark.parametrize("seed", range(6))
def test_what_a_ledger_kept_of_what_was_on_its_way_is_not_sent_again(seed: int) -> None:
    async def main(world: World) -> None:
        history = History(world)
        history.watch()
        topic = await world.open(options=LedgerTopicOptions(enqueue_wait_s=10.0))
        await topic.append(marked("p", 1))
        world.bookies.faults.extend(["", "hang"])
        world.bookies.delay_s = 0.1
        futures = [topic.append(marked("p", seq)) for seq in (2, 3, 4)]
        await asyncio.sleep(1)
        await world.process().ledgers.recover(topic.record.spans[0].ledger)
        assert [await future for future in futures] == [[2], [3], [4]]
        assert texts(await world.all()) == ["p1", "p2", "p3", "p4"]
        await topic.aclose()
        history.judge()

    in_a_world(main, seed)


@pytest.mark.parametrize("snapshot_entries", [1, 3, 1000])
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_successor_knows_what_producers_have_sent(snapshot_entries: int, is_closed: bool) -> None:
    async def main(world: World) -> None:
        options = LedgerTopicOptions(snapshot_entries=snapshot_entries)
        settings = LedgerTopicSettings(ledger_entries_max=7)
        topic = await world.open(1, options, settings)
        for seq in range(1, 20):
            await topic.append(marked("p", seq))
            if seq % 5 == 0:
                await topic.append(marked("q", seq))
        await (topic.aclose() if is_closed else topic.let_go())
        end = topic.reader.end
        topic = await world.open(2, options)
        last = [one for one in await world.all() if one.message == marked("p", 19)[0]]
        assert await topic.append(marked("p", 18, 19, 20)) == [None, last[0].number, end]
        assert (await topic.append(marked("q", 10, 15, 16)))[2] == end + 1
        found = texts(await world.all())
        assert len(found) == len(set(found))

    in_a_world(main)


def test_what_was_on_its_way_and_is_sent_again_is_stored_once_also_by_another_owner() -> None:
    async def main(world: World) -> None:
        old = await world.open(1)
        await old.append(marked("p", 1))
        world.bookies.closes_failed = True
        world.bookies.faults.append("lost")  # the entry arrived, but the ledger ends before it
        world.bookies.refuse_creation = 10**6
        with pytest.raises(PublishUnknown):
            await old.append(marked("p", 2))
        world.processes[0].kill()
        world.bookies.refuse_creation = 0
        new = await world.open(2)
        await new.append(marked("p", 2, 3))
        assert texts(await world.all()) == ["p1", "p2", "p3"]

    for seed in range(4):
        in_a_world(main, seed)


def test_a_ledger_without_messages_leaves_the_list_and_is_deleted_then() -> None:
    async def main(world: World) -> None:
        old = await world.open(1)
        world.bookies.faults.append("refused")
        world.bookies.gate.clear()
        future = old.append(plain("a"))
        await asyncio.sleep(1)
        world.processes[0].kill()
        world.bookies.gate.set()
        empty = old.record.spans[0].ledger
        new = await world.open(2)
        assert new.record.spans == ()
        await asyncio.sleep(1)
        assert empty in world.bookies.deleted
        assert await new.append(plain("b")) == [1] and not future.done()

    in_a_world(main)


def test_a_topic_with_a_listed_ledger_that_is_gone_is_not_opened() -> None:
    """The ledger may have had messages, and their numbers would be given again."""

    async def main(world: World) -> None:
        old = await world.open(1)
        world.bookies.gate.clear()
        future = old.append(plain("a"))
        while not old.record.spans:
            await asyncio.sleep(0.001)
        world.processes[0].kill()
        await world.process().ledgers.delete(old.record.spans[0].ledger)
        world.bookies.gate.set()
        with pytest.raises(Corrupt, match="topic t: its row .topics/. lists a ledger whose row"):
            await world.open(2)
        assert not future.done()

    in_a_world(main)


def test_only_the_producers_that_were_used_last_are_remembered() -> None:
    async def main(world: World) -> None:
        options = LedgerTopicOptions(producers_max=3, snapshot_entries=2)
        topic = await world.open(1, options)
        for name in "abcd":
            await topic.append(marked(name, 1))
        await topic.append(marked("b", 2))
        for epoch in (2, 3):
            await topic.let_go()
            topic = await world.open(epoch, options)
            assert await topic.append(marked("b", 2)) == [5]
            assert await topic.append(marked("d", 1)) == [4]
        assert await topic.append(marked("a", 1)) == [6]  # forgotten, so it is stored again

    in_a_world(main)


def test_rows_that_cannot_be_read_are_queue_unavailable() -> None:
    async def main(world: World) -> None:
        world.store.fail("read", "ledger/c/topics/", times=100)
        with pytest.raises(QueueUnavailable, match="cannot be taken over"):
            await world.open(1)

    in_a_world(main)
