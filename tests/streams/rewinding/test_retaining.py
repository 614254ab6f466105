"""Outside readers that retain unread messages: refused calls, and wrong answers of adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import Context
from typing import Any

import pytest

from millstream.runtime import ConfigError, MemoryStateStore, QueueUnavailable
from millstream.runtime.extending import Tasks
from millstream.streams import Token
from millstream.streams.contracts.answers import AdapterFault
from millstream.streams.rewinding.adapter_calls import FORM, QUEUES_MAX, AdapterCalls
from millstream.streams.rewinding.claims import ReaderClaims
from millstream.streams.rewinding.incarnation import Incarnation
from millstream.streams.rewinding.retain_target import READER_CHARS_MAX, RetainTarget


class Keeper:
    """The parts of an adapter that the target calls."""

    def __init__(self) -> None:
        self.positions: dict[str, dict[str, Token]] = {"q0": {}, "q1": {}}
        self.odd: dict[str, Any] = {}

    async def answer(self, queue: str) -> Any:
        odd = self.odd.get(queue)
        if isinstance(odd, Exception):
            raise odd
        if odd == "silent":
            await asyncio.Event().wait()
        return odd

    async def retain(self, queue: str, reader: str, position: Token | None, /) -> None:
        await self.answer(queue)
        self.positions[queue][reader] = position or Token(0, 1)

    async def let_go(self, queue: str, reader: str, /) -> None:
        await self.answer(queue)
        self.positions[queue].pop(reader, None)

    async def list_retained(self, queue: str, /) -> Mapping[str, Token]:
        return await self.answer(queue) or self.positions[queue]


class NoKeeper:
    def reader(self, queue: str, /) -> None: ...


def target_of(adapter: object, limit_s: float = 5.0, refusal: str = "") -> RetainTarget:
    tasks = Tasks(asyncio.get_running_loop(), Context)
    store = MemoryStateStore()
    incarnation = Incarnation(store, "p", lambda: 7)
    queues = ["q0", "q1"]
    calls = AdapterCalls("p", adapter, lambda: queues, tasks, limit_s, incarnation, refusal)
    return RetainTarget(calls, ReaderClaims(store, "p"))


async def test_queues_are_retained_by_name_and_let_go_wherever_they_are_read() -> None:
    keeper = Keeper()
    target = target_of(keeper)
    await target.retain(FORM, "", "r", "", {"q0": Token(0, 7), "q1": None})
    await target.retain(FORM, "", "s", "", {"q1": Token(0, 3)})
    assert await target.list_retained(FORM) == {
        "r": {"q0": Token(0, 7), "q1": Token(0, 1)},
        "s": {"q1": Token(0, 3)},
    }
    keeper.positions["old"] = {"r": Token(0, 1)}
    await target.let_go(FORM, "r", ["old"])
    assert keeper.positions == {"q0": {}, "q1": {"s": Token(0, 3)}, "old": {}}


async def test_what_cannot_be_retained_is_refused_with_what_to_do() -> None:
    for target, form, name, said in (
        (target_of(NoKeeper()), FORM, "r", "keeps no messages for named readers.*LedgerQueues"),
        (target_of(Keeper(), refusal="it has no REWIND"), FORM, "r", "it has no REWIND"),
        (target_of(Keeper()), FORM + 1, "r", "install the same version"),
        (target_of(Keeper()), FORM, "", "has 0 characters; it must have 1 to 200"),
        (target_of(Keeper()), FORM, "r" * (READER_CHARS_MAX + 1), "has 201 characters"),
    ):
        with pytest.raises(ConfigError, match=said):
            await target.retain(form, "", name, "", {"q0": None})
        with pytest.raises(ConfigError, match=said):
            await target.let_go(form, name, [])
    with pytest.raises(ConfigError, match="keeps no messages"):
        await target_of(NoKeeper()).list_retained(FORM)
    with pytest.raises(TypeError, match="the name of a reader, .* has a lone surrogate"):
        await target_of(Keeper()).retain(FORM, "", "r\ud800", "", {"q0": None})
    many: dict[str, Token | None] = {f"q{at}": None for at in range(QUEUES_MAX + 1)}
    with pytest.raises(ValueError, match="QUEUES_MAX is"):
        await target_of(Keeper()).retain(FORM, "", "r", "", many)
    with pytest.raises(ValueError, match="has 0 bytes"):
        await target_of(Keeper()).retain(FORM, "", "r", "", {"": None})


async def test_one_queue_that_fails_is_told_once_the_others_have_answered() -> None:
    keeper = Keeper()
    target = target_of(keeper)
    for odd, kind, said in (
        (QueueUnavailable("not now"), QueueUnavailable, "not now"),
        (ConfigError("too many"), ConfigError, "too many"),
        (KeyError("x"), AdapterFault, "queue q0: retain raised KeyError"),
    ):
        keeper.odd["q0"] = odd
        keeper.positions["q1"].clear()
        with pytest.raises(kind, match=said):
            await target.retain(FORM, "", "r", "", {"q0": None, "q1": None})
        assert "r" in keeper.positions["q1"]


async def test_an_adapter_that_does_not_answer_or_oddly_is_named() -> None:
    keeper = Keeper()
    target = target_of(keeper, limit_s=0.01)
    keeper.odd["q1"] = "silent"
    with pytest.raises(AdapterFault, match="queue q1: let_go did not answer within call_limit_s"):
        await target.let_go(FORM, "r", [])
    for odd in ([1], {"r": 1}, {1: Token(0, 1)}):
        keeper.odd["q1"] = odd
        with pytest.raises(AdapterFault, match="queue q1: list_retained returned .*, not a map"):
            await target.list_retained(FORM)
