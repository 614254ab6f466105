"""Group commit: the time of each answer, failed commits, and events that do not disturb a
commit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from millstream.providers.priority import (
    LeaseToken,
    MessageNotFound,
    OwnerLost,
    QueueSettings,
    State,
    StoreLimits,
)
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.changes import Changes
from millstream.providers.priority.core.commands import (
    Cancel,
    Command,
    Complete,
    Depth,
    Dequeue,
    Enqueue,
    EnqueueMany,
    Get,
)
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.store.committing import CommittingQueue
from millstream.runtime import ConfigError, Env, Overloaded, StorageUnavailable

T = TypeVar("T")


class Clock(Env):
    def __init__(self) -> None:
        super().__init__(1)
        self.now_s = 1.0

    def wall_s(self) -> float:
        return self.now_s


class Slow:
    """A hold whose commits end when the test says so."""

    def __init__(self) -> None:
        self.queue, self.epoch = "q", 1
        self.is_mine: bool | None = True
        self.is_full = False
        self.stored: list[Changes | None] = []
        self.due: list[int | None] = []
        self.doors: list[asyncio.Future[None]] = []
        self.deleted = 0

    def is_held(self) -> bool | None:
        return self.is_mine

    def check_room(self) -> None:
        if self.is_full:
            raise Overloaded("full", "events_max", 1)

    async def commit(self, changes: Changes | None, next_due_ms: int | None) -> None:
        await self._pass()
        self.stored.append(changes)
        self.due.append(next_due_ms)

    async def delete(self) -> None:
        await self._pass()
        self.deleted += 1

    async def _pass(self) -> None:
        self.doors.append(asyncio.get_running_loop().create_future())
        await self.doors[-1]


class Desk:
    """A queue over a slow hold."""

    def __init__(self, limits: StoreLimits | None = None, **settings: Any) -> None:
        self.hold = Slow()
        self.clock = Clock()
        self.ended = 0
        core = PriorityCore.create(1_000, "q", QueueSettings(**settings))
        core.drain()
        limits = limits or StoreLimits()
        self.queue = CommittingQueue(core, None, self.hold, self.clock, limits, self._end)

    def _end(self, queue: CommittingQueue) -> None:
        self.ended += 1

    def ask(self, command: Command, request: Request | None = None) -> asyncio.Task[Any]:
        return asyncio.create_task(self.queue.do(command, request))

    async def door(self, number: int) -> asyncio.Future[None]:
        while len(self.hold.doors) <= number:
            await asyncio.sleep(0)
        return self.hold.doors[number]

    async def let(self, number: int) -> None:
        (await self.door(number)).set_result(None)
        await rest()

    async def break_(self, number: int, error: Exception) -> None:
        (await self.door(number)).set_exception(error)
        await rest()

    async def put(self, *ids: str) -> None:
        """Enqueue and commit."""
        asked = self.ask(EnqueueMany(tuple(Enqueue(id, b"x", 1) for id in ids)))
        await self.let(len(self.hold.doors))
        await asked


async def rest() -> None:
    for _ in range(9):
        await asyncio.sleep(0)


def at_once(coro: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that must not wait."""
    try:
        coro.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coro.close()
    raise AssertionError("it waits")


async def test_an_answer_leaves_when_its_change_is_stored_and_not_before() -> None:
    desk = Desk()
    asked = desk.ask(Enqueue("a", b"x", 1))
    door = await desk.door(0)
    await rest()
    assert not asked.done()
    door.set_result(None)
    assert (await asked).id == "a"
    [changes] = desk.hold.stored
    assert changes is not None and [row.id for row in changes.inserted] == ["a"]


async def test_looks_empty_polls_and_refusals_wait_for_the_changes_that_they_rest_on() -> None:
    desk = Desk()
    await desk.put("a")
    first = desk.ask(Dequeue("w"))
    await desk.door(1)
    others = [
        desk.ask(Dequeue("v")),
        asyncio.create_task(desk.queue.look(Depth())),
        asyncio.create_task(desk.queue.look(Get("nobody"))),
        desk.ask(Complete("a", LeaseToken(9, 9))),
    ]
    await rest()
    assert not any(task.done() for task in (first, *others))
    await desk.let(1)
    assert all(task.done() for task in (first, *others))
    assert len(desk.hold.stored) == 2, "what changed nothing asks for no commit of its own"
    assert others[0].result().leases == () and others[1].result()[State.RUNNING] == 1
    assert isinstance(others[2].exception(), MessageNotFound)


async def test_what_rests_on_nothing_uncommitted_is_answered_without_waiting() -> None:
    desk = Desk()
    await desk.put("a")
    assert at_once(desk.queue.look(Depth()))[State.PENDING] == 1
    assert at_once(desk.queue.do(Enqueue("a", b"x", 1))).is_changed is False
    with pytest.raises(MessageNotFound):
        at_once(desk.queue.do(Cancel("nobody")))
    assert len(desk.hold.stored) == 1


