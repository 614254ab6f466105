"""Topics without a silo, in virtual time, on a disk that forgets data that was not synced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from tests.providers.ledger.alone.machine import Machine, at_s, values
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import (
    LedgerTopic,
    LedgerTopicOptions,
    Position,
    Quorum,
    open_topics,
)
from millstream.runtime import (
    ConfigError,
    CursorTooOld,
    Etag,
    MemoryStateStore,
    QueueFenced,
    QueueFull,
    QueueUnavailable,
    StorageUnavailable,
)
from millstream.runtime.testing import FailingStore


class RefusingStore(MemoryStateStore):
    """Refuses to clear the rows whose keys begin with `refused`."""

    refused: str | None = None

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        if self.refused is not None and key.startswith(self.refused):
            raise StorageUnavailable("planted")
        await super().clear(key, expect, fence)


async def filled(topic: LedgerTopic, count: int, first: int = 1) -> None:
    numbers = range(first, first + count)
    await asyncio.gather(*(topic.produce(None, f"m{n}".encode()) for n in numbers))


@virtually
async def test_what_was_produced_is_read_by_number_and_by_the_next_program() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        orders = await topics.topic("orders")
        assert await orders.produce("BOS", b"one") == Position(0, 1)
        assert await orders.produce(None, b"two") == Position(0, 2)
        (one,) = await orders.read(Position(0, 1), messages_max=1)
        assert (one.key, one.value, one.position) == ("BOS", b"one", Position(0, 1))
        assert await orders.bounds() == (Position(0, 1), Position(0, 3))
        assert await orders.read(Position(0, 3)) == []
    async with machine.topics() as topics:
        orders = await topics.topic("orders")
        assert values(await orders.read(Position(0, 1))) == ["one", "two"]
        assert await orders.produce("BOS", b"three") == Position(0, 3)
        assert await topics.names() == ["orders"]


@virtually
async def test_nothing_that_was_produced_is_lost_when_the_power_goes() -> None:
    machine = Machine()
    topics = await machine.topics().__aenter__()
    orders = await topics.topic("orders", partitions=2)
    stored = {await orders.produce(f"k{n}", f"m{n}".encode()): f"m{n}" for n in range(40)}
    machine.die()
    async with machine.topics() as topics:
        orders = await topics.topic("orders")
        assert orders.partitions == 2
        for at in range(2):
            for message in await orders.read(Position(at, 1)):
                assert stored.pop(message.position) == message.value.decode()
    assert not stored


@virtually
async def test_messages_of_one_key_stay_together_and_in_order() -> None:
    async with Machine().topics() as topics:
        orders = await topics.topic("orders", partitions=4)
        for n in range(60):
            await orders.produce(f"k{n % 6}", str(n).encode())
        seen: dict[str | None, list[int]] = {}
        for at in range(4):
            for message in await orders.read(Position(at, 1)):
                seen.setdefault(message.key, []).append(int(message.value))
                assert orders.partition_of(str(message.key)) == at
        assert seen == {f"k{k}": list(range(k, 60, 6)) for k in range(6)}


@virtually
async def test_a_list_is_stored_in_order_within_each_partition() -> None:
    async with Machine().topics() as topics:
        orders = await topics.topic("orders", partitions=3)
        items = [(f"k{n % 5}", str(n).encode()) for n in range(50)]
        places = await orders.produce_many(items, producer="p", sequence=1)
        for at in range(3):
            found = await orders.read(Position(at, 1))
            wanted = [
                (place, value)
                for place, (_, value) in zip(places, items, strict=True)
                if place is not None and place.partition == at
            ]
            assert [(one.position, one.value) for one in found] == wanted
            assert [one.sequence for one in found] == [int(one.value) + 1 for one in found]
        await orders.produce_many(items, producer="p", sequence=1)
        ends = [(await orders.bounds(at))[1].number - 1 for at in range(3)]
        assert sum(ends) == 50
        with pytest.raises(ValueError, match="entry_bytes_max leaves"):
            await orders.produce_many([("a", b"x"), ("a", bytes(8 * 2**20))])
        assert await orders.produce_many([]) == []


@virtually
async def test_a_repeat_is_not_stored_again_also_after_a_crash() -> None:
    machine = Machine()
    topics = await machine.topics().__aenter__()
    orders = await topics.topic("orders", partitions=3)
    places = [await orders.produce(None, b"x", producer="p", sequence=n) for n in (1, 2)]
    assert await orders.produce(None, b"x", producer="p", sequence=2) == places[1]
    machine.die()
    async with machine.topics() as topics:
        orders = await topics.topic("orders")
        again = [await orders.produce(None, b"x", producer="p", sequence=n) for n in (1, 2, 3)]
        assert again == [None, places[1], Position(orders.partition_of(None, "p"), 3)]


@virtually
async def test_a_subscription_goes_on_where_it_was_and_the_rest_comes_again() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        orders = await topics.topic("orders")
        await filled(orders, 6)
        billing = await orders.subscribe("billing")
        batch = await billing.batch(messages_max=4)
        assert values(batch) == ["m1", "m2", "m3", "m4"]
        billing.acknowledge_upto(batch[1])
        billing.acknowledge(batch[3], Position(0, 6))
        assert billing.backlog == 4
        assert values(await billing.batch()) == ["m5"]
        billing.rewind()
        assert values(await billing.batch()) == ["m3", "m5"]
        await billing.aclose()
        billing = await orders.subscribe("billing", start="latest")
        assert values(await billing.batch()) == ["m3", "m5"]
    async with machine.topics() as topics:
        orders = await topics.topic("orders")
        assert orders.subscriptions == ["billing"]
        billing = await orders.subscribe("billing")
        assert values(await billing.batch()) == ["m3", "m5"]
        assert await billing.batch(wait_s=5) == []


@virtually
async def test_what_was_acknowledged_and_stored_does_not_come_again_after_a_crash() -> None:
    machine = Machine()
    topics = await machine.topics().__aenter__()
    orders = await topics.topic("orders")
    await filled(orders, 5)
    billing = await orders.subscribe("billing")
    billing.acknowledge_upto(Position(0, 2))
    await billing.flush()
    billing.acknowledge_upto(Position(0, 4))
    machine.die()
    async with machine.topics() as topics:
        billing = await (await topics.topic("orders")).subscribe("billing")
        assert values(await billing.batch()) == ["m3", "m4", "m5"]


@pytest.mark.parametrize("fails", [None, 0, 1, 2])
@virtually
async def test_a_flush_stores_every_partition_also_if_that_of_one_fails(fails: int | None) -> None:
    machine = Machine()
    machine.store = store = FailingStore()
    topics = await machine.topics().__aenter__()
    orders = await topics.topic("orders", partitions=3)
    for _ in range(4 * 3):
        await orders.produce(None, b"m")  # partitions are used in turn
    billing = await orders.subscribe("billing")
    for partition in range(3):
        billing.acknowledge_upto(Position(partition, 2))
    if fails is None:
        await billing.flush()
    else:
        prefix = f"ledger/topics/cursors/orders%2F{fails}/"
        assert store.range(prefix, "", 9)
        store.fail("write", prefix, times=100)
        with pytest.raises(StorageUnavailable):
            await billing.flush()
    machine.die()
    machine.store = copied(store)
    async with machine.topics() as topics:
        billing = await (await topics.topic("orders")).subscribe("billing")
        came = [one.position for _ in range(9) for one in await billing.batch()]
        wanted = {p: [3, 4] if p != fails else [1, 2, 3, 4] for p in range(3)}
        for partition, numbers in wanted.items():
            assert [one.number for one in came if one.partition == partition] == numbers


def copied(store: FailingStore) -> FailingStore:
    """Copy the rows into a store that does not fail."""
    made = FailingStore()
    for key, row in store.range("", "", 10_000):
        made.put(key, row.data, None, 0)
    return made


@virtually
async def test_a_subscription_seeks_by_position_and_by_time() -> None:
    async with Machine().topics() as topics:
        orders = await topics.topic("orders")
        for n in range(1, 6):
            await asyncio.sleep(10)
            await orders.produce(None, f"m{n}".encode())
        billing = await orders.subscribe("billing", start="latest")
        assert await billing.batch() == []
        billing.seek(Position(0, 4))
        assert values(await billing.batch()) == ["m4", "m5"]
        await billing.seek_time(at_s(29.9))
        assert values(await billing.batch()) == ["m3", "m4", "m5"]
        late = await orders.subscribe("late", start=at_s(45))
        assert values(await late.batch()) == ["m5"]
        with pytest.raises(ConfigError, match="names a partition twice"):
            await orders.subscribe("twice", start=[Position(0, 2), Position(0, 3)])
        exact = await orders.subscribe("exact", start=[Position(0, 2)])
        assert values(await exact.batch(messages_max=1)) == ["m2"]


@virtually
async def test_batches_are_waited_for_in_all_partitions_and_end_with_the_topic() -> None:
    async with Machine().topics() as topics:
        orders = await topics.topic("orders", partitions=3)
        billing = await orders.subscribe("billing")
        found: list[str] = []

        async def consume() -> None:
            async for batch in billing:
                found.extend(values(batch))
                billing.acknowledge(*batch)

        consuming = asyncio.create_task(consume())
        for n in range(9):
            await asyncio.sleep(100)
            await orders.produce(None, str(n).encode())
            await asyncio.sleep(0.1)
            assert found[-1] == str(n)
        await orders.aclose()
        await asyncio.wait_for(consuming, 1)
        assert found == [str(n) for n in range(9)] and billing.backlog == 0


@virtually
async def test_who_stops_waiting_for_a_batch_takes_nothing_away() -> None:
    async with Machine().topics() as topics:
        orders = await topics.topic("orders", partitions=2)
        billing = await orders.subscribe("billing")
        waiting = asyncio.create_task(billing.batch(wait_s=60))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await orders.produce("k", b"x")
        assert values(await billing.batch()) == ["x"]


@virtually
async def test_a_tail_follows_all_partitions_and_ends_with_the_topic() -> None:
    async with Machine().topics() as topics:
        orders = await topics.topic("orders", partitions=2)
        await filled(orders, 4)
        found: list[str] = []

        async def follow() -> None:
            async for message in orders.tail("earliest"):
                found.append(message.value.decode())

        following = asyncio.create_task(follow())
        newest = anext(orders.tail())
        await asyncio.sleep(1)
        assert sorted(found) == ["m1", "m2", "m3", "m4"]
        waiting = asyncio.ensure_future(newest)
        await asyncio.sleep(1)
        await orders.produce("k", b"m5")
        assert (await waiting).value == b"m5"
        await asyncio.sleep(0.1)
        assert found[-1] == "m5"
    await asyncio.wait_for(following, 1)


@virtually
async def test_a_reader_of_deleted_messages_hears_where_the_others_begin() -> None:
    async with Machine().topics() as topics:
        options = LedgerTopicOptions(tend_every_s=1.0)
        orders = await topics.topic("orders", ledger_entries_max=1, options=options)
        billing = await orders.subscribe("billing")
        for n in range(5):
            await orders.produce(None, str(n).encode())
        billing.acknowledge_upto(Position(0, 3))
        await asyncio.sleep(10)
        assert await orders.bounds() == (Position(0, 4), Position(0, 6))
        with pytest.raises(CursorTooOld) as raised:
            await orders.read(Position(0, 2))
        assert raised.value.first == Position(0, 4)
        with pytest.raises(CursorTooOld):
            async for _ in orders.tail([Position(0, 1)]):
                pass
        await orders.unsubscribe("billing")
        assert billing.is_closed and orders.subscriptions == []


@virtually
async def test_a_slow_subscription_holds_producers_or_loses_its_oldest_as_asked() -> None:
    async with Machine().topics() as topics:
        held = await topics.topic(
            "held", options=LedgerTopicOptions(backlog_bytes_max=2_000, enqueue_wait_s=1.0)
        )
        await held.subscribe("slow")
        with pytest.raises(QueueFull, match="backlog_bytes_max"):
            for _ in range(100):
                await held.produce(None, bytes(100))
        cut = await topics.topic(
            "cut",
            ledger_entries_max=2,
            options=LedgerTopicOptions(backlog_bytes_max=2_000, backlog_policy="evict"),
        )
        slow = await cut.subscribe("slow")
        for _ in range(100):
            await cut.produce(None, bytes(100))
        with pytest.raises(CursorTooOld) as raised:
            await slow.batch()
        (message, *_) = await slow.batch()
        assert message.position == raised.value.first


@virtually
async def test_a_second_program_is_refused_or_waits_until_the_first_has_ended() -> None:
    machine = Machine()
    async with machine.topics() as first:
        await (await first.topic("orders")).produce(None, b"x")
        with pytest.raises(QueueUnavailable, match="/data/bookie: another process has this dir"):
            async with machine.topics():
                pass
        second = asyncio.create_task(machine.topics(open_wait_s=60).__aenter__())
        await asyncio.sleep(5)
        assert not second.done()
    topics = await second
    assert values(await (await topics.topic("orders")).read(Position(0, 1))) == ["x"]
    await topics.aclose()


@virtually
async def test_a_topic_that_another_program_took_is_fenced() -> None:
    machine = Machine()
    async with machine.topics("/one") as one:
        old = await one.topic("orders")
        async with machine.topics("/two") as two:
            new = await two.topic("orders")
            await new.produce(None, b"new")
            with pytest.raises(QueueFenced):
                await old.produce(None, b"old")


@virtually
async def test_after_the_end_every_call_says_so_and_ending_again_is_harmless() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        orders = await topics.topic("orders")
        billing = await orders.subscribe("billing")
        await billing.aclose()
        await billing.aclose()
        for call in (billing.batch(), billing.flush()):
            with pytest.raises(QueueUnavailable, match="subscription 'billing' is closed"):
                await call
        with pytest.raises(QueueUnavailable):
            billing.acknowledge(Position(0, 1))
        await orders.aclose()
        await orders.aclose()
        calls: list[Awaitable[object]] = [orders.produce(None, b"x"), orders.read(Position(0, 1))]
        calls += [orders.subscribe("b"), anext(orders.tail())]
        for late in calls:
            with pytest.raises(QueueUnavailable, match="topic orders is closed"):
                await late
        await topics.aclose()
    with pytest.raises(QueueUnavailable, match="these topics are closed"):
        await topics.topic("orders")
    await topics.aclose()


@virtually
async def test_a_topic_that_was_closed_is_opened_anew() -> None:
    async with Machine().topics() as topics:
        orders = await topics.topic("orders")
        assert await topics.topic("orders") is orders
        await orders.produce(None, b"x")
        await orders.aclose()
        anew = await topics.topic("orders")
        assert anew is not orders and values(await anew.read(Position(0, 1))) == ["x"]


@virtually
async def test_settings_change_from_the_next_ledger_on_and_partitions_never() -> None:
    machine = Machine()
    async with machine.topics("/a", "/b", "/c") as topics:
        orders = await topics.topic("orders", partitions=2, ensemble=1)
        assert orders.settings.quorum == Quorum(1, 1, 1)
        await filled(orders, 4)
        await topics.topic("orders", ensemble=3, ledger_entries_max=10)
        assert orders.settings.quorum == Quorum(3, 3, 2)
        assert orders.settings.ledger_entries_max == 10
        with pytest.raises(ConfigError, match="partitions is 3, and 2 so far"):
            await topics.topic("orders", partitions=3)
        with pytest.raises(ConfigError, match="options is"):
            await topics.topic("orders", options=LedgerTopicOptions(cursors_max=1))
    async with machine.topics("/a", "/b", "/c") as topics:
        orders = await topics.topic("orders")
        assert orders.settings.quorum == Quorum(3, 3, 2)
        await filled(orders, 4, first=5)
        assert sum(map(len, [await orders.read(Position(at, 1)) for at in (0, 1)])) >= 4


@virtually
async def test_with_three_directories_one_may_be_lost() -> None:
    machine = Machine()
    async with machine.topics("/a", "/b", "/c") as topics:
        orders = await topics.topic("orders")
        await filled(orders, 10)
    for name in machine.disk.list("/b/bookie"):
        machine.disk.unlink(f"/b/bookie/{name}")
    machine.disk.sync_dir("/b/bookie")
    async with machine.topics("/a", "/b", "/c") as topics:
        orders = await topics.topic("orders")
        assert values(await orders.read(Position(0, 1))) == [f"m{n}" for n in range(1, 11)]
        assert await orders.produce(None, b"m11") == Position(0, 11)
        await asyncio.sleep(300)
    for place in ("/a/bookie", "/c/bookie"):  # the emptied directory has its copies again
        machine.disk.restore(place, {})
    async with machine.topics("/a", "/b", "/c") as topics:
        orders = await topics.topic("orders")
        found = await orders.read(Position(0, 1)) + await orders.read(Position(0, 11))
        assert values(found) == [f"m{n}" for n in range(1, 12)]


@pytest.mark.parametrize(
    ("quorums", "text"),
    [
        ((2, 3, 2), "ensemble=2, write_quorum=3, ack_quorum=2: need ensemble >= write_quorum"),
        ((3, 2, 3), "ensemble=3, write_quorum=2, ack_quorum=3: need ensemble >= write_quorum"),
        ((2, 2, 1), "ensemble=2, write_quorum=2, ack_quorum=1: with ack_quorum=1 and several"),
        ((3, 3, 2), "ensemble=3, write_quorum=3, ack_quorum=2: the ensemble needs 3 directories"),
        ((0, 0, 0), "ensemble=0, write_quorum=0, ack_quorum=0"),
    ],
)
def test_a_quorum_that_cannot_be_names_the_three_values(
    quorums: tuple[int, int, int], text: str
) -> None:
    @virtually
    async def main() -> None:
        async with Machine().topics("/a", "/b") as topics:
            with pytest.raises(ConfigError, match=text):
                await topics.topic("orders", 1, *quorums)
            assert await topics.names() == []

    main()


@virtually
async def test_what_cannot_be_produced_is_refused_before_it_is_sent() -> None:
    async with Machine().topics(options=LedgerTopicOptions(entry_bytes_max=1_000)) as topics:
        orders = await topics.topic("orders")
        with pytest.raises(ValueError, match="entry_bytes_max leaves 966: split"):
            await orders.produce(None, bytes(1_000))
        with pytest.raises(TypeError, match="value of a message is a str; it must be bytes"):
            await orders.produce(None, "x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="key of a message is 5"):
            await orders.produce(5, b"x")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="sequence is 5, without a producer"):
            await orders.produce("k", b"x", sequence=5)
        assert await orders.produce(None, b"x") == Position(0, 1)
        with pytest.raises(ConfigError, match="ledger_entries_max is 0"):
            await topics.topic("orders", ledger_entries_max=0)
        for partitions in (0, 1_001):
            with pytest.raises(ConfigError, match="it must be 1 to 1000"):
                await topics.topic("many", partitions)
        with pytest.raises(ConfigError, match="there is no partition 1; the last is 0"):
            await orders.read(Position(1, 1))
        with pytest.raises(ConfigError, match="start is 'now'; it must be \"earliest\""):
            await orders.subscribe("s", start="now")  # type: ignore[arg-type]
        await orders.subscribe("s")
        with pytest.raises(ConfigError, match="subscription 's' of topic orders is already open"):
            await orders.subscribe("s")


@pytest.mark.parametrize(
    "wrong",
    [
        {"producer": b"p", "sequence": 1},
        {"producer": 7, "sequence": 1},
        {"producer": "\ud800", "sequence": 1},
        {"producer": None},
        {"producer": "p", "sequence": 1.5},
        {"producer": "p", "sequence": True},
        {"producer": "p", "sequence": "1"},
        {"producer": "p", "sequence": None},
        {"key": "\ud800"},
        {"key": b"k"},
    ],
)
def test_what_nobody_could_read_back_is_refused_and_the_topic_stays_whole(
    wrong: dict[str, Any],
) -> None:
    @virtually
    async def main() -> None:
        machine = Machine()
        async with machine.topics() as topics:
            orders = await topics.topic("orders")
            with pytest.raises(TypeError, match="key of a message|producer of a message|sequence"):
                await orders.produce(**({"key": "k", "value": b"x"} | wrong))
            await orders.produce("k", b"y", producer="p", sequence=2)
        async with machine.topics() as topics:
            orders = await topics.topic("orders")
            assert values(await orders.read(Position(0, 1))) == ["y"]

    main()


@pytest.mark.parametrize("partitions", [2.0, True, "2"])
def test_partitions_that_are_no_whole_number_leave_no_row_behind(partitions: Any) -> None:
    @virtually
    async def main() -> None:
        async with Machine().topics() as topics:
            with pytest.raises(ConfigError, match="partitions is .*; it must be 1 to 1000"):
                await topics.topic("orders", partitions)
            with pytest.raises(ConfigError, match="each must be a whole number"):
                await topics.topic("orders", 1, partitions, 1, 1)
            assert await topics.names() == []
            assert (await topics.topic("orders", 2)).partitions == 2

    main()


@virtually
async def test_a_place_that_is_none_is_refused_with_what_it_must_be() -> None:
    async with Machine().topics() as topics:
        orders = await topics.topic("orders")
        await orders.produce("k", b"x")
        wrong: Any
        for wrong in ("earliest", None, 5, (0,), (0, 1.5), Position(0, True)):
            with pytest.raises(TypeError, match="it must be a Position of two whole numbers"):
                await orders.read(wrong)
        for wrong in (None, 5, [1], at_s(5).replace(tzinfo=None)):
            with pytest.raises(
                ConfigError, match="a datetime with a time zone, a Position, or a list of"
            ):
                await orders.subscribe("billing", start=wrong)
        billing = await orders.subscribe("billing")
        for wrong in ("earliest", None, 5, at_s(5).replace(tzinfo=None)):
            with pytest.raises(ConfigError, match="it must be a datetime with its time zone"):
                await billing.seek_time(wrong)
        for wrong in ("earliest", None, [Position(0, 1)]):
            for call in (billing.seek, billing.acknowledge, billing.acknowledge_upto):
                with pytest.raises(TypeError, match="it must be a Position"):
                    call(wrong)
        with pytest.raises(ConfigError, match="there is no partition 1; the last is 0"):
            billing.seek(Position(1, 1))
        with pytest.raises(ConfigError, match="the name of a subscription is empty"):
            await orders.subscribe("")
        assert values(await billing.batch()) == ["x"]


async def test_a_store_or_a_wait_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="store.* is 'sqlite:data'; it must be a StateStore"):
        async with open_topics("data", store="sqlite:data"):  # type: ignore[arg-type]
            pass
    for wait_s in (-1.0, "a", float("nan")):
        with pytest.raises(ConfigError, match="open_wait_s.* it must be a number >= 0"):
            async with open_topics("data", open_wait_s=wait_s):  # type: ignore[arg-type]
                pass


@pytest.mark.parametrize("after", [0, 1, 5, 20])
def test_who_stops_waiting_for_the_end_leaves_no_directory_locked(after: int) -> None:
    @virtually
    async def main() -> None:
        machine = Machine()
        topics = await machine.topics().__aenter__()
        await (await topics.topic("orders")).produce(None, b"x")
        ending = asyncio.create_task(topics.aclose())
        for _ in range(after):
            await asyncio.sleep(0)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        await topics.aclose()
        async with machine.topics() as topics:
            assert values(await (await topics.topic("orders")).read(Position(0, 1))) == ["x"]

    main()


@virtually
async def test_a_deleted_topic_begins_anew() -> None:
    async with Machine().topics() as topics:
        orders = await topics.topic("orders", partitions=2)
        await filled(orders, 4)
        await topics.delete("orders")
        await topics.delete("orders")
        assert await topics.names() == []
        orders = await topics.topic("orders")
        assert await orders.read(Position(0, 1)) == [] and orders.partitions == 1


@pytest.mark.parametrize("folder", ["managed", "topics"])
@virtually
async def test_a_deletion_that_failed_halfway_is_ended_by_the_next(folder: str) -> None:
    machine = Machine()
    machine.store = store = RefusingStore()
    async with machine.topics() as topics:
        await filled(await topics.topic("orders"), 4)
        store.refused = f"ledger/topics/{folder}/"
        with pytest.raises(StorageUnavailable):
            await topics.delete("orders")
        store.refused = None
        await topics.delete("orders")
        assert await topics.names() == []
        assert not store.range(f"ledger/topics/{folder}/", "", 9)


@virtually
async def test_a_bookie_that_stops_is_opened_anew_and_producing_goes_on() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        orders = await topics.topic("orders", options=LedgerTopicOptions(enqueue_wait_s=30.0))
        await orders.produce(None, b"m1")
        machine.disk.fail_sync()
        await orders.produce(None, b"m2")
        assert values(await orders.read(Position(0, 1))) == ["m1", "m2"]


@pytest.mark.parametrize("wrong", ["", "a\0b", 5, None])
async def test_what_is_no_directory_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="is not the path of a directory"):
        async with open_topics(wrong):
            pass


async def test_a_path_where_no_directory_can_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="cannot create directory .*file.*: "):
            async with open_topics(wrong):
                pass


async def test_directories_that_cannot_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 directories, but no store"):
        async with open_topics("a", "b"):
            pass
    with pytest.raises(ConfigError, match="named twice"):
        async with open_topics("a", "./a", store=MemoryStateStore()):
            pass


@virtually
async def test_a_subscription_begins_where_its_second_argument_says() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        orders = await topics.topic("orders")
        for number in range(5):
            await orders.produce(None, b"%d" % number)
        latest = await orders.subscribe("latest", "latest")
        middle = await orders.subscribe("middle", Position(0, 4))
        assert await latest.batch() == []
        assert values(await middle.batch()) == ["3", "4"]
        assert values(await (await orders.subscribe("all")).batch()) == ["0", "1", "2", "3", "4"]
        middle.acknowledge_upto(Position(0, 4))
        await middle.aclose()
        again = await orders.subscribe("middle", "earliest")
        assert values(await again.batch()) == ["4"], "it goes on where it was"
        async for message in orders.tail(Position(0, 5)):
            assert message.value == b"4"
            break
