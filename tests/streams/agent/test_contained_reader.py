"""Calls to a faulty reader of a queue end, and its fault is named."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import pytest

from millstream.runtime import CursorTooOld
from millstream.runtime.extending import Tasks
from millstream.streams import Page, StreamId, Token
from millstream.streams.agent.findings import QueueFindings
from millstream.streams.agent.queue_epoch import QueueEpoch
from millstream.streams.agent.reading.catch_up import ContainedReader
from millstream.streams.contracts.answers import AdapterFault

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


class FixedClock:
    def now(self) -> float:
        return 0.0

    def wall_s(self) -> float:
        return 0.0


class OddReader:
    """Does the same in each call: raises, returns, or ignores cancellation and never ends."""

    def __init__(self, does: Any) -> None:
        self.does = does
        self.is_freed = False

    async def bounds(self) -> Any:
        while self.does == "hang" and not self.is_freed:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue
        if isinstance(self.does, BaseException):
            raise self.does
        return self.does

    async def seek(self, when: datetime, /) -> Any:
        return await self.bounds()

    async def read_from(self, *arguments: Any) -> Any:
        return await self.bounds()

    async def aclose(self) -> None:
        await self.bounds()


class Desk:
    """Makes readers with these faults, one after the other."""

    def __init__(self, *does: Any) -> None:
        self.readers = [OddReader(one) for one in does]
        self.made = 0
        loop = asyncio.get_running_loop()
        self.tasks = Tasks(loop, contextvars.Context, "test")
        epoch = QueueEpoch("p", "q", 1, "silo", lambda queue: None)
        self.findings = QueueFindings(epoch, FixedClock())  # type: ignore[arg-type]
        self.reader = ContainedReader(self.make, "p: q", self.findings, self.tasks, 0.01)

    def make(self) -> OddReader:
        self.made += 1
        return self.readers[self.made - 1]


def asked(desk: Desk) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "bounds": desk.reader.bounds,
        "seek": lambda: desk.reader.seek(WHEN),
        "read_from": lambda: desk.reader.page(Token(1, 1), 9, 9, frozenset([StreamId("n", "a")])),
    }


@pytest.mark.parametrize("method", ["bounds", "seek", "read_from"])
@pytest.mark.parametrize(
    "error", [ValueError("odd"), asyncio.CancelledError("odd")], ids=["error", "cancelled"]
)
async def test_an_error_names_provider_queue_adapter_and_method(
    method: str, error: BaseException
) -> None:
    desk = Desk(error)
    text = f"p: q: OddReader.{method} raised {type(error).__name__}: odd"
    with pytest.raises(AdapterFault, match=f"^{text}$"):
        await asked(desk)[method]()


@pytest.mark.parametrize("method", ["bounds", "seek", "read_from"])
async def test_a_call_that_never_ends_is_left_behind(method: str) -> None:
    desk = Desk("hang")
    text = f"p: q: OddReader.{method} gave no answer for 0.01 s, and was abandoned"
    with pytest.raises(AdapterFault, match=f"^{text}$"):
        await asked(desk)[method]()
    assert len(desk.tasks) == 1, "it did not end although it was cancelled"
    desk.readers[0].is_freed = True
    await asyncio.wait(list(desk.tasks))


@pytest.mark.parametrize(
    ("method", "answer", "said"),
    [
        ("bounds", None, "did not return two tokens"),
        ("bounds", (Token(1, 1), 7), "did not return two tokens"),
        ("bounds", (Token(1, 1),), "did not return two tokens"),
        ("seek", "1-1", "did not return a token or None"),
        ("read_from", [], "did not return a Page"),
        ("read_from", Page([], Token(1, 1), False), "returned a Page with next="),
    ],
)
async def test_a_wrong_answer_is_a_fault(method: str, answer: object, said: str) -> None:
    with pytest.raises(AdapterFault, match=f"^p: q: OddReader.{method} {said}"):
        await asked(Desk(answer))[method]()


async def test_an_answer_is_given_as_it_is() -> None:
    last, page = Token(1, 9), Page([], Token(1, 2), True)
    gone = CursorTooOld("gone", first=Token(1, 5))
    assert await Desk((None, last)).reader.bounds() == (None, last)
    assert await Desk(None).reader.seek(WHEN) is None
    assert await Desk(last).reader.seek(WHEN) == last
    assert await asked(Desk(page))["read_from"]() is page
    assert await asked(Desk(gone))["read_from"]() is gone


async def test_a_reader_that_does_not_close_is_counted_and_the_next_call_makes_another() -> None:
    desk = Desk(Token(1, 9), "hang")
    async with aclosing(desk.reader) as reader:
        assert await reader.seek(WHEN) == Token(1, 9)
        desk.readers[0].does = ValueError("odd")
    assert desk.findings.last_fault == "p: q: OddReader.aclose raised ValueError: odd"
    desk.readers[1].does = Token(1, 7)
    assert await desk.reader.seek(WHEN) == Token(1, 7) and desk.made == 2


async def test_a_reader_that_cannot_be_made_is_a_fault() -> None:
    desk = Desk()
    with pytest.raises(AdapterFault, match=r"^p: q: .*\.seek raised IndexError"):
        await desk.reader.seek(WHEN)
    await desk.reader.aclose()
    assert desk.findings.fault_count == 0, "there is nothing to close"
