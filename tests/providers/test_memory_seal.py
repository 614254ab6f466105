"""A sealed memory queue refuses messages of older mapper epochs, and new messages get a new era."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.conditions import spin

from millstream.balancers import DeploymentBalancer
from millstream.providers.memory import MemoryOptions, MemoryQueues
from millstream.providers.memory.queue_grain import MemoryQueue
from millstream.providers.memory.queue_log import QueueLog
from millstream.providers.memory.wire_form import QueuedMessage, messages_of
from millstream.runtime import MemoryMembershipTable, MemoryStateStore, Silo, StaleMapper
from millstream.streams import OutMessage, PersistentStreams, ProducerMark, StreamId, Token

OLD, NEW = 1, 2  # mapper epochs


def out(text: str, seq: int | None = None) -> OutMessage:
    mark = None if seq is None else ProducerMark("p", seq)
    return OutMessage(StreamId("n", "k"), [text.encode()], {}, mark)


def log_of(capacity: int = 10, wait_s: float = 5.0) -> QueueLog:
    options = MemoryOptions(capacity_events=capacity, enqueue_wait_s=wait_s)
    return QueueLog("default/q", options, era=3)


async def tokens_of(log: QueueLog) -> list[Token]:
    _, found = await log.read(1, log.era, 0, 100, 10_000, 0.0)
    return [message.token for message in found if message is not None]


async def test_numbers_go_on_behind_a_seal_and_the_era_is_the_new_one() -> None:
    log = log_of()
    await log.append([out("a"), out("b")], 0.0, OLD)
    assert log.seal(NEW, 9) == Token(3, 2)
    assert await log.append([out("c")], 0.0, NEW) == [Token(9, 3)]
    assert log.seal(NEW, 9) == Token(3, 2) == log.seal(OLD, 7)
    assert await tokens_of(log) == [Token(3, 1), Token(3, 2), Token(9, 3)]
    log.acknowledge(1, 3, 3, [])
    assert log.seal(NEW + 1, 12) == Token(9, 3)
    assert await log.append([out("d")], 0.0, NEW + 1) == [Token(12, 4)]


async def test_what_waits_for_room_while_the_queue_is_sealed_is_not_stored() -> None:
    log = log_of(capacity=2)
    await log.append([out("a"), out("b")], 0.0, OLD)
    late = asyncio.ensure_future(log.append([out("c")], 0.0, OLD))
    new = asyncio.ensure_future(log.append([out("d")], 0.0, NEW))
    await spin()
    log.seal(NEW, 9)
    log.begin(1)
    log.acknowledge(1, 3, 2, [])
    with pytest.raises(StaleMapper, match="mapper epoch 2"):
        await late
    assert await new == [Token(9, 3)]
    log.check()


async def test_a_sequence_that_is_known_is_accepted_behind_a_seal() -> None:
    log = log_of()
    await log.append([out("a", 1)], 0.0, OLD)
    log.seal(NEW, 9)
    assert await log.append([out("a", 1)], 0.0, OLD) == [None]
    with pytest.raises(StaleMapper):
        await log.append([out("a", 1), out("b", 2)], 0.0, OLD)
    assert log.end == 1


def message(text: str) -> QueuedMessage:
    return QueuedMessage("n", "k", [text.encode()], None, "", 0, 0.0)


def make_silo(store: MemoryStateStore, table: MemoryMembershipTable | None = None) -> Silo:
    return Silo(
        grains=[],
        membership=table or MemoryMembershipTable(),
        stores={"default": store},
        streams={"default": PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())},
        can_own_queues=False,
    )


def queue_of(silo: Silo) -> MemoryQueue:
    return silo.grain(MemoryQueue, "default/q")


async def stored(queue: MemoryQueue) -> Sequence[Token]:
    found = messages_of(await queue.read(9, 1, 0, 100, 10_000, 0.0))
    return [one.token for one in found if one is not None]


async def test_a_seal_moves_with_the_queue() -> None:
    store = MemoryStateStore()
    async with make_silo(store) as silo:
        await queue_of(silo).append([message("a")], OLD)
        assert await queue_of(silo).seal(NEW, 9) == (1, 1)
        await queue_of(silo).append([message("b")], NEW)
    async with make_silo(store) as silo:
        queue = queue_of(silo)
        assert await stored(queue) == [Token(1, 1), Token(9, 2)]
        with pytest.raises(StaleMapper):
            await queue.append([message("no")], OLD)
        assert await queue.append([message("c")], NEW) == [(9, 3)]
        assert await queue.seal(NEW, 9) == (1, 1)
        assert await queue.bounds() == (1, 1, 9, 3)


async def test_after_a_crash_an_older_mapper_is_refused_as_the_record_says() -> None:
    store = MemoryStateStore()
    async with make_silo(store) as silo:
        await queue_of(silo).append([message("a")], OLD)
        await silo.kill()
    streams = PersistentStreams(MemoryQueues(), balancer=DeploymentBalancer())
    async with Silo(
        grains=[],
        stores={"default": store},
        streams={"default": streams},
        can_own_queues=False,
    ) as silo:
        with pytest.raises(StaleMapper):
            await queue_of(silo).append([message("no")], OLD - 1)
        await queue_of(silo).append([message("b")], OLD)
