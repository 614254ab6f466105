"""Enqueueing in one queue: one call at a time, timeouts, faulty adapters, cancelled publishers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import Context
from typing import Any

import pytest

from millstream.runtime import EnqueueFailed, PublishUnknown, QueueFull, QueueUnavailable
from millstream.runtime.extending import Budget, Tasks
from millstream.runtime.testing import Simulation, run
from millstream.streams import OutMessage, SendLimits, StreamId, Token
from millstream.streams.contracts.suite.host import BenchClock
from millstream.streams.publishing.send_queue import Publish, SendQueue
from millstream.streams.publishing.sender import QueueSender

CALL_LIMIT_S = 0.05


class Service:
    """A queue whose calls end as the test decides; by default they store."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.calls = 0
        self.under_way = 0
        self.answers: list[Callable[[list[str]], Any]] = []

    epoch = 7  # replaces a mapper, too

    async def enqueue(self, queue: str, messages: Sequence[OutMessage], epoch: int, /) -> Any:
        assert (queue, epoch) == ("q", 7)
        self.calls += 1
        self.under_way += 1
        assert self.under_way == 1, "one call at a time"
        try:
            await asyncio.sleep(0)
            texts = [message.items[0].decode() for message in messages]
            if not self.answers:
                self.stored += texts
                return [None] * len(texts)
            answer = self.answers.pop(0)(texts)
            return await answer if asyncio.iscoroutine(answer) else answer
        finally:
            self.under_way -= 1


class Desk:
    def __init__(self, limits: SendLimits | None = None, service: Service | None = None) -> None:
        self.service = service or Service()
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        self.clock = BenchClock()
        self.sender = QueueSender(
            SendQueue("q", limits or SendLimits()),
            "q",
            self.service,
            self.service,
            "Odd of stream provider 'p'",
            CALL_LIMIT_S,
            self.clock,
            self.tasks,
            Budget(asyncio.get_running_loop(), 0.001),
        )

    async def publish(self, *texts: str, wait_s: float = 5.0) -> Publish:
        messages = [OutMessage(StreamId("n", "k"), [text.encode()]) for text in texts]
        publish = Publish(messages, self.clock.now(), wait_s)
        await self.sender.publish(publish)
        return publish


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    desk.sender.close("over")
    await desk.tasks.aclose()


def raises(error: BaseException) -> Callable[[list[str]], Any]:
    def answer(texts: list[str]) -> Any:
        raise error

    return answer


async def forever(*_: object) -> None:
    await asyncio.Event().wait()


async def test_what_comes_while_a_call_is_under_way_goes_together_in_the_next(desk: Desk) -> None:
    ends = await asyncio.gather(*(desk.publish(text) for text in "abcd"))
    assert desk.service.stored == list("abcd")
    assert desk.service.calls <= 2
    assert all(end.error is None for end in ends)


async def test_a_publish_of_nothing_is_over_at_once(desk: Desk) -> None:
    assert (await desk.publish()).tokens == []
    assert desk.service.calls == 0


async def test_a_full_queue_is_tried_again_and_nothing_overtakes(desk: Desk) -> None:
    desk.service.answers = [
        lambda texts: raises(EnqueueFailed([], QueueFull("full")))(texts),
        raises(QueueUnavailable("away")),
    ]
    ends = await asyncio.gather(desk.publish("a"), desk.publish("b"))
    assert desk.service.stored == ["a", "b"]
    assert [end.error for end in ends] == [None, None]


@pytest.mark.parametrize(
    "answer",
    [
        lambda texts: None,
        lambda texts: [],
        lambda texts: [None] * (len(texts) + 1),
        lambda texts: ["token"] * len(texts),
        lambda texts: [(1, 2, 0)] * len(texts),
        lambda texts: 7,
        raises(ValueError("odd")),
        raises(asyncio.CancelledError()),
        raises(TimeoutError()),
        raises(EnqueueFailed([None, None], QueueFull("full"))),
        forever,
    ],
)
async def test_after_an_odd_answer_the_outcome_is_unknown_and_the_next_publish_is_sent(
    desk: Desk, answer: Callable[[list[str]], Any]
) -> None:
    desk.service.answers = [answer]
    publish = await desk.publish("a")
    assert isinstance(publish.error, PublishUnknown)
    assert "Odd of stream provider 'p'.enqueue of q" in str(publish.error)
    assert (await desk.publish("b")).error is None
    assert desk.service.stored == ["b"]


