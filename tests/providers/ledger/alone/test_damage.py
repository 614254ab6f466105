"""Topics in a damaged directory. Undamaged topics work, and the errors of the others name the
place."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.providers.ledger.alone.machine import Machine, values
from tests.providers.ledger.virtual import virtually
from tests.sim.suites.ledger.damage import copies_at

from millstream.providers.ledger import LedgerTopic
from millstream.providers.ledger.protocol.entry import HEAD_BYTES
from millstream.runtime import QueueUnavailable

KEYS = [f"key-{number}" for number in range(40)]


async def fill(topic: LedgerTopic, rounds: int = 5) -> None:
    for number in range(rounds):
        for key in KEYS:
            await topic.produce(key, f"{key}/{number}".encode())


def damage(machine: Machine, ledger: int, entry: int) -> tuple[str, int]:
    """Flip a bit of the only copy of an entry, and return the file and offset."""
    for of, number, file, offset in copies_at(machine.disk, "/data/bookie"):
        if (of, number) == (ledger, entry):
            machine.disk.flip_bit(file, offset + HEAD_BYTES, 1)
            return file, offset
    raise LookupError(f"no entry {entry} of ledger {ledger}")


@virtually
async def test_one_damaged_entry_closes_its_partition_alone_and_is_said_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "millstream.ledger")
    machine = Machine()
    async with machine.topics() as topics:
        topic = await topics.topic("orders", partitions=4)
        await topic.subscribe("billing")
        await fill(topic)
    file, offset = damage(machine, 2, 3)
    begin_s = asyncio.get_running_loop().time()
    async with machine.topics() as topics:
        topic = await topics.topic("orders")
        assert asyncio.get_running_loop().time() - begin_s < 2.0
        ((broken, error),) = topic.unavailable.items()
        where = f"{file}: offset {offset}: entry 3 of ledger 2 fails its checksum"
        assert where in str(error) and "What can be done" in str(error)
        assert where in caplog.text and f"partition {broken}" in caplog.text

        whole = [key for key in KEYS if topic.partition_of(key) != broken]
        for key in whole:
            assert await topic.produce(key, b"more")
        for _ in range(8):
            place = await topic.produce(None, b"any")
            assert place and place.partition != broken
        lost = next(key for key in KEYS if topic.partition_of(key) == broken)
        with pytest.raises(QueueUnavailable, match=f"partition {broken} is not open.*offset"):
            await topic.produce(lost, b"more")
        with pytest.raises(QueueUnavailable, match="fails its checksum"):
            await topic.produce_many([(whole[0], b"x"), (lost, b"x")])

        billing = await topic.subscribe("billing")
        found: list[str] = []
        while billing.backlog:
            batch = await billing.batch()
            found += values(batch)
            billing.acknowledge(*batch)
        assert found.count("more") == len(whole)
        assert set(found) >= {f"{key}/4" for key in whole}
        assert not [one for one in found if one.split("/")[0] in set(KEYS) - set(whole)]


@virtually
async def test_a_partition_is_opened_later_once_its_damage_is_mended() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        topic = await topics.topic("orders", partitions=2)
        await topic.subscribe("billing")
        await fill(topic)
    file, offset = damage(machine, 2, 3)
    async with machine.topics() as topics:
        topic = await topics.topic("orders")
        assert len(topic.unavailable) == 1
        billing = await topic.subscribe("billing")
        machine.disk.flip_bit(file, offset + HEAD_BYTES, 1)  # repairs the file
        found: list[str] = []
        async with asyncio.timeout(120.0):
            async for batch in billing:
                found += values(batch)
                billing.acknowledge(*batch)
                if len(found) == 5 * len(KEYS):
                    break
        assert topic.unavailable == {} and sorted(found) == sorted(
            f"{key}/{number}" for key in KEYS for number in range(5)
        )
        for key in KEYS:
            assert await topic.produce(key, b"more")
        assert billing.backlog == len(KEYS)


@virtually
async def test_subscriptions_need_any_open_partition_and_not_the_first() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        topic = await topics.topic("orders", partitions=2)
        for name in ("billing", "audit"):
            await topic.subscribe(name)
        await fill(topic)
    file, offset = damage(machine, 1, 3)
    async with machine.topics() as topics:
        topic = await topics.topic("orders")
        assert list(topic.unavailable) == [0]
        billing, late = await topic.subscribe("billing"), await topic.subscribe("late")
        second = {key for key in KEYS if topic.partition_of(key) == 1}
        for subscription in (billing, late):
            found = values(await subscription.batch(messages_max=1000))
            assert {one.split("/")[0] for one in found} == second
        for name in ("audit", "late", "absent"):
            await topic.unsubscribe(name)
        assert late.is_closed and topic.subscriptions == ["billing"]
        again = await topic.subscribe("late", "latest")

        machine.disk.flip_bit(file, offset + HEAD_BYTES, 1)  # repairs the file
        await asyncio.sleep(120.0)
        assert topic.unavailable == {}
        assert topic.subscriptions == ["billing", "late"]  # "audit" ends in the first one, too
        assert billing.backlog == 5 * len(KEYS) and again.backlog == 0


@virtually
async def test_a_topic_of_damaged_partitions_says_that_none_is_open_and_what_to_do() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        await fill(await topics.topic("orders", partitions=2))
    places = [damage(machine, ledger, 3) for ledger in (1, 2)]
    async with machine.topics() as topics:
        with pytest.raises(QueueUnavailable) as caught:
            await topics.topic("orders")
        assert str(caught.value).startswith(
            "topic orders: none of its partitions (2) is open: repair the cause, "
            "then open the topic again. Partition 0: "
        )
        assert f"{places[0][0]}: offset {places[0][1]}: entry 3 of ledger 1" in str(caught.value)


@virtually
async def test_a_topic_of_one_partition_with_damage_is_refused_at_once() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        await fill(await topics.topic("orders"))
    file, offset = damage(machine, 1, 3)
    begin_s = asyncio.get_running_loop().time()
    async with machine.topics() as topics:
        with pytest.raises(QueueUnavailable, match=f"{file}: offset {offset}: entry 3 of ledger 1"):
            await topics.topic("orders")
        assert asyncio.get_running_loop().time() - begin_s < 2.0
        other = await topics.topic("other")
        assert await other.produce(None, b"x")


@virtually
async def test_after_a_crash_a_damaged_entry_costs_no_wait() -> None:
    """The ledger is still open after the crash. Its recovery asks the only bookie once."""
    machine = Machine()
    context = machine.topics()
    topics = await context.__aenter__()
    topic = await topics.topic("orders", partitions=2)
    await fill(topic)
    for key in [one for one in KEYS if topic.partition_of(one) == 1]:
        await topic.produce(key, b"behind what is damaged")
    machine.die()
    await asyncio.sleep(1.0)
    entries = [one for one in copies_at(machine.disk, "/data/bookie") if one[0] == 1]
    last = max(entry for _, entry, _, _ in entries)
    file, offset = damage(machine, 1, last)
    begin_s = asyncio.get_running_loop().time()
    async with machine.topics() as topics:
        topic = await topics.topic("orders")
        assert asyncio.get_running_loop().time() - begin_s < 2.0
        ((_, error),) = topic.unavailable.items()
        assert f"{file}: offset {offset}" in str(error)
