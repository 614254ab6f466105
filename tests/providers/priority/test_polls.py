"""Waiting polls: when they look, and the filters recorded for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority.core.commands import Dequeue
from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Dequeued, PollStatus
from millstream.providers.priority.owner.grain import Polled, owner_of
from millstream.providers.priority.owner.polls import Polls
from millstream.providers.priority.surface.asking import SessionPool
from millstream.providers.priority.surface.poll import leases_of


class Empty:
    """An empty queue."""

    def __init__(self) -> None:
        self.looks: list[str] = []
        self.noted: list[list[Metadata]] = []
        self.polls = Polls("q", self.dequeue, self.available, 9)

    async def dequeue(self, command: Dequeue, request: Request) -> Dequeued:
        self.looks.append(request.session)
        return Dequeued((), PollStatus.EMPTY)

    def available(self, wanted: Collection[Metadata]) -> Mapping[Metadata, int]:
        self.noted.append(list(wanted))
        return {}

    def poll(self, session: str, wanted: Metadata = ()) -> asyncio.Task[Dequeued]:
        asking = self.polls.poll(Dequeue("w", 1, wanted), Request(session, 1), 60.0)
        return asyncio.create_task(asking)


async def test_a_poll_that_is_told_to_end_as_it_wakes_looks_no_more() -> None:
    """A caller that repeats its request id gets the poll's whole answer at once."""
    queue = Empty()
    polling = queue.poll("s")
    await asyncio.sleep(0)
    assert queue.looks == ["s"]
    queue.polls.on_changed()
    queue.polls.leave("s")
    assert (await polling).leases == () and queue.looks == ["s"]


async def test_who_is_behind_a_poll_that_ends_as_it_wakes_looks_instead() -> None:
    queue = Empty()
    polls = [queue.poll(session) for session in "ab"]
    await asyncio.sleep(0)
    assert queue.looks == ["a"]
    queue.polls.on_changed()
    queue.polls.leave("a")
    await polls[0]
    await asyncio.sleep(0)
    assert queue.looks == ["a", "b"]
    queue.polls.stop()
    await polls[1]


async def test_what_comes_is_noted_before_the_first_look_and_no_more_when_all_have_left() -> None:
    queue, wanted = Empty(), (("k", "v"),)
    first, second = queue.poll("a", wanted), queue.poll("b")
    await asyncio.sleep(0)
    assert queue.noted == [[wanted], [wanted, ()]]
    queue.polls.leave("a")
    await first
    assert len(queue.noted) == 2
    queue.polls.leave("b")
    await second
    assert queue.noted[2:] == [[]]


class Silent:
    """Calls to a queue whose owner does not answer the first poll."""

    def __init__(self) -> None:
        self.polls = SessionPool(lambda: "s", 1)
        self.patience_s, self.queue = 1.0, "q"
        self.asked: list[object] = []
        self.started: list[asyncio.Task[Any]] = []
        self.go_on = asyncio.Event()

    def start(self, coro: Any) -> None:
        self.started.append(asyncio.create_task(coro))

    async def leave(self, session: str) -> None:
        self.asked.append(session)
        await self.go_on.wait()

    async def poll_here(self, command: Dequeue, request: Request, wait_ms: int) -> Polled:
        self.asked.append((request.number, wait_ms > 0))
        if len(self.asked) == 1:
            await asyncio.get_running_loop().create_future()
        return Polled((), PollStatus.EMPTY, 0)


async def test_a_dequeue_whose_caller_is_cancelled_is_ended_and_asked_again_as_the_same() -> None:
    calls: Any = Silent()
    until_s = asyncio.get_running_loop().time() + 60
    dequeue = asyncio.create_task(leases_of(calls, Dequeue("w"), until_s))
    await asyncio.sleep(0)
    dequeue.cancel()
    await asyncio.wait([dequeue])
    assert dequeue.cancelled()
    behind = asyncio.create_task(calls.polls.take())
    await asyncio.sleep(0)
    assert not behind.done(), "its session is not used before it is answered"
    calls.go_on.set()
    await asyncio.wait(calls.started)
    await asyncio.sleep(0)
    assert calls.asked == [(1, True), "s", (1, False)] and behind.done()


def test_a_session_waits_in_one_place() -> None:
    """A caller polls again while its first call, which nobody reads any more, still waits."""

    async def main(rig: Rig) -> None:
        owner = rig.client.grain(owner_of("priority"), "q")
        first = rig.spawn(owner.poll(Dequeue("w"), Request("s", 1), 4_000))
        await asyncio.sleep(1)
        start_s = rig.simulation.loop.time()
        second = rig.spawn(owner.poll(Dequeue("w"), Request("s", 2, 1), 4_000))
        assert (await first).leases == ()
        assert rig.simulation.loop.time() - start_s < 0.5
        await rig.on(rig.host, rig.queue().enqueue(b"x"))
        assert len((await second).leases) == 1

    in_cluster(main)
