"""A full disk: the first error of producers, and how space becomes free again."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.providers.ledger.alone.machine import Machine
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger import LedgerTopic
from millstream.runtime import PublishUnknown, QueueUnavailable


async def until_full(topic: LedgerTopic) -> Exception:
    """Produce until an append fails, and return the error."""
    for _ in range(10_000):
        try:
            await topic.produce(None, b"x" * 8_000)
        except (PublishUnknown, QueueUnavailable) as error:
            return error
    raise AssertionError("the disk is not full")


@virtually
async def test_the_first_error_says_that_the_disk_is_full_and_where() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        topic = await topics.topic("orders")
        await topic.produce(None, b"x")
        machine.disk.fill_up(200_000)
        text = str(await until_full(topic))
        assert "/data/bookie: the disk is full" in text, text
        assert "reserve_bytes is 32768" in text and "free space there" in text


@virtually
async def test_a_new_topic_hears_that_the_disk_is_full_too() -> None:
    machine = Machine()
    async with machine.topics() as topics:
        topic = await topics.topic("orders")
        await topic.produce(None, b"x")
        machine.disk.fill_up(1_000)
        await asyncio.sleep(2.0)
        with pytest.raises(QueueUnavailable, match="/data/bookie: the disk is full"):
            await (await topics.topic("other")).produce(None, b"x")


@virtually
async def test_room_of_what_is_done_comes_back_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millstream.bookie")
    machine = Machine()
    async with machine.topics() as topics:
        topic = await topics.topic("orders", ledger_entries_max=8)
        billing = await topic.subscribe("billing")
        for _ in range(40):
            await topic.produce(None, b"x" * 8_000)
        await asyncio.sleep(70.0)  # time since the last round of collection
        for _ in range(40):
            await topic.produce(None, b"x" * 8_000)
        while batch := await billing.batch():
            billing.acknowledge(*batch)
        await billing.flush()
        machine.disk.fill_up(1_000)
        begin_s = asyncio.get_running_loop().time()
        while "read-only" not in caplog.text:
            await asyncio.sleep(0.1)
        while "writable again" not in caplog.text:
            assert asyncio.get_running_loop().time() - begin_s < 10.0
            await asyncio.sleep(0.1)
        assert await topic.produce(None, b"y")
