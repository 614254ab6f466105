"""The vectors of a graceful hand-over: B1 to B5 of one key, moved from one silo to another."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.reference import LEDGER, MEMORY
from tests.streams.ownership.handing import OPEN, Desk, play

from millstream.streams import Capability, OwnershipOptions

KINDS = {"ledger": LEDGER, "memory": MEMORY, "log": LEDGER - {Capability.OWN_POSITION}}
every_kind = pytest.mark.parametrize("capabilities", KINDS.values(), ids=KINDS)
FIRST, SECOND = 1, 2  # epochs of the two owners


async def two_out(desk: Desk) -> None:
    """Let B1 and B2 be out, while B3 waits."""
    desk.shut("B1", "B2")
    await desk.publish("B1", "B2")
    await desk.until(lambda: desk.notes.items() == ["B1"])
    await desk.publish("B3")
    await asyncio.sleep(0.2)


@every_kind
def test_b9_7_what_is_out_ends_at_the_old_owner_and_the_rest_goes_to_the_new_one(
    capabilities: frozenset[Capability],
) -> None:
    async def test(desk: Desk) -> None:
        await two_out(desk)
        started_s = desk.now_s
        desk.give("silo-1")
        await asyncio.sleep(0.5)
        await desk.publish("B4")
        await asyncio.sleep(0.5)
        assert desk.notes.items() == ["B1"]
        desk.open("B1", "B2")
        await desk.until(lambda: len(desk.notes.ended) == 4)
        await desk.publish("B5")
        await desk.until(lambda: len(desk.notes.ended) == 5)
        assert desk.notes.of(FIRST) == [("B1", False), ("B2", False)]
        assert desk.notes.of(SECOND) == [("B3", False), ("B4", False), ("B5", False)]
        pause_s = desk.notes.begun[2].at_s - started_s
        assert 1.0 <= pause_s < 1.1

    play(test, capabilities=capabilities)


@every_kind
def test_b9_8_what_is_not_done_in_time_comes_again_first_and_says_so(
    capabilities: frozenset[Capability],
) -> None:
    async def test(desk: Desk) -> None:
        await two_out(desk)
        desk.open("B1")
        await desk.until(lambda: desk.notes.ended == ["B1"])
        started_s = desk.now_s
        desk.give("silo-1")
        await desk.publish("B4", "B5")
        await desk.until_owner("silo-1")
        assert 3.0 <= desk.now_s - started_s < 3.2
        await asyncio.sleep(1.0)
        desk.open("B2")
        await desk.until(lambda: desk.notes.ended[-1:] == ["B5"])
        assert [item for item in desk.notes.ended if item != "B1"] == ["B2", "B3", "B4", "B5"]
        assert desk.notes.of(SECOND) == [("B3", False), ("B4", False), ("B5", False)]

    play(test, capabilities=capabilities)


@every_kind
@pytest.mark.parametrize("max_handoff_s", [0.5, 0.0], ids=["a short time", "no time"])
@pytest.mark.parametrize("owners", [["silo-1"], ["silo-1", "silo-0"]], ids=len)
def test_b8_5_exactly_what_was_delivered_and_is_not_done_comes_again_first_and_says_so(
    capabilities: frozenset[Capability], max_handoff_s: float, owners: list[str]
) -> None:
    async def test(desk: Desk) -> None:
        await two_out(desk)
        await desk.publish("A1", key="A")
        await desk.until(lambda: "A1" in desk.notes.ended)
        desk.notes.failing.add("B1")
        for owner in owners:
            desk.give(owner)
            await desk.until_owner(owner)
            await asyncio.sleep(0.1)
        await desk.publish("B4", "B5")
        await desk.publish("A2", key="A")
        desk.open("B1", "B2")
        await desk.until(lambda: {"A2", "B5"} <= set(desk.notes.ended))
        ended = [item for item in desk.notes.ended if item[0] == "B"]
        assert ended == ["B1", "B2", "B3", "B4", "B5"]
        later = [(one.item, one.redelivered) for one in desk.notes.begun if one.epoch > FIRST]
        assert sorted(later) == [
            ("A2", False),
            ("B1", True),
            ("B2", True),
            ("B3", False),
            ("B4", False),
            ("B5", False),
        ]

    ownership = OwnershipOptions(max_handoff_s=max_handoff_s)
    play(test, capabilities=capabilities, ownership=ownership)


@every_kind
def test_b9_9_without_hand_over_time_nothing_is_waited_for(
    capabilities: frozenset[Capability],
) -> None:
    async def test(desk: Desk) -> None:
        await two_out(desk)
        started_s = desk.now_s
        desk.give("silo-1")
        await desk.until_owner("silo-1")
        assert desk.now_s - started_s < 0.1
        desk.open("B1", "B2")
        await desk.until(lambda: desk.notes.ended[-1:] == ["B3"])
        assert desk.notes.of(SECOND) == [("B3", False)]

    play(test, capabilities=capabilities, ownership=OwnershipOptions(max_handoff_s=0.0))


def test_b9_10_an_owner_that_dies_while_it_drains_is_waited_for_no_more() -> None:
    async def test(desk: Desk) -> None:
        await two_out(desk)
        desk.give("silo-1")
        await asyncio.sleep(0.5)
        desk.simulation.crash("silo-0")
        assert desk.cluster.table is not None
        silo = desk.cluster.silo("silo-1")
        assert silo is not None
        async with asyncio.timeout(30):
            while any(m.name == "silo-0" and m.status.value != "dead" for m in silo.members()):
                await asyncio.sleep(0.01)
        noticed_s = desk.now_s
        await desk.until_owner("silo-1")
        assert desk.now_s - noticed_s < 0.1
        desk.open("B1", "B2")
        await desk.until(lambda: desk.notes.ended[-1:] == ["B3"])

    play(test, ownership=OwnershipOptions(max_handoff_s=50.0))


def test_b9_11_streams_of_a_queue_wait_for_what_is_out_of_it_and_no_longer() -> None:
    """The queue moves as a whole: A waits for B, for as long as one delivery of B takes."""

    async def test(desk: Desk) -> None:
        await two_out(desk)
        await desk.publish("A1", key="A")
        await asyncio.sleep(0.1)
        desk.give("silo-1")
        await desk.publish("A2", key="A")
        await asyncio.sleep(1.0)
        assert desk.notes.items() == ["B1", "A1"]
        desk.open("B1", "B2")
        opened_s = desk.now_s
        await desk.until(lambda: "A2" in desk.notes.ended and "B3" in desk.notes.ended)
        assert desk.now_s - opened_s < 0.2

    play(test)


NO_WAIT = OwnershipOptions(max_handoff_s=0.0)


@every_kind
def test_b9_11_b8_20_without_hand_over_time_only_streams_with_something_out_wait(
    capabilities: frozenset[Capability],
) -> None:
    """Redelivered events of B wait in their grain for those that are out, and are then known."""

    async def test(desk: Desk) -> None:
        await two_out(desk)
        await desk.publish("A1", key="A")
        await desk.until(lambda: "A1" in desk.notes.ended)
        desk.give("silo-1")
        started_s = desk.now_s
        await desk.publish("A2", key="A")
        await desk.until(lambda: "A2" in desk.notes.ended)
        assert desk.now_s - started_s < 0.1
        await asyncio.sleep(1.0)
        assert [item for item in desk.notes.items() if item[0] == "B"] == ["B1"]
        desk.open("B1", "B2")
        await desk.until(lambda: "B3" in desk.notes.ended)
        assert [item for item in desk.notes.items() if item[0] == "B"] == ["B1", "B2", "B3"]
        assert not any(one.redelivered for one in desk.notes.begun)

    play(test, capabilities=capabilities, ownership=NO_WAIT)


@every_kind
def test_b8_21_a_stream_waits_for_its_own_handler_and_for_no_other_one(
    capabilities: frozenset[Capability],
) -> None:
    async def test(desk: Desk) -> None:
        desk.shut("A1", "B1")
        for key in "AB":
            await desk.publish(f"{key}1", key=key)
            await desk.until(lambda key=key: f"{key}1" in desk.notes.items())  # type: ignore[misc]
            await desk.publish(f"{key}2", key=key)
        desk.give("silo-1")
        await asyncio.sleep(1.0)
        assert desk.notes.items() == ["A1", "B1"]
        desk.open("B1")
        opened_s = desk.now_s
        await desk.until(lambda: "B2" in desk.notes.ended)
        assert desk.now_s - opened_s < 0.1
        assert desk.notes.items() == ["A1", "B1", "B2"]
        desk.open("A1")
        await desk.until(lambda: "A2" in desk.notes.ended)

    play(test, capabilities=capabilities, ownership=NO_WAIT)


@every_kind
@pytest.mark.parametrize("fails", [False, True])
def test_a_reentrant_grain_has_one_event_of_a_stream_at_a_time_over_a_hand_over_too(
    capabilities: frozenset[Capability], fails: bool
) -> None:
    async def test(desk: Desk) -> None:
        desk.shut("B1")
        stream = desk.home.stream(OPEN, "B")
        await stream.publish("B1")
        await desk.until(lambda: desk.notes.items() == ["B1"])
        await stream.publish("B2")
        desk.notes.failing |= {"B1"} if fails else set()
        desk.give("silo-1")
        await desk.until_owner("silo-1")
        await asyncio.sleep(1.0)
        assert desk.notes.items() == ["B1"]
        desk.give("silo-0")
        await desk.until_owner("silo-0")
        await asyncio.sleep(1.0)
        assert desk.notes.items() == ["B1"]
        desk.open("B1")
        await desk.until(lambda: "B2" in desk.notes.ended)
        assert desk.notes.ended == ["B1", "B2"]
        again = [("B1", True)] if fails else []
        seen = [(one.item, one.redelivered) for one in desk.notes.begun]
        assert seen == [("B1", False), *again, ("B2", False)]

    play(test, capabilities=capabilities, ownership=NO_WAIT)