async def test_what_comes_during_a_commit_shares_the_next_one() -> None:
    desk = Desk()
    first = desk.ask(Enqueue("a", b"x", 1))
    await desk.door(0)
    rest_of = [desk.ask(Enqueue(f"b{number}", b"x", 1)) for number in range(100)]
    await rest()
    await desk.let(0)
    assert first.done() and not any(task.done() for task in rest_of)
    await desk.let(1)
    assert all(task.done() for task in rest_of) and len(desk.hold.stored) == 2


async def test_what_is_asked_in_one_iteration_of_the_loop_shares_the_first_commit() -> None:
    desk = Desk()
    asked = [desk.ask(Enqueue(f"b{number}", b"x", 1)) for number in range(10)]
    await desk.let(0)
    assert all(task.done() for task in asked) and len(desk.hold.stored) == 1


async def test_a_caller_that_is_cancelled_takes_nothing_back_and_holds_nobody_up() -> None:
    desk = Desk()
    asked, other = desk.ask(Enqueue("a", b"x", 1)), desk.ask(Enqueue("b", b"x", 1))
    await desk.door(0)
    late = desk.ask(Enqueue("c", b"x", 1))
    await rest()
    asked.cancel()
    late.cancel()
    await rest()
    assert asked.cancelled() and late.cancelled()
    await desk.let(0)
    assert other.done()
    await desk.let(1)
    assert at_once(desk.queue.look(Depth()))[State.PENDING] == 3


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_a_failed_commit_ends_the_owner_and_tells_all_who_wait(is_fenced: bool) -> None:
    desk = Desk()
    await desk.put("a")
    first = desk.ask(Enqueue("b", b"x", 1))
    await desk.door(1)
    during = [desk.ask(Dequeue("w")), asyncio.create_task(desk.queue.look(Depth()))]
    await rest()
    error = OwnerLost("q", "another") if is_fenced else StorageUnavailable("the disk is full")
    await desk.break_(1, error)
    for task in (first, *during):
        assert type(task.exception()) is type(error) and task.exception() is not error
    assert desk.queue.is_lost and desk.ended
    for act in (desk.queue.do(Dequeue("w")), desk.queue.look(Depth()), desk.queue.sweep()):
        with pytest.raises(OwnerLost, match="another owner" if is_fenced else "the disk is full"):
            at_once(act)
    assert desk.queue.next_due_ms() is None and len(desk.hold.doors) == 2
    with pytest.raises(OwnerLost):
        await desk.queue.delete()
    await desk.queue.release()


async def test_an_owner_that_was_taken_over_does_not_even_answer_looks() -> None:
    desk = Desk()
    await desk.put("a")
    desk.hold.is_mine = False
    with pytest.raises(OwnerLost, match="another owner has taken it over"):
        at_once(desk.queue.look(Depth()))
    assert desk.queue.is_lost


@pytest.mark.parametrize("command", [Dequeue("w"), Cancel("nobody")])
async def test_an_owner_that_was_taken_over_answers_no_poll_and_no_refusal(
    command: Command,
) -> None:
    desk = Desk()
    desk.hold.is_mine = False
    with pytest.raises(OwnerLost):
        at_once(desk.queue.do(command))


async def test_who_came_during_the_last_commit_before_a_takeover_is_not_answered() -> None:
    """The commit was stored. Then another owner took over and changed the queue, before this owner
    learned of its commit.
    """
    desk = Desk()
    first = desk.ask(Enqueue("a", b"x", 1))
    await desk.door(0)
    late = [asyncio.create_task(desk.queue.look(Depth())), desk.ask(Cancel("nobody"))]
    await rest()
    desk.hold.is_mine = False
    await desk.let(0)
    assert first.result().is_changed, "its answer is as old as its commit"
    assert all(isinstance(task.exception(), OwnerLost) for task in late)
    assert desk.queue.is_lost and desk.ended == 1


async def test_where_only_the_store_can_tell_who_owns_a_queue_it_is_asked() -> None:
    desk = Desk()
    await desk.put("a")
    desk.hold.is_mine = None
    asked = [
        asyncio.create_task(desk.queue.look(Depth())),
        desk.ask(Dequeue("w", 1, (("a", "b"),))),
    ]
    await desk.door(1)
    late = [asyncio.create_task(desk.queue.look(Depth())), desk.ask(Cancel("nobody"))]
    await desk.let(1)
    assert all(task.done() for task in asked) and not any(task.done() for task in late)
    await desk.let(2)
    assert all(task.done() for task in late) and desk.hold.stored[1:] == [None, None]


async def test_whom_the_store_does_not_know_as_owner_gives_no_answer() -> None:
    desk = Desk()
    desk.hold.is_mine = None
    asked = [asyncio.create_task(desk.queue.look(Depth())), desk.ask(Cancel("nobody"))]
    await desk.break_(0, OwnerLost("q", "another"))
    assert all(isinstance(task.exception(), OwnerLost) for task in asked) and desk.queue.is_lost


