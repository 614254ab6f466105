"""Waiting polls: when they look, and the filters recorded for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, cast

from tests.providers.priority.world import Rig, in_cluster

from millstream.providers.priority.core.commands import Dequeue
from millstream.providers.priority.core.message import LeaseToken, Metadata
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Dequeued, LeaseGrant, PollStatus
from millstream.providers.priority.owner.grain import Polled, owner_of
from millstream.providers.priority.owner.polls import Polls
from millstream.providers.priority.store.contract import OwnedQueue
from millstream.providers.priority.surface.asking import SessionPool
from millstream.providers.priority.surface.poll import leases_of


class Empty:
    """An empty queue. The answers of `answered` are those of requests that it carried out before,
    and it makes the first `steps` looks of a search without a result.
    """

    def __init__(self, steps: int = 0) -> None:
        self.looks: list[str] = []
        self.noted: list[list[Metadata]] = []
        self.answered: dict[Request, Dequeued] = {}
        self.steps = steps
        self.polls = Polls("q", self.look, self.open, 9)
        self.opened = asyncio.Event()
        self.opened.set()
        self.polls.owned = cast(OwnedQueue, self)

    async def open(self) -> None:
        await self.opened.wait()
        self.polls.owned = cast(OwnedQueue, self)

    async def look(self, command: Dequeue, request: Request) -> Dequeued:
        self.looks.append(request.session)
        if len(self.looks) <= self.steps:
            return Dequeued((), PollStatus.MORE)
        return self.answered.get(request, Dequeued((), PollStatus.EMPTY))

    def is_answered(self, request: Request) -> bool:
        return request in self.answered

    def take_available(self, wanted: Collection[Metadata]) -> Mapping[Metadata, int]:
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


async def test_a_repeated_poll_gets_its_leases_at_once_and_the_next_poll_looks() -> None:
    """A repeated answer says nothing about the messages that are available now."""
    queue = Empty()
    polls = [queue.poll(session) for session in "ab"]
    await asyncio.sleep(0)
    assert queue.looks == ["a"]
    grant = LeaseGrant("m", b"", 0, (), LeaseToken(1, 1), 0, 1, 2)
    queue.answered[Request("c", 1)] = Dequeued((grant,), PollStatus.MORE)
    queue.polls.on_changed()  # "a" is to look, but leaves
    queue.polls.leave("a")
    repeated = queue.poll("c")
    assert (await repeated).leases == (grant,)
    await asyncio.sleep(0)
    assert queue.looks == ["a", "c", "b"]
    queue.polls.stop()
    await asyncio.wait(polls)


async def test_of_two_polls_of_a_session_that_wait_for_the_queue_the_later_one_remains() -> None:
    queue = Empty()
    queue.polls.owned = None
    queue.opened.clear()
    other, first = queue.poll("other"), queue.poll("s")
    await asyncio.sleep(0)
    queue.polls.owned = cast(OwnedQueue, queue)  # it is open, and the first poll does not know yet
    second = queue.poll("s")
    queue.opened.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert first.done() and not second.done() and (await first).leases == ()
    queue.polls.stop()
    await asyncio.wait([other, second])


async def test_a_poll_that_may_repeat_another_one_of_its_session_looks_first() -> None:
    queue = Empty()
    polls = [queue.poll(session) for session in "aab"]
    await asyncio.sleep(0)
    assert queue.looks == ["a", "a"]
    queue.polls.stop()
    await asyncio.wait(polls)


async def test_a_search_in_steps_ends_with_its_poll() -> None:
    queue = Empty(steps=100)
    polling = queue.poll("a")
    for _ in range(5):
        await asyncio.sleep(0)
    looks = len(queue.looks)
    assert 2 < looks < 100
    queue.polls.leave("a")
    assert (await polling).leases == () and len(queue.looks) <= looks + 1


async def test_a_search_in_steps_goes_on_until_its_end() -> None:
    queue = Empty(steps=20)
    polls = [queue.poll(session) for session in "ab"]
    for _ in range(40):
        await asyncio.sleep(0)
    assert queue.looks == ["a"] * 21
    queue.polls.on_changed()
    await asyncio.sleep(0)
    assert queue.looks == ["a"] * 22, "the poll is counted as one that looks, once"
    queue.polls.leave("a")
    queue.polls.on_changed()
    await asyncio.wait(polls[:1])
    await asyncio.sleep(0)
    assert queue.looks[22:] == ["b"]
    queue.polls.stop()
    await asyncio.wait(polls)


def test_a_poll_is_repeated_at_another_owner_and_gets_its_leases_at_once() -> None:
    """The first answer is lost with its owner, and other polls wait for the same messages."""

    async def open_slowly(queue: str) -> None:
        await asyncio.sleep(0.5)

    async def main(rig: Rig) -> None:
        await rig.on(rig.host, rig.queue().enqueue(b"x"))
        owner = rig.client.grain(owner_of("priority"), "q")
        lost = await rig.spawn(owner.poll(Dequeue("w"), Request("s", 1), 4_000))
        silo = rig.owner_of()
        await rig.cluster.stop_silo(silo)
        rig.faults.on_before = open_slowly
        others = [rig.spawn(owner.poll(Dequeue("w"), Request(one, 1), 30_000)) for one in "ab"]
        again = rig.spawn(owner.poll(Dequeue("w"), Request("s", 1), 30_000))
        start_s = rig.simulation.loop.time()
        assert [one.id for one in (await again).leases] == [one.id for one in lost.leases]
        assert rig.simulation.loop.time() - start_s < 10
        for payload in (b"y", b"z"):
            await rig.on(rig.host, rig.queue().enqueue(payload))
        assert [len((await one).leases) for one in others] == [1, 1]
        assert rig.simulation.loop.time() - start_s < 12

    in_cluster(main)


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
