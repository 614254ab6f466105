"""The capacity of a queue: two gates that a message passes one after the other, or not at all."""

from __future__ import annotations

import asyncio

import pytest

from millstream.providers.memory.room import QueueRoom
from millstream.runtime import QueueUnavailable


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


def taken(room: QueueRoom) -> tuple[int, int]:
    return room.events_taken, room.bytes_taken


def test_room_is_taken_of_both_or_of_none() -> None:
    room = QueueRoom(2, 10)
    assert room.try_acquire(1, 10) is True
    assert taken(room) == (1, 10)
    assert room.try_acquire(1, 1) is False  # no byte is free
    assert taken(room) == (1, 10)
    room.release(1, 10)
    assert room.try_acquire(2, 1) is True
    assert room.try_acquire(1, 1) is False  # no event is free
    assert taken(room) == (2, 1)


async def test_who_waits_for_either_has_both_in_the_end() -> None:
    room = QueueRoom(2, 10)
    await room.acquire(1, 10)
    for_bytes = asyncio.create_task(room.acquire(1, 4))
    for_events = asyncio.create_task(room.acquire(1, 1))
    await settle()
    assert not for_bytes.done() and not for_events.done()
    room.release(1, 10)
    await asyncio.gather(for_bytes, for_events)
    assert taken(room) == (2, 5)


@pytest.mark.parametrize(("events", "size_bytes"), [(2, 1), (1, 10)])
async def test_a_room_that_is_closed_fails_those_who_wait_and_those_who_come(
    events: int, size_bytes: int
) -> None:
    room = QueueRoom(2, 10)
    await room.acquire(events, size_bytes)
    waits = asyncio.create_task(room.acquire(1, 1))
    await settle()
    room.close("the queue moves")
    with pytest.raises(QueueUnavailable, match="the queue moves"):
        await waits
    with pytest.raises(QueueUnavailable, match="the queue moves"):
        room.try_acquire(1, 1)
    assert taken(room) == (events, size_bytes)
    room.release(events, size_bytes)
    assert taken(room) == (0, 0)