class Broken:
    def on(self, core: PriorityCore, now_ms: int) -> None:
        core.enqueue(now_ms, MessageFields("half", b"", 1))
        raise ZeroDivisionError


async def test_a_fault_of_the_program_in_mid_operation_ends_the_owner() -> None:
    desk = Desk()
    waiting = desk.ask(Enqueue("a", b"x", 1))
    with pytest.raises(ZeroDivisionError):
        at_once(desk.queue.do(Broken()))
    await rest()
    with pytest.raises(OwnerLost, match="ZeroDivisionError"):
        await waiting
    assert desk.queue.is_lost and not desk.hold.stored


async def test_a_full_store_refuses_before_anything_is_changed() -> None:
    desk = Desk()
    desk.hold.is_full = True
    with pytest.raises(Overloaded):
        at_once(desk.queue.do(Enqueue("a", b"x", 1)))
    assert at_once(desk.queue.look(Depth()))[State.PENDING] == 0


@pytest.mark.parametrize(
    "limits",
    [
        StoreLimits(waiting_max=2),
        StoreLimits(uncommitted_max=2),
        StoreLimits(uncommitted_bytes_max=2),
    ],
)
async def test_what_waits_has_a_limit(limits: StoreLimits) -> None:
    desk = Desk(limits)
    asked = [desk.ask(Enqueue("a", b"x", 1))]
    await desk.door(0)
    asked += [desk.ask(Enqueue(id, b"x", 1)) for id in "bcde"]
    await rest()
    refused = [task for task in asked if task.done()]
    assert refused and all(isinstance(task.exception(), Overloaded) for task in refused)
    await desk.let(0)
    await desk.let(1)
    done = [task.result().id for task in asked if task not in refused]
    assert at_once(desk.queue.look(Depth()))[State.PENDING] == len(done) == 5 - len(refused)


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="waiting_max"):
        StoreLimits(waiting_max=0)


async def test_release_answers_what_waits_and_takes_nothing_more() -> None:
    desk = Desk()
    first = desk.ask(Enqueue("a", b"x", 1))
    await desk.door(0)
    second = desk.ask(Enqueue("b", b"x", 1))
    await rest()
    released = asyncio.create_task(desk.queue.release())
    await rest()
    with pytest.raises(OwnerLost, match="released"):
        at_once(desk.queue.do(Dequeue("w")))
    await desk.let(0)
    assert first.done() and not released.done()
    await desk.let(1)
    assert second.result().is_changed and released.done() and desk.ended == 1
    await desk.queue.release()


async def test_delete_comes_after_what_waits_and_needs_no_caller() -> None:
    desk = Desk()
    first = desk.ask(Enqueue("a", b"x", 1))
    await desk.door(0)
    deleting = asyncio.create_task(desk.queue.delete())
    await rest()
    deleting.cancel()
    await rest()
    assert deleting.cancelled() and not desk.hold.deleted
    await desk.let(0)
    assert first.done()
    released = asyncio.create_task(desk.queue.release())
    await desk.let(1)
    assert released.done() and desk.hold.deleted


async def test_a_queue_is_not_deleted_whose_last_commit_failed() -> None:
    desk = Desk()
    first = desk.ask(Enqueue("a", b"x", 1))
    await desk.door(0)
    deleting = asyncio.create_task(desk.queue.delete())
    await rest()
    await desk.break_(0, StorageUnavailable("why"))
    assert isinstance(first.exception(), StorageUnavailable)
    assert isinstance(deleting.exception(), OwnerLost) and not desk.hold.deleted


async def test_a_sweep_that_did_nothing_stores_when_the_next_one_is_due() -> None:
    desk = Desk(answers_kept_ms=5_000)
    leased = desk.ask(Enqueue("a", b"x", 1, (), 9_000), Request("s", 1))
    await desk.let(0)
    await leased
    assert desk.hold.due == [6_000]
    desk.clock.now_s = 6.0
    swept = asyncio.create_task(desk.queue.sweep())
    await desk.let(1)
    assert swept.done() and desk.hold.due == [6_000, 10_000]
    assert at_once(desk.queue.sweep()).steps == 0


async def test_who_comes_between_the_start_and_the_drain_of_a_commit_is_answered() -> None:
    """A commit can begin without a change. The next caller must not wait on a list that is
    dropped.
    """
    desk = Desk()
    core = desk.queue._core
    assert core is not None
    desk.queue._stored_due_ms = 5
    swept = asyncio.create_task(desk.queue.sweep())
    looked = asyncio.create_task(desk.queue.look(Depth()))
    await desk.let(0)
    assert swept.done() and looked.done()


async def test_a_commit_task_that_is_cancelled_with_the_loop_leaves_nobody_waiting() -> None:
    desk = Desk()
    asked = desk.ask(Enqueue("a", b"x", 1))
    await desk.door(0)
    task = desk.queue._task
    assert task is not None
    task.cancel()
    await rest()
    assert isinstance(asked.exception(), OwnerLost) and desk.queue.is_lost
