"""The requests to one bookie: the entries in one request, and the tasks that wait."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Sequence
from contextvars import Context
from typing import cast

from tests.conditions import spin

from millstream.providers.ledger.handle.bookie_sender import BookieSender, Outcome, Trouble
from millstream.providers.ledger.handle.bookies import Bookies
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.protocol.append_core import PlaceState
from millstream.providers.ledger.protocol.errors import BookieAway
from millstream.runtime.extending import Tasks


class SlowBookie:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[bytes], Future[None]]] = []

    async def add(self, bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        answer: Future[None] = asyncio.get_running_loop().create_future()
        self.asked.append((list(entries), answer))
        await answer


def opened() -> tuple[BookieSender, SlowBookie, Tasks, list[Outcome]]:
    bookie, told = SlowBookie(), list[Outcome]()
    tasks = Tasks(asyncio.get_running_loop(), Context)
    nothing = cast("object", None)
    context = HandleContext(
        cast("Bookies", bookie),
        nothing,  # type: ignore[arg-type]  # neither rows nor a clock are used
        nothing,  # type: ignore[arg-type]
        tasks,
        HandleOptions(),
    )
    return (
        BookieSender(context, "b", 1, lambda entry: b"%d" % entry, told.append),
        bookie,
        tasks,
        told,
    )


async def test_what_comes_while_two_requests_are_out_goes_in_the_next_one() -> None:
    sender, bookie, tasks, told = opened()
    sender.put((0,))
    sender.put((1,))
    await spin()
    sender.put((2,))
    await spin()
    sender.put((3,))
    sender.put((4,))
    await spin()
    assert [entries for entries, _ in bookie.asked] == [[b"0", b"1"], [b"2"]]
    bookie.asked[1][1].set_result(None)
    await spin()
    assert told == [(2,)]
    assert [entries for entries, _ in bookie.asked[2:]] == [[b"3", b"4"]]
    await tasks.aclose()


async def test_one_task_waits_for_what_comes_and_sends_it() -> None:
    sender, bookie, tasks, told = opened()
    for number in range(5):
        sender.put((number,))
        await spin()
        assert len(tasks) == 1 and bookie.asked[number][0] == [b"%d" % number]
        bookie.asked[number][1].set_result(None)
        await spin()
    assert len(tasks) == 1 and told == [(number,) for number in range(5)]
    await tasks.aclose()


async def test_of_two_tasks_that_have_nothing_to_send_one_ends() -> None:
    sender, bookie, tasks, _ = opened()
    for number in range(2):
        sender.put((number,))
        await spin()
    assert len(tasks) == 2
    for _, answer in bookie.asked:
        answer.set_result(None)
    await spin()
    assert len(tasks) == 1
    await tasks.aclose()


async def test_clearing_ends_the_task_that_waits_and_what_comes_later_is_sent() -> None:
    sender, bookie, tasks, told = opened()
    sender.put((0,))
    await spin()
    bookie.asked[0][1].set_result(None)
    await spin()
    sender.clear()
    await spin()
    assert len(tasks) == 0
    sender.put((1,))
    await spin()
    assert bookie.asked[1][0] == [b"1"] and len(tasks) == 1
    bookie.asked[1][1].set_exception(BookieAway("gone"))
    await spin()
    assert told == [(0,), Trouble(PlaceState.AWAY, "gone")]
    await tasks.aclose()


async def test_what_is_put_after_the_tasks_were_ended_harms_nobody() -> None:
    sender, bookie, tasks, _ = opened()
    sender.put((0,))
    await spin()
    bookie.asked[0][1].set_result(None)
    await spin()
    await tasks.aclose()
    sender.clear()
    sender.put((1,))
    await spin()
    assert bookie.asked[1][0] == [b"1"]
    await tasks.aclose()


async def test_no_task_is_left_of_a_sender_whose_answer_comes_after_its_end() -> None:
    sender, bookie, tasks, told = opened()
    sender.put((0,))
    await spin()
    sender.put((1,))
    sender.end()
    bookie.asked[0][1].set_result(None)
    await spin()
    assert told == [(0,)] and len(bookie.asked) == 1 and len(tasks) == 0


async def test_the_task_that_waits_for_what_comes_ends_with_its_sender() -> None:
    sender, bookie, tasks, _ = opened()
    sender.put((0,))
    await spin()
    bookie.asked[0][1].set_result(None)
    await spin()
    assert len(tasks) == 1
    sender.end()
    await spin()
    assert len(tasks) == 0