async def test_the_error_of_a_prefix_tells_how_much_is_stored(desk: Desk) -> None:
    token = Token(1, 1)
    desk.service.answers = [raises(EnqueueFailed([token], QueueFull("full")))]
    desk.service.answers += [raises(QueueFull("full"))] * 9
    publish = await desk.publish("a", "b", wait_s=0.0)
    assert publish.tokens == [token]
    assert isinstance(publish.error, QueueFull) and publish.error.accepted_events == 1


async def test_a_publisher_that_goes_away_does_not_cancel_the_call_and_what_waits_is_not_sent(
    desk: Desk,
) -> None:
    gate = asyncio.Event()

    async def later(texts: list[str]) -> list[None]:
        await gate.wait()
        desk.service.stored += texts
        return [None] * len(texts)

    desk.service.answers = [later]
    out = asyncio.create_task(desk.publish("out"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting = asyncio.create_task(desk.publish("waiting"))
    await asyncio.sleep(0)
    out.cancel()
    waiting.cancel()
    await asyncio.gather(out, waiting, return_exceptions=True)
    gate.set()
    assert (await desk.publish("last")).error is None
    assert desk.service.stored == ["out", "last"]


async def test_an_adapter_that_swallows_its_cancellation_is_left_behind(desk: Desk) -> None:
    gate = asyncio.Event()

    async def stubborn(texts: list[str]) -> list[None]:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                desk.service.under_way = 0
        desk.service.under_way = 1
        return [None] * len(texts)

    desk.service.answers = [stubborn]
    publish = await desk.publish("a")
    assert isinstance(publish.error, PublishUnknown) and "call_limit_s" in str(publish.error)
    assert (await desk.publish("b")).error is None
    gate.set()
    await asyncio.sleep(0)
    assert desk.service.stored == ["b"]


async def test_a_closed_sender_tells_what_was_out_and_what_was_not(desk: Desk) -> None:
    desk.service.answers = [forever]
    out = asyncio.create_task(desk.publish("a"))
    for _ in range(3):
        await asyncio.sleep(0)
    waiting = asyncio.create_task(desk.publish("b"))
    await asyncio.sleep(0)
    desk.sender.close("the silo stops")
    assert isinstance((await out).error, PublishUnknown)
    assert isinstance((await waiting).error, QueueUnavailable)


@pytest.mark.parametrize("seed", range(6))
def test_timers_that_fire_early_lose_nothing(seed: int) -> None:
    async def main(simulation: Simulation) -> list[str]:
        desk = Desk(SendLimits(batch_messages_max=1))
        desk.service.answers = [raises(QueueFull("full"))] * 5
        await asyncio.gather(*(desk.publish(text) for text in "abc"))
        return desk.service.stored

    assert run(main, seed).result == ["a", "b", "c"]


# --- storing at once ------------------------------------------------------------------------------


class PromptService(Service):
    """Stores without waiting if the test gives an answer; otherwise like the base class."""

    def __init__(self, *at_once: Any) -> None:
        super().__init__()
        self.at_once = list(at_once)  # answers of the next calls (True: stored)
        self.asked = 0

    def enqueue_at_once(self, queue: str, messages: Sequence[OutMessage], epoch: int, /) -> Any:
        assert (queue, epoch) == ("q", 7)
        assert self.under_way == 0, "one call at a time"
        self.asked += 1
        answer = self.at_once.pop(0) if self.at_once else None
        if isinstance(answer, BaseException):
            raise answer
        if answer is True:
            self.stored += [message.items[0].decode() for message in messages]
            return [None] * len(messages)
        return answer


async def test_what_is_stored_at_once_needs_no_call_and_no_task() -> None:
    service = PromptService(True, True)
    desk = Desk(service=service)
    assert (await desk.publish("a", "b")).tokens == [None, None]
    assert (await desk.publish("c")).error is None
    assert (service.stored, service.calls, len(desk.tasks)) == (["a", "b", "c"], 0, 0)


@pytest.mark.parametrize("answer", [None, QueueFull("full"), QueueUnavailable("away")])
async def test_what_is_not_stored_at_once_is_enqueued(answer: Any) -> None:
    service = PromptService(answer)
    desk = Desk(service=service)
    publish = await desk.publish("a", "b")
    assert (publish.error, publish.tokens) == (None, [None, None])
    assert (service.stored, service.calls, service.asked) == (["a", "b"], 1, 1)


def lists_of(*texts: str) -> list[list[OutMessage]]:
    """Make a list of one message for each text, in a stream of its own."""
    return [[OutMessage(StreamId("n", text), [text.encode()])] for text in texts]


async def test_lists_of_several_streams_are_stored_by_one_call() -> None:
    service = PromptService(True)
    desk = Desk(service=service)
    assert desk.sender.store_together(lists_of(*"abc"), [1, 1, 1]) == [None] * 3
    assert (service.stored, service.asked, service.calls) == (list("abc"), 1, 0)
    assert desk.sender.store_together([], []) == []
    assert service.asked == 1


@pytest.mark.parametrize(
    "limits", [SendLimits(batch_messages_max=2), SendLimits(batch_bytes_max=5)], ids=repr
)
async def test_lists_that_are_stored_together_are_cut_at_the_limits(limits: SendLimits) -> None:
    service = PromptService(True, True, True)
    desk = Desk(limits, service)
    assert desk.sender.store_together(lists_of(*"abcde"), [2] * 5) == [None] * 5
    assert (service.stored, service.asked) == (list("abcde"), 3)


async def test_where_lists_have_no_room_together_the_first_ones_are_stored_alone() -> None:
    service = PromptService(None, True, True, QueueFull("full"))
    desk = Desk(service=service)
    assert desk.sender.store_together(lists_of(*"abcd"), [1] * 4) == [None] * 2
    assert (service.stored, service.asked) == (["a", "b"], 4)


async def test_nothing_is_stored_together_while_something_waits() -> None:
    service = PromptService(None, True)
    desk = Desk(service=service)
    waiting = asyncio.create_task(desk.publish("a"))
    await asyncio.sleep(0)
    assert desk.sender.store_together(lists_of("b"), [1]) == []
    assert (await waiting).error is None
    assert service.stored == ["a"]


async def test_a_faulty_answer_leaves_it_unknown_which_of_several_lists_are_stored() -> None:
    desk = Desk(SendLimits(batch_messages_max=2), PromptService(ValueError("odd"), True))
    ends = desk.sender.store_together(lists_of(*"abc"), [1] * 3)
    assert [type(end) for end in ends] == [PublishUnknown, PublishUnknown, type(None)]


@pytest.mark.parametrize(
    "answer", [[], ["token"], 7, ValueError("odd"), asyncio.CancelledError("odd")], ids=repr
)
async def test_an_odd_answer_at_once_leaves_it_unknown_what_is_stored(answer: Any) -> None:
    service = PromptService(answer, True)
    desk = Desk(service=service)
    publish = await desk.publish("a")
    assert isinstance(publish.error, PublishUnknown) and "enqueue_at_once of q" in str(
        publish.error
    )
    assert (await desk.publish("b")).error is None
    assert (service.stored, service.calls) == (["b"], 0)


async def test_nothing_is_stored_at_once_before_what_waits() -> None:
    service = PromptService(None, True, True)
    desk = Desk(service=service)
    first = asyncio.ensure_future(desk.publish("a"))
    await asyncio.sleep(0)
    await asyncio.gather(first, desk.publish("b"), desk.publish("c"))
    assert (service.stored, service.asked) == (["a", "b", "c"], 1)
    await desk.publish("d")
    assert (service.stored[-1], service.asked) == ("d", 2)


async def test_a_list_that_is_too_long_for_one_call_is_not_stored_at_once() -> None:
    service = PromptService(True, True)
    desk = Desk(SendLimits(batch_messages_max=2), service)
    await desk.publish("a", "b", "c")
    assert (service.asked, service.calls) == (0, 2)
    desk = Desk(SendLimits(batch_bytes_max=3), service)
    await desk.publish("aa", "bb")
    assert service.asked == 0
    await desk.publish("aaaaa")  # one message is never cut
    assert service.asked == 1


class TickingLoop:
    """A clock that the test advances, as if publishing took time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.call_soon = asyncio.get_running_loop().call_soon

    def time(self) -> float:
        return self.now_s


async def test_publishing_at_once_yields_to_the_loop() -> None:
    service = PromptService(*[True] * 5_000)
    desk = Desk(service=service)
    loop: Any = TickingLoop()
    desk.sender._budget = Budget(loop, 0.001)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    while service.at_once:
        await desk.publish("a")
        loop.now_s += 50e-6
    counting.cancel()
    assert turns >= 5_000 * 50e-6 / 0.001 / 5, "a slice is 20 publishes, and the looks add some"
