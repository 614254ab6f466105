"""Publishes while streams move to other queues: waiting messages move too, and keep their order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextvars import Context

import pytest
from tests.conditions import spin, until

from millstream.runtime import StaleMapper, StreamError
from millstream.runtime.extending import Budget, Tasks
from millstream.streams import OutMessage, QueueId, SendLimits, StreamId, Token
from millstream.streams.contracts.suite.host import BenchClock
from millstream.streams.publishing.silo_publisher import SiloPublisher
from millstream.streams.publishing.split import PublishLimits

A, B = StreamId("n", "a"), StreamId("n", "b")


class Mapper:
    """First both streams are in one queue; then each has its own."""

    epoch = 1
    refuses = ""

    def queues(self) -> Sequence[QueueId]:
        return ["one", "a", "b"]

    def queue_for(self, stream: StreamId, /) -> QueueId:
        if stream.key == self.refuses:
            raise StreamError(f"no queue for {stream}")
        return "one" if self.epoch == 1 else stream.key

    def move(self) -> None:
        self.epoch = 2


class Service:
    """Stores when its gate is open; refuses older mappers once it is sealed."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.stored: dict[str, list[str]] = defaultdict(list)
        self.is_sealed = False
        self.calls = 0

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        self.calls += 1
        await self.gate.wait()
        if self.is_sealed and mapper_epoch == 1:
            raise StaleMapper("sealed")
        assert queue == ("one" if mapper_epoch == 1 else messages[0].stream.key)
        self.stored[queue] += [message.items[0].decode() for message in messages]
        return [None] * len(messages)

    def receiver(self, queue: QueueId, epoch: int, /) -> object:
        raise AssertionError("nobody reads")

    async def aclose(self) -> None: ...


class Desk:
    def __init__(self) -> None:
        self.service, self.mapper = Service(), Mapper()
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        self.publisher = SiloPublisher(
            "p",
            self.service,  # type: ignore[arg-type]
            self.mapper,
            PublishLimits(),
            SendLimits(),
            5.0,
            BenchClock(),
            self.tasks,
            Budget(asyncio.get_running_loop(), 0.001),
        )

    def publish(self, stream: StreamId, text: str) -> asyncio.Task[Token | None]:
        return asyncio.ensure_future(self.publisher.publish(stream, [text.encode()], None))

    def store(self, *texts: str) -> asyncio.Task[object]:
        """Store texts that begin with the key of their stream."""
        messages = [OutMessage(StreamId("n", text[0]), [text.encode()]) for text in texts]
        return asyncio.ensure_future(self.publisher.store(messages))

    def remap(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.publisher.remap(self.mapper.move))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    desk.publisher.close("over")
    await desk.tasks.aclose()


async def test_what_waits_goes_first_and_then_what_came_meanwhile(desk: Desk) -> None:
    early = [desk.publish(A, "a0")]
    await until(lambda: desk.service.calls == 1)  # a0 is out, the others wait
    early += [desk.publish(A, f"a{n}") for n in range(1, 3)]
    await spin()
    moving = desk.remap()
    await spin()
    late = [desk.publish(A, f"a{n}") for n in range(3, 6)]
    await spin()
    assert not moving.done()  # messages that are out end first
    desk.service.gate.set()
    await moving
    newest = desk.publish(A, "a6")
    await asyncio.gather(*early, *late, newest)
    assert desk.service.stored == {"one": ["a0"], "a": [f"a{n}" for n in range(1, 7)]}


async def test_what_a_sealed_queue_refuses_moves_too_before_what_waits(desk: Desk) -> None:
    early = [desk.publish(A, "a0")]
    await until(lambda: desk.service.calls == 1)
    early.append(desk.publish(A, "a1"))
    await spin()
    desk.service.is_sealed = True
    moving = desk.remap()
    await spin()
    late = desk.publish(A, "a2")
    desk.service.gate.set()
    await asyncio.gather(moving, late, *early)
    assert desk.service.stored == {"a": ["a0", "a1", "a2"]}


async def test_a_list_whose_streams_go_apart_has_the_outcome_of_each(desk: Desk) -> None:
    first = desk.publish(A, "a0")
    await until(lambda: desk.service.calls == 1)
    stored = [desk.store("a1", "b1", "a2"), desk.store("b2", "a3")]
    await spin()
    moving = desk.remap()
    await spin()
    stored.append(desk.store("a4", "b3"))
    await spin()
    desk.service.gate.set()
    await asyncio.gather(moving, first)
    assert await asyncio.gather(*stored) == [[None] * 3, [None] * 2, [None] * 2]
    found = {"one": ["a0"], "a": ["a1", "a2", "a3", "a4"], "b": ["b1", "b2", "b3"]}
    assert desk.service.stored == found


async def test_a_publisher_that_goes_while_streams_move_is_never_sent(desk: Desk) -> None:
    tasks = [desk.publish(A, "a0")]
    await until(lambda: desk.service.calls == 1)
    tasks += [desk.publish(A, f"a{n}") for n in range(1, 3)]
    await spin()
    moving = desk.remap()
    await spin()
    held = desk.publish(A, "a3")
    await spin()
    tasks[1].cancel()
    held.cancel()
    desk.service.gate.set()
    await moving
    await asyncio.gather(tasks[0], tasks[2])
    await spin()
    assert desk.service.stored == {"one": ["a0"], "a": ["a2"]}
    assert tasks[1].cancelled() and held.cancelled()


async def test_what_waits_when_the_silo_stops_is_not_sent(desk: Desk) -> None:
    first = desk.publish(A, "a0")
    await until(lambda: desk.service.calls == 1)
    moving = desk.remap()
    await spin()
    held = desk.publish(A, "a1")
    await spin()
    desk.publisher.close("the silo has stopped")
    ends = await asyncio.gather(first, held, moving, return_exceptions=True)
    assert [type(end).__name__ for end in ends] == [
        "PublishUnknown",
        "QueueUnavailable",
        "NoneType",
    ]


async def test_of_a_list_with_a_stream_that_has_no_queue_nothing_is_stored(desk: Desk) -> None:
    """A repeated message would seem known beside a later one of its producer in the same queue."""
    desk.mapper.refuses = "b"
    desk.service.gate.set()
    outcomes = await desk.publisher.store(
        [OutMessage(A, [b"a1"]), OutMessage(B, [b"b1"]), OutMessage(A, [b"a2"])]
    )
    assert [str(outcome) for outcome in outcomes] == ["no queue for n/b"] * 3
    assert [str(one) for one in await desk.publisher.store([OutMessage(B, [b"b1"])])] == [
        "no queue for n/b"
    ]
    with pytest.raises(StreamError, match="no queue for n/b"):
        await desk.publisher.publish(B, [b"b1"], None)
    with pytest.raises(StreamError, match="no queue for n/b"):
        desk.publisher.admit(OutMessage(B, [b"b1"]))
    assert not desk.service.stored


async def test_what_the_new_mapper_has_no_queue_for_is_refused_and_the_rest_moves(
    desk: Desk,
) -> None:
    first = desk.publish(A, "a0")
    await spin()
    waiting = desk.publish(B, "b1"), desk.publish(A, "a1")
    await spin()
    move = desk.remap()
    await spin()
    desk.mapper.refuses = "b"
    held = desk.publish(B, "b2")
    await spin()
    desk.service.gate.set()
    await move
    for end in (waiting[0], held):
        with pytest.raises(StreamError, match="no queue for n/b"):
            await end
    await asyncio.gather(first, waiting[1])
    assert "b" not in desk.service.stored
