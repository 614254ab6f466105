"""Stream messages that a priority queue refuses after a change of its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millstream.providers.priority import NewMessage, PriorityQueueFull, RequestInvalid
from millstream.providers.priority.adapter.publishing import enqueue
from millstream.runtime import EnqueueFailed, QueueFull, StreamError
from millstream.streams import OutMessage, StreamId


class Queue:
    """Accepts a number of messages with payloads up to a size."""

    name = "q"

    def __init__(self, bytes_max: int, room: int) -> None:
        self.bytes_max = bytes_max
        self.room = room
        self.stored: list[int] = []

    async def enqueue_many(self, some: Sequence[NewMessage], *, all_or_nothing: bool) -> None:
        assert all_or_nothing
        if any(len(one.payload) > self.bytes_max for one in some):
            raise RequestInvalid("q", "payload", f"is larger than {self.bytes_max}")
        if len(self.stored) + len(some) > self.room:
            raise PriorityQueueFull("q", "there is no room")
        self.stored += [len(one.payload) for one in some]


class Wall:
    def wall_s(self) -> float:
        return 1.5e9


CLOCK: Any = Wall()


def messages(*sizes: int) -> list[OutMessage]:
    return [OutMessage(StreamId("n", "k"), [b"x" * size]) for size in sizes]


@pytest.mark.parametrize("at", [0, 1, 4, 8])
async def test_a_message_that_is_too_large_for_a_changed_queue_is_refused_for_good(at: int) -> None:
    """The messages before it are stored, and the runtime reports the first refused one."""
    queue: Any = Queue(200, 100)
    sizes = [10] * 9
    sizes[at] = 500
    with pytest.raises(EnqueueFailed) as raised:
        await enqueue(queue, messages(*sizes), CLOCK, 1_000)
    assert len(raised.value.accepted) == len(queue.stored) == at
    assert type(raised.value.cause) is StreamError
    assert "payload is larger than 200" in str(raised.value.cause)


async def test_a_full_queue_is_told_from_one_that_refuses() -> None:
    queue: Any = Queue(200, 5)
    with pytest.raises(EnqueueFailed) as raised:
        await enqueue(queue, messages(*[10] * 9), CLOCK, 1_000)
    assert len(raised.value.accepted) == 5 and type(raised.value.cause) is QueueFull
