"""A receiver over a source that can only push: it is bounded, pauses and redelivers."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence

import pytest
from tests.contract.in_virtual_time import in_virtual_time

from millstream.runtime import ConfigError, QueueFenced, QueueFull, QueueUnavailable
from millstream.streams import Capability, PushReceiver, QueueMessage, StreamId, Token

ITEM_ACK = frozenset({Capability.ITEM_ACK, Capability.OWN_POSITION})
LOG = frozenset({Capability.ORDERED, Capability.STABLE_TOKENS})


class Source:
    """Notes its calls; a test pushes by hand."""

    def __init__(self) -> None:
        self.told = list[object]()
        self.push: Callable[[QueueMessage], None]

    async def start(self, push: Callable[[QueueMessage], None], after: Token | None, /) -> None:
        self.push = push
        self.told.append(after)

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")

    async def ack(self, upto: Token | None, also: Sequence[Token], /) -> None:
        self.told.append((upto, list(also)))

    async def aclose(self) -> None:
        self.told.append("closed")

    def push_all(self, *numbers: int, size: int = 1) -> None:
        for number in numbers:
            self.push(message(number, size))


def message(number: int, size: int = 1, attempt: int = 1) -> QueueMessage:
    return QueueMessage(StreamId("n", "k"), Token(1, number), [b"x" * size], attempt=attempt)


async def started(
    capabilities: frozenset[Capability] = LOG, events_max: int = 4, bytes_max: int = 1000
) -> tuple[Source, PushReceiver]:
    source = Source()
    receiver = PushReceiver(source, capabilities, events_max=events_max, bytes_max=bytes_max)
    await receiver.start(Token(1, 0))
    assert source.told.pop() == Token(1, 0)
    return source, receiver


async def numbers(receiver: PushReceiver, events: int = 100) -> list[int]:
    return [one.token.seq for one in await receiver.read(events, 10_000, 0.0)]


async def test_a_full_buffer_pauses_the_source_until_it_is_half_empty() -> None:
    source, receiver = await started()
    source.push_all(1, 2, 3)
    assert source.told == []
    source.push_all(4, 5)
    assert source.told == ["pause"]
    assert await numbers(receiver, 3) == [1, 2, 3] and source.told == ["pause"]
    assert await numbers(receiver, 1) == [4] and source.told == ["pause", "resume"]


async def test_bytes_pause_the_source_too() -> None:
    source, receiver = await started(bytes_max=100)
    source.push_all(1, size=100)
    assert source.told == ["pause"]
    assert await numbers(receiver) == [1] and source.told == ["pause", "resume"]


async def test_a_source_that_does_not_heed_a_pause_is_refused() -> None:
    source, receiver = await started()
    source.push_all(*range(1, 9))
    with pytest.raises(QueueFull, match="must not push while it is paused"):
        source.push_all(9)
    assert await numbers(receiver) == list(range(1, 9))


async def test_what_is_out_counts_until_it_is_acknowledged() -> None:
    source, receiver = await started(ITEM_ACK)
    source.push_all(1, 2, 3, 4)
    assert await numbers(receiver) == [1, 2, 3, 4] and source.told == ["pause"]
    await receiver.ack(None, [Token(1, 2), Token(1, 4), Token(1, 4)])
    assert source.told == ["pause", (None, [Token(1, 2), Token(1, 4), Token(1, 4)])]
    await receiver.ack(Token(1, 3))
    assert source.told[-2:] == [(Token(1, 3), []), "resume"]


async def test_what_is_released_is_read_again_from_here() -> None:
    source, receiver = await started(ITEM_ACK)
    source.push_all(1, 2)
    await numbers(receiver)
    await receiver.release([Token(1, 1), Token(9, 9)], 0.0, True)
    (again,) = await receiver.read(10, 1000, 0.0)
    assert (again.token.seq, again.attempt) == (1, 0)
    assert source.told == []


def test_each_delay_is_waited_for_by_itself() -> None:
    async def main() -> None:
        source, receiver = await started(ITEM_ACK)
        source.push_all(1, 2, 3)
        await numbers(receiver)
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        for number, delay_s in ((1, 30.0), (2, 10.0), (3, 20.0)):
            await receiver.release([Token(1, number)], delay_s, True)
        assert await numbers(receiver) == []
        for number, after_s in ((2, 10.0), (3, 20.0), (1, 30.0)):
            (again,) = await receiver.read(10, 1000, 60.0)
            assert (again.token.seq, loop.time() - begin_s) == (number, after_s)

    in_virtual_time(main)


def test_a_read_waits_as_long_as_it_is_told() -> None:
    async def main() -> None:
        _, receiver = await started()
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        for wait_s, end_s in ((0.0, 0.0), (5.0, 5.0), (0.5, 5.5)):
            assert await receiver.read(10, 1000, wait_s) == []
            assert loop.time() - begin_s == end_s

    in_virtual_time(main)


@pytest.mark.parametrize("is_released", [False, True])
async def test_a_read_that_waits_is_woken_by_what_is_there(is_released: bool) -> None:
    source, receiver = await started(ITEM_ACK)
    if is_released:
        source.push_all(1)
        await numbers(receiver)
    reading = asyncio.ensure_future(receiver.read(10, 1000, 60.0))
    await asyncio.sleep(0)
    if is_released:
        await receiver.release([Token(1, 1)], 0.0, True)
    else:
        source.push_all(1)
    async with asyncio.timeout(20):
        (found,) = await reading
    assert found.token.seq == 1


async def test_a_read_has_as_much_as_was_asked_for_and_one_at_least() -> None:
    source, receiver = await started(events_max=100, bytes_max=10_000)
    for number, size in ((1, 40), (2, 60), (3, 1), (4, 500), (5, 1)):
        source.push_all(number, size=size)
    for bytes_max, wanted in ((100, [1, 2]), (100, [3]), (100, [4]), (0, [5])):
        assert [one.token.seq for one in await receiver.read(10, bytes_max, 0.0)] == wanted
    source.push_all(6, 7, 8)
    for events_max, wanted in ((2, [6, 7]), (0, [8])):
        assert [one.token.seq for one in await receiver.read(events_max, 1000, 0.0)] == wanted


async def test_nothing_is_lost_that_is_out() -> None:
    source, receiver = await started(ITEM_ACK)
    source.push_all(1, 2)
    await numbers(receiver, 1)
    tokens = [Token(1, 1), Token(1, 2), Token(1, 3)]
    assert list(await receiver.extend(tokens, 60.0)) == tokens[1:]


async def test_a_position_covers_its_own_message() -> None:
    source, receiver = await started(ITEM_ACK)
    source.push_all(1, 2, 3)
    await numbers(receiver)
    await receiver.ack(Token(1, 2))
    assert receiver.events_held == 1


async def test_a_source_goes_on_at_less_than_half_of_either_limit() -> None:
    source, receiver = await started(events_max=4, bytes_max=100)
    source.push_all(1, size=99)
    assert source.told == []
    source.push_all(2, size=1)
    assert source.told == ["pause"]
    assert await numbers(receiver, 1) == [1] and source.told == ["pause", "resume"]
    source.push_all(3, size=99)
    assert await numbers(receiver, 1) == [2] and source.told[2:] == ["pause"]


class Headers(dict[str, str]):
    """A mapping whose deletion can be observed."""


async def test_a_closed_receiver_keeps_no_message() -> None:
    source, receiver = await started(ITEM_ACK)
    kept = list[weakref.ref[Headers]]()
    for number in (1, 2, 3):
        headers = Headers()
        kept.append(weakref.ref(headers))
        source.push(QueueMessage(StreamId("n", "k"), Token(1, number), [b"x"], headers))
        del headers
    await receiver.read(2, 1000, 0.0)
    await receiver.release([Token(1, 1)], 60.0, False)
    await receiver.aclose()
    gc.collect()
    assert [one() for one in kept] == [None, None, None]


async def test_what_is_released_takes_room_until_it_is_done() -> None:
    source, receiver = await started(ITEM_ACK)
    source.push_all(1, 2, 3, 4)
    await numbers(receiver)
    await receiver.release([Token(1, n) for n in (1, 2, 3, 4)], 0.0, False)
    assert source.told == ["pause"]
    assert await numbers(receiver) == [1, 2, 3, 4]


async def test_closing_ends_a_read_and_drops_what_is_held() -> None:
    source, receiver = await started(ITEM_ACK)
    reading = asyncio.ensure_future(receiver.read(10, 1000, 60.0))
    await asyncio.sleep(0)
    await receiver.aclose()
    await receiver.aclose()
    assert await reading == [] and source.told == ["closed"]
    source.push_all(1)  # the network has not noticed yet
    assert await numbers(receiver) == []


async def test_a_message_that_is_held_is_not_held_twice() -> None:
    """A source that reconnects gets unacknowledged messages again."""
    source, receiver = await started(ITEM_ACK)
    source.push_all(1, 2, 1)
    assert await numbers(receiver) == [1, 2]
    source.push_all(1, 2)
    assert await numbers(receiver) == [] and receiver.events_held == 2
    await receiver.release([Token(1, 1)], 60.0, True)
    source.push_all(1)
    assert await numbers(receiver) == [] and receiver.events_held == 2
    await receiver.ack(None, [Token(1, 2)])
    source.push_all(2)
    assert await numbers(receiver) == [2]


async def test_repeats_do_not_use_up_the_room() -> None:
    source, receiver = await started(ITEM_ACK)
    for _ in range(3):
        source.push_all(1, 2, 3)
    assert source.told == [] and receiver.refused == 0
    await numbers(receiver)
    await receiver.ack(None, [Token(1, number) for number in (1, 2, 3)])
    assert receiver.events_held == 0 and not receiver.is_paused


async def test_a_refused_message_can_be_pushed_again() -> None:
    source, receiver = await started(events_max=1)
    source.push_all(1, 2)
    with pytest.raises(QueueFull):
        source.push_all(3)
    assert (receiver.events_held, receiver.refused, receiver.is_paused) == (2, 1, True)
    assert await numbers(receiver) == [1, 2]
    source.push_all(3)
    assert await numbers(receiver) == [3]


async def test_a_lost_connection_ends_reading() -> None:
    _, receiver = await started()
    reading = asyncio.ensure_future(receiver.read(10, 1000, 60.0))
    await asyncio.sleep(0)
    receiver.on_disconnect(OSError("reset by peer"))
    receiver.on_disconnect(OSError("another one"))
    with pytest.raises(QueueUnavailable, match="OSError: reset by peer"):
        await reading
    with pytest.raises(QueueUnavailable):
        await receiver.read(10, 1000, 0.0)
    _, receiver = await started()
    receiver.on_disconnect(QueueFenced("another owner"))
    with pytest.raises(QueueFenced):
        await receiver.read(10, 1000, 0.0)
    await receiver.aclose()
    assert await numbers(receiver) == []


@pytest.mark.parametrize("limits", [{"events_max": 0}, {"bytes_max": 0}, {"events_max": -1}])
def test_a_receiver_without_room_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        PushReceiver(Source(), ITEM_ACK, **limits)
