"""What publishers learn when a batch of the memory queue's sender fails: refused, or unknown."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any, cast

import pytest

from millstream.providers.memory.adapter import Sender
from millstream.providers.memory.queue_grain import MemoryOptions, MemoryQueue, QueuedMessage
from millstream.runtime import (
    CallTimeout,
    PublishUnknown,
    QueueFull,
    QueueUnavailable,
    SiloUnavailable,
)
from millstream.runtime.extending import Tasks


class Queue:
    """Appends that end when the test says so."""

    def __init__(self) -> None:
        self.appends: list[tuple[list[QueuedMessage], asyncio.Future[list[tuple[int, int]]]]] = []

    async def append(self, messages: list[QueuedMessage]) -> list[tuple[int, int]]:
        outcome: asyncio.Future[list[tuple[int, int]]] = asyncio.get_running_loop().create_future()
        self.appends.append((messages, outcome))
        return await outcome


def message(seq: int) -> QueuedMessage:
    return QueuedMessage("ns", "k", [b"x"], None, "", seq, 0.0)


class Desk:
    """A sender with three publishes: one under way, a batch under way behind it, one behind."""

    def __init__(self) -> None:
        self.queue = Queue()
        options = MemoryOptions(batch_messages_max=1)
        tasks = Tasks(asyncio.get_running_loop(), Context)
        self.sender = Sender(cast(MemoryQueue, self.queue), options, tasks)
        self.tasks: list[asyncio.Task[Any]] = []

    async def publish(self, count: int) -> None:
        for seq in range(count):
            self.tasks.append(asyncio.create_task(self.sender.send(message(seq))))
            await asyncio.sleep(0)

    async def answer(self, error: Exception | None = None) -> None:
        _, outcome = self.queue.appends[-1]
        if error is None:
            outcome.set_result([(1, len(self.queue.appends))])
        else:
            outcome.set_exception(error)
        for _ in range(5):
            await asyncio.sleep(0)

    async def outcomes(self) -> list[str]:
        ends = await asyncio.gather(*self.tasks, return_exceptions=True)
        return [type(end).__name__ for end in ends]


@pytest.mark.parametrize("sent_before", [0, 1])
@pytest.mark.parametrize(
    ("error", "sent", "behind"),
    [
        (QueueFull("full"), QueueFull, QueueFull),
        (SiloUnavailable("gone"), PublishUnknown, QueueUnavailable),
        (CallTimeout("late"), PublishUnknown, QueueUnavailable),
        (ValueError("odd"), QueueUnavailable, QueueUnavailable),
    ],
)
async def test_what_was_sent_may_be_unknown_and_what_waits_behind_is_not(
    error: Exception, sent: type, behind: type, sent_before: int
) -> None:
    desk = Desk()
    await desk.publish(3)
    for _ in range(sent_before):
        await desk.answer()
    await desk.answer(error)
    names = ["Token"] * sent_before + [sent.__name__] + [behind.__name__] * (2 - sent_before)
    assert await desk.outcomes() == names
    assert len(desk.queue.appends) == 1 + sent_before, "nothing overtakes the gap"


async def test_a_batch_that_was_under_way_when_the_silo_stops_is_unknown() -> None:
    desk = Desk()
    await desk.publish(3)
    await desk.answer()  # the second is under way, the third waits
    desk.sender.close()
    assert await desk.outcomes() == ["Token", "PublishUnknown", "QueueUnavailable"]


async def test_publishing_goes_on_after_a_failure() -> None:
    desk = Desk()
    await desk.publish(2)
    await desk.answer(SiloUnavailable("gone"))
    await desk.publish(2)
    await desk.answer()
    await desk.answer()
    assert (await desk.outcomes())[2:] == ["Token", "Token"]
