"""One run of a reader at a time has its name; a silent run loses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.streams.rewinding.test_retaining import Keeper, target_of

from millstream.runtime import ConfigError, MemoryStateStore
from millstream.runtime.testing import Simulation, run
from millstream.streams import Token
from millstream.streams.extending import QueueReads
from millstream.streams.rewinding.adapter_calls import FORM
from millstream.streams.rewinding.claims import Holder, ReaderClaims, claim
from millstream.streams.rewinding.outside import CLAIM_S, RENEW_S
from millstream.streams.rewinding.retain_target import RUN_CHARS_MAX, RetainTarget


class Direct:
    """A gateway that calls one target."""

    def __init__(self) -> None:
        self.keeper = Keeper()
        self.target = target_of(self.keeper)

    def call(
        self, where: str, target: str, method: Callable[..., Any], *arguments: Any
    ) -> Coroutine[Any, Any, Any]:
        found: Coroutine[Any, Any, Any] = method(self.target, *arguments)
        return found


def in_time(main: Callable[[QueueReads, RetainTarget], Coroutine[Any, Any, None]]) -> None:
    """Run a test in virtual time."""

    async def driver(simulation: Simulation) -> None:
        gateway: Any = Direct()
        await main(QueueReads(gateway, "p", "n"), gateway.target)

    run(driver, 1, max_virtual_s=1_000)


async def renewed(reads: QueueReads, run: str) -> None:
    while True:
        await asyncio.sleep(RENEW_S)
        await reads.claim("r", run)


def test_a_name_is_claimed_renewed_and_taken_over_as_it_was_seen_only() -> None:
    first = claim(None, "a", None)
    assert first == Holder("a", 1) and claim(first, "a", None) == Holder("a", 2)
    assert claim(first, "b", None) is None and claim(first, "b", Holder("a", 2)) is None
    assert claim(first, "b", first) == Holder("b", 2)


def test_a_run_that_renews_its_claim_keeps_the_name_and_another_is_refused() -> None:
    async def main(reads: QueueReads, target: RetainTarget) -> None:
        await reads.claim_in_turn("r", "old")
        alive = asyncio.ensure_future(renewed(reads, "old"))
        with pytest.raises(ConfigError, match="in use by another run .old.: stop that query"):
            await reads.claim_in_turn("r", "new")
        await reads.retain("r", {"q0": Token(0, 7)}, run="old")
        alive.cancel()

    in_time(main)


def test_a_run_that_is_silent_loses_the_name_and_is_told_so() -> None:
    async def main(reads: QueueReads, target: RetainTarget) -> None:
        loop = asyncio.get_running_loop()
        await reads.claim_in_turn("r", "old")
        begun_s = loop.time()
        await reads.claim_in_turn("r", "new")
        assert CLAIM_S <= loop.time() - begun_s <= CLAIM_S + 2 * RENEW_S
        await reads.retain("r", {"q0": Token(0, 7)}, run="new")
        with pytest.raises(ConfigError, match="this run .old. lost the name to another run .new."):
            await reads.retain("r", {"q0": Token(0, 9)}, run="old")
        assert (await reads.claim("r", "old")).run == "new"
        await reads.release("r", "old")  # the run no longer has the name
        assert (await reads.claim("r", "third")).run == "new"
        assert await reads.list_retained() == {"r": {"q0": Token(0, 7)}}

    in_time(main)


def test_a_run_whose_last_renewal_is_late_does_not_hold_up_the_next() -> None:
    async def main(reads: QueueReads, target: RetainTarget) -> None:
        await reads.claim_in_turn("r", "old")
        waiting = asyncio.ensure_future(reads.claim_in_turn("r", "new"))
        await asyncio.sleep(RENEW_S / 2)
        await reads.claim("r", "old")  # this call was under way before
        renewed_s = asyncio.get_running_loop().time()
        await waiting
        assert asyncio.get_running_loop().time() - renewed_s >= CLAIM_S
        assert (await reads.claim("r", "old")).run == "new"

    in_time(main)


def test_a_name_that_is_given_up_or_let_go_is_free_at_once() -> None:
    async def main(reads: QueueReads, target: RetainTarget) -> None:
        for free in (reads.release("r", "old"), reads.let_go("r")):
            await reads.claim_in_turn("r", "old")
            await free
            assert (await reads.claim("r", "new")).run == "new"
            await reads.release("r", "new")

    in_time(main)


async def test_runs_that_claim_at_once_are_one_after_the_other() -> None:
    claims = ReaderClaims(MemoryStateStore(), "p")
    found = await asyncio.gather(*(claims.claim("r", f"run-{n}", None) for n in range(5)))
    assert len(set(found)) == 1


async def test_a_run_without_a_name_and_one_with_a_long_one_are_refused() -> None:
    target = target_of(Keeper())
    for name in ("", "x" * (RUN_CHARS_MAX + 1)):
        with pytest.raises(ConfigError, match="the name of a run has"):
            await target.claim(FORM, "r", name, None)


async def test_positions_of_another_incarnation_move_nothing() -> None:
    keeper = Keeper()
    target = target_of(keeper)
    await target.retain(FORM, f"{7:016x}", "r", "", {"q0": Token(0, 7)})
    with pytest.raises(ConfigError, match="incarnation 0000000000000007 here.* new checkpoint"):
        await target.retain(FORM, "another", "r", "", {"q0": Token(0, 9)})
    assert keeper.positions["q0"] == {"r": Token(0, 7)}
