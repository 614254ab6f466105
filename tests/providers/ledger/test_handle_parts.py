"""The parts of handles: choosing bookies, asking one after another, and the sender to one
bookie."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextvars import Context
from typing import Any

import pytest
from tests.providers.ledger.clocks import LoopClock
from tests.providers.ledger.virtual import virtually

from millstream.providers.ledger.handle.bookie_sender import BookieSender, Outcome, Trouble
from millstream.providers.ledger.handle.context import (
    BETWEEN_TRIES,
    HandleContext,
    choose,
    draw,
    existing,
)
from millstream.providers.ledger.handle.hedging import HEDGE_S, first_answer
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.protocol.append_core import PlaceState
from millstream.providers.ledger.protocol.errors import (
    BookieAway,
    BookieOverloaded,
    BookieReadOnly,
    LedgerFenced,
    LedgerGone,
)
from millstream.runtime.extending import Tasks

NOTHING: Any = None


class Rolls:
    """A clock whose random numbers are given in advance."""

    def __init__(self, *rolls: float) -> None:
        self._rolls = [*rolls]
        self.asked: list[tuple[float, float]] = []

    def uniform(self, low: float, high: float) -> float:
        self.asked.append((low, high))
        return self._rolls.pop(0)


# --- choosing ---


@pytest.mark.parametrize(
    ("roll", "name"), [(0.0, "a"), (1.9, "a"), (2.0, "b"), (4.9, "b"), (5.0, "b"), (5.1, "b")]
)
def test_a_name_is_drawn_by_its_weight(roll: float, name: str) -> None:
    assert draw({"a": 2.0, "b": 3.0}, roll) == name


def test_bookies_are_chosen_without_those_that_are_taken_and_each_once() -> None:
    clock: Any = Rolls(0.0, 0.0, 0.5)
    weights = {"c": 0.0, "b": 0.25, "a": 7.0, "d": 9.0}
    assert choose(weights, 9, ("d",), clock) == ["a", "b", "c"]
    assert clock.asked == [(0.0, 9.0), (0.0, 2.0), (0.0, 1.0)], "one that is full has a chance"
    assert choose(weights, 1, (), Rolls(8.9)) == ["c"]  # type: ignore[arg-type]
    assert choose(weights, 0, (), Rolls()) == []  # type: ignore[arg-type]


def test_pauses_between_tries_rise_with_chance() -> None:
    clock: Any = Rolls(0.25, 0.75)
    context = HandleContext(NOTHING, NOTHING, clock, NOTHING, HandleOptions())
    assert context.pause_s(1) == BETWEEN_TRIES.delay_s(1, 0.25)
    assert context.pause_s(5) == BETWEEN_TRIES.delay_s(5, 0.75)
    assert clock.asked == [(0.0, 1.0), (0.0, 1.0)]


def test_a_record_that_is_gone_is_said_so() -> None:
    with pytest.raises(LedgerGone, match="no ledger 7: it was deleted"):
        existing(7, None)


# --- asking one after another ---


class Asked:
    """Bookies that answer after some seconds with the values they have."""

    def __init__(self, **answers: tuple[float, int | None]) -> None:
        self._answers = answers
        self.names: list[str] = []
        self.left: list[str] = []
        self.tasks = Tasks(asyncio.get_running_loop(), Context)

    async def ask(self, name: str) -> int | None:
        self.names.append(name)
        wait_s, found = self._answers[name]
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            self.left.append(name)
            raise
        return found

    async def first(self) -> tuple[int | None, float]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found = await first_answer(self.tasks, [*self._answers], self.ask)
        await asyncio.sleep(0)
        return found, round(loop.time() - began_s, 3)


@virtually
async def test_the_next_one_is_asked_when_one_has_nothing_or_takes_long() -> None:
    assert await Asked(a=(0.01, None), b=(0.01, 2)).first() == (2, 0.02)
    asked = Asked(a=(9.0, 1), b=(9.0, 2), c=(0.01, 3))
    assert await asked.first() == (3, round(2 * HEDGE_S + 0.01, 3))
    assert sorted(asked.left) == ["a", "b"], "nobody listens to them any more"
    asked = Asked(a=(HEDGE_S + 0.05, 1), b=(9.0, 2), c=(0.01, 3))
    assert await asked.first() == (1, round(HEDGE_S + 0.05, 3)) and asked.names == ["a", "b"]
    assert await Asked(a=(0.01, None), b=(0.01, None), c=(5.0, 3)).first() == (3, 5.02)


@virtually
async def test_when_nobody_has_it_all_were_asked() -> None:
    asked = Asked(a=(0.01, None), b=(3.0, None), c=(0.01, None))
    assert await asked.first() == (None, 3.01) and asked.names == ["a", "b", "c"]
    assert await Asked().first() == (None, 0.0)
    assert await Asked(a=(7.0, 1)).first() == (1, 7.0)
    assert await Asked(a=(7.0, None)).first() == (None, 7.0)


# --- the sender to one bookie ---


class Counted(Tasks):
    """Counts the tasks that it starts."""

    started = 0

    def start(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.started += 1
        return super().start(coro)


class Way:
    """A sender to a bookie that answers when the test says so. `told` holds the outcomes."""

    def __init__(self, sizes: int = 10, add_bytes_max: int = 100) -> None:
        self.sizes: dict[int, int | None] = {entry: sizes for entry in range(40)}
        self.told: list[Outcome] = []
        self.requests: list[tuple[list[int], asyncio.Future[None]]] = []
        self.at_once: Exception | None = None
        loop = asyncio.get_running_loop()
        bookies: Any = self
        clock: Any = LoopClock(0)
        options = HandleOptions(add_bytes_max=add_bytes_max)
        self.tasks = Counted(loop, Context)
        context = HandleContext(bookies, NOTHING, clock, self.tasks, options)
        self.sender = BookieSender(context, "b", 3, self.packed, self.told.append)

    def packed(self, entry: int) -> bytes | None:
        size = self.sizes[entry]
        return None if size is None else bytes([entry]) * size

    async def add(self, bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        assert (bookie, term) == ("b", 3)
        future = asyncio.get_running_loop().create_future()
        self.requests.append(([one[0] for one in entries], future))
        await future

    def put(self, *entries: int) -> None:
        self.sender.put(entries)

    async def sent(self) -> list[list[int]]:
        """Return the entries on the way to the bookie."""
        for _ in range(5):
            await asyncio.sleep(0)
        return [entries for entries, future in self.requests if not future.done()]

    async def answer(self, error: Exception | None = None) -> None:
        """Answer the oldest request."""
        future = next(future for _, future in self.requests if not future.done())
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        await self.sent()


@virtually
async def test_two_requests_are_out_and_what_comes_meanwhile_goes_in_the_next_one() -> None:
    way = Way()
    way.put(0)
    assert await way.sent() == [[0]]
    way.put(1, 2)
    assert await way.sent() == [[0], [1, 2]]
    way.put(3)
    way.put(4, 5)
    assert await way.sent() == [[0], [1, 2]]
    await way.answer()
    assert way.told == [(0,)] and await way.sent() == [[1, 2], [3, 4, 5]]
    await way.answer()
    await way.answer()
    assert way.told == [(0,), (1, 2), (3, 4, 5)] and await way.sent() == []
    for entry in range(6, 12):
        way.put(entry)
        assert await way.sent() == [[entry]], "it is as it was in the beginning"
        await way.answer()


@virtually
async def test_a_request_has_a_limit_of_bytes_and_one_entry_at_least() -> None:
    way = Way(sizes=40)
    way.sizes[3] = 500
    way.put(0, 1, 2, 3, 4)
    assert await way.sent() == [[0, 1]]
    await way.answer()
    assert await way.sent() == [[2]]
    await way.answer()
    assert await way.sent() == [[3]]
    await way.answer()
    assert await way.sent() == [[4]]
    even = Way(sizes=50)
    even.put(0, 1, 2)
    assert await even.sent() == [[0, 1]], "as many bytes as the limit"


@virtually
async def test_what_nobody_needs_any_more_is_not_sent() -> None:
    way = Way()
    way.sizes[0] = way.sizes[2] = way.sizes[4] = None
    way.put(0, 1, 2, 3, 4)
    assert await way.sent() == [[1, 3]]
    await way.answer()
    assert way.told == [(1, 3)]
    way.put(4)
    way.put(0)
    assert await way.sent() == [] and way.told == [(1, 3)]
    way.put(5)
    assert await way.sent() == [[5]]


@virtually
async def test_what_is_not_sent_yet_can_be_forgotten() -> None:
    way = Way()
    way.put(0)
    await way.sent()
    way.put(1)
    await way.sent()
    way.put(2)
    way.sender.clear()
    await way.answer()
    await way.answer()
    assert way.told == [(0,), (1,)] and await way.sent() == []


@virtually
async def test_what_comes_one_by_one_is_sent_by_one_task_until_it_is_cleared() -> None:
    way = Way()
    for entry in range(5):
        way.put(entry)
        assert await way.sent() == [[entry]]
        await way.answer()
    assert way.tasks.started == 1
    for round_ in range(3):
        way.sender.clear()
        await way.sent()
        assert len(asyncio.all_tasks()) == 1, "this one"
        for entry in range(6, 9):
            way.put(entry)
            await way.sent()
        assert await way.sent() == [[6], [7]], f"two at once, in round {round_}, too"
        for _ in range(3):
            await way.answer()
        assert await way.sent() == []


@virtually
async def test_a_bookie_that_has_too_much_to_do_is_asked_again_with_pauses() -> None:
    way = Way()
    way.put(0)
    await way.sent()
    times_s: list[float] = []
    for _ in range(12):
        began_s = asyncio.get_running_loop().time()
        await way.answer(BookieOverloaded("too much"))
        while not await way.sent():
            await asyncio.sleep(0.001)
        times_s.append(asyncio.get_running_loop().time() - began_s)
    assert times_s[0] <= BETWEEN_TRIES.delay_s(1, 0.999) + 0.01 < max(times_s) <= 1.1
    assert way.told == [] and [entries for entries, _ in way.requests] == [[0]] * 13
    await way.answer()
    assert way.told == [(0,)]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BookieReadOnly("full"), Trouble(PlaceState.FULL, "full")),
        (BookieAway("away"), Trouble(PlaceState.AWAY, "away")),
    ],
)
@virtually
async def test_what_a_bookie_refuses_is_told(error: Exception, told: Outcome) -> None:
    way = Way()
    way.put(0)
    await way.sent()
    await way.answer(error)
    assert way.told == [told]


@virtually
async def test_a_fence_is_told_as_it_came() -> None:
    way = Way()
    way.put(0)
    await way.sent()
    fenced = LedgerFenced("a higher term", 9)
    await way.answer(fenced)
    assert way.told == [fenced]
