"""Filters the items of one delivery: the items that are done or sent, and the delay for others."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millstream.runtime.extending import Budget
from millstream.runtime.repeated import LINES_MAX
from millstream.streams import StreamId, Token
from millstream.streams.agent.delivery.item_filter import FILTER_SLOW_S, FilteredItems, ItemFilter
from millstream.streams.agent.delivery.steps import (
    CallReply,
    Failure,
    FailureKind,
    Unreachable,
)
from millstream.streams.api.filters.event_filter import EventFilter
from millstream.streams.contracts.item import Item

STREAM = StreamId("ns", "k")
FAILED = Failure(FailureKind.FILTER, "it raised")
WRONG = Failure(FailureKind.HANDLER, "the handler raised")


def items(count: int) -> list[Item]:
    return [Item(Token(1, number), b"", None) for number in range(count)]


class Fits(EventFilter):
    """Accepts even items; each check takes `takes_s` of the test's own clock."""

    def __init__(self, takes_s: float = 0.0, fails_at: int = -1) -> None:
        self.label = "Reader.is_even"
        self.now_s, self.takes_s, self.fails_at = 0.0, takes_s, fails_at
        self.call_soon = asyncio.get_running_loop().call_soon

    def now(self) -> float:
        return self.now_s

    time = now  # also replaces the loop's clock, which on uvloop does not move for a millisecond

    def fits(self, item: Item, stream: StreamId, subscription: str) -> bool:
        self.now_s += self.takes_s
        if item.token.seq == self.fails_at:
            raise ValueError("no")
        return item.token.seq % 2 == 0

    def gives_up_on(self, error: BaseException) -> bool:
        return isinstance(error, ValueError)


def sifter(clock: Any, slice_s: float = 0.001) -> ItemFilter:
    return ItemFilter(clock, Budget(clock, slice_s))


SUBSCRIBER: Any = SimpleNamespace(stream=STREAM, id="s")


async def test_those_that_fit_are_found_up_to_the_failure() -> None:
    fits = Fits(fails_at=5)
    sifted = await sifter(fits).sift(SUBSCRIBER, fits, items(9))
    assert (sifted.fitting, sifted.seen) == ([0, 2, 4], 5)
    assert sifted.failure is not None and sifted.failure.kind is FailureKind.FILTER
    assert sifted.failure.is_final
    assert "ValueError: no" in sifted.failure.text and "Reader.is_even" in sifted.failure.text


async def test_a_filter_that_takes_long_is_named_and_a_flood_of_that_is_some_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = Fits(takes_s=2 * FILTER_SLOW_S)
    with caplog.at_level(logging.WARNING):
        await sifter(slow).sift(SUBSCRIBER, slow, items(LINES_MAX + 5))
    assert len(caplog.records) == LINES_MAX
    assert "filter Reader.is_even of subscription s blocked its silo for 100 ms" in caplog.text
    caplog.clear()
    quick = Fits(takes_s=FILTER_SLOW_S / 2)
    await sifter(quick).sift(SUBSCRIBER, quick, items(5))
    assert not caplog.records


async def test_others_get_their_turn_between_the_items() -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    beating = asyncio.ensure_future(beat())
    fits = Fits(takes_s=50e-6)
    await sifter(fits, slice_s=0.001).sift(SUBSCRIBER, fits, items(2_000))
    beating.cancel()
    assert beats >= 2_000 * 50e-6 / 0.001 / 5, "a slice is 20 items, and the looks add some"


@given(
    st.lists(st.booleans(), min_size=1, max_size=8),
    st.booleans(),
    st.integers(0, 8),
    st.booleans(),
)
def test_what_is_told_of_those_that_fit_is_told_of_all(
    pattern: list[bool], fails: bool, done: int, raised: bool
) -> None:
    fitting = [at for at, fits in enumerate(pattern) if fits]
    assume(fitting)  # otherwise nothing is sent or answered
    sifted = FilteredItems(fitting, len(pattern), FAILED if fails else None)
    done = min(done, len(fitting))
    error = WRONG if raised and done < len(fitting) else None
    told = sifted.widen(CallReply(done, error, 1.0, 0.5))
    assert isinstance(told, CallReply) and (told.at_s, told.roll) == (1.0, 0.5)
    undone = fitting[done:]
    if done == 0 and error is None and undone:
        assert told.done == 0 and told.error is None, "an answer that tells nothing"
        return
    assert all(at < told.done for at in fitting[:done])
    assert told.done == (undone[0] if undone else len(pattern))
    assert told.is_heard == (done > 0)
    assert told.error == (error if undone else sifted.failure)


def test_a_call_without_an_answer_moves_nothing() -> None:
    lost = Unreachable("away", 1.0, 0.5)
    assert FilteredItems([2], 4, FAILED).widen(lost) is lost
