"""Acknowledging by hand: over time-outs, other activations, and hand-overs."""

from __future__ import annotations

import asyncio

import pytest
from tests.contract.reference import LEDGER, MEMORY
from tests.streams.ownership.handing import Desk, play

from millstream.runtime.extending import Backoff
from millstream.streams import Capability, DeliveryOptions, OwnershipOptions

KINDS = {"ledger": LEDGER, "memory": MEMORY, "log": LEDGER - {Capability.OWN_POSITION}}
every_kind = pytest.mark.parametrize("capabilities", KINDS.values(), ids=KINDS)
FIRST, SECOND = 1, 2  # epochs of the two owners
NEW, AGAIN = False, True
QUICK = DeliveryOptions(
    max_batch=2, max_unacked=3, ack_timeout_s=5.0, retries=1, backoff=Backoff(0.1, 2, 0.1)
)


async def until_seen(desk: Desk, count: int) -> None:
    await desk.until(lambda: len(desk.notes.begun) == count)


async def until_done(desk: Desk, name: str) -> None:
    await desk.until(lambda: desk.agent(name).undone == 0)


@every_kind
def test_what_is_not_acknowledged_is_not_done_until_it_is(
    capabilities: frozenset[Capability],
) -> None:
    async def test(desk: Desk) -> None:
        await desk.keep("B1", "B2", "B3")
        await until_seen(desk, 3)
        await asyncio.sleep(2.0)
        assert desk.agent("silo-0").undone == 3
        await desk.keeper.acknowledge("B2")
        await desk.until(lambda: desk.agent("silo-0").undone == 1)
        await desk.keeper.acknowledge("B1")  # late
        await desk.keeper.acknowledge("B2")  # twice
        await desk.keep("B4!")
        await until_done(desk, "silo-0")
        assert desk.notes.of(FIRST) == [(item, NEW) for item in ("B1", "B2", "B3", "B4!")]

    play(test, capabilities=capabilities)


def test_at_most_so_many_are_out_and_the_others_wait() -> None:
    async def test(desk: Desk) -> None:
        await desk.keep("B1", "B2", "B3", "B4", "B5")
        await until_seen(desk, 3)
        await asyncio.sleep(2.0)
        assert desk.notes.items() == ["B1", "B2", "B3"]
        await desk.keeper.acknowledge("B1")
        await until_seen(desk, 4)
        await desk.keeper.acknowledge("B4")
        await until_seen(desk, 5)
        await desk.keeper.acknowledge("B5")
        await until_done(desk, "silo-0")
        assert desk.notes.items() == ["B1", "B2", "B3", "B4", "B5"]

    play(test, delivery=QUICK)


def test_what_is_not_acknowledged_in_time_comes_again_in_order_and_says_so() -> None:
    async def test(desk: Desk) -> None:
        await desk.keep("B1", "B2", "B3")
        await until_seen(desk, 3)
        await desk.keeper.acknowledge("B1")
        await desk.keep("B4")
        await until_seen(desk, 4)
        started_s = desk.notes.begun[0].at_s
        await until_seen(desk, 7)
        assert desk.notes.of(FIRST)[4:] == [("B2", AGAIN), ("B3", AGAIN), ("B4", AGAIN)]
        assert 4.9 < desk.notes.begun[4].at_s - started_s < 5.5
        await desk.keeper.acknowledge("B4")
        await until_done(desk, "silo-0")
        await asyncio.sleep(10.0)
        assert len(desk.notes.begun) == 7

    play(test, delivery=QUICK)


def test_another_activation_gets_first_what_the_former_one_had_not_acknowledged() -> None:
    async def test(desk: Desk) -> None:
        await desk.keep("B1", "B2")
        await until_seen(desk, 2)
        await desk.keeper.leave()
        await desk.keep("B3!")
        await until_done(desk, "silo-0")
        assert desk.notes.of(FIRST)[2:] == [("B1", AGAIN), ("B2", AGAIN), ("B3!", NEW)]

    play(test)


def test_an_event_that_is_given_up_between_others_does_not_come_again() -> None:
    async def test(desk: Desk) -> None:
        desk.shut("B2")
        await desk.keep("B1", "B2", "B3")
        await desk.until(lambda: desk.notes.items()[-1:] == ["B3"])
        assert desk.notes.items() == ["B1", "B2", "B2", "B3"]
        await desk.until(lambda: len(desk.notes.begun) == 6)
        assert desk.notes.of(FIRST)[4:] == [("B1", AGAIN), ("B3", AGAIN)]
        await desk.keeper.acknowledge("B1")
        await desk.until(lambda: desk.agent("silo-0").undone == 1)
        await desk.keeper.acknowledge("B3")
        await until_done(desk, "silo-0")

    play(test, delivery=QUICK)


@every_kind
def test_b1_to_b5_acknowledged_only_after_b5_with_a_hand_over_in_the_middle_end_clean(
    capabilities: frozenset[Capability],
) -> None:
    async def test(desk: Desk) -> None:
        await desk.keep("B1", "B2")
        await until_seen(desk, 2)
        started_s = desk.now_s
        desk.give("silo-1")
        await asyncio.sleep(0.5)
        await desk.keep("B3", "B4")
        await desk.until_owner("silo-1")
        assert 2.9 < desk.now_s - started_s < 3.3  # the wait for the acknowledgements
        await desk.keep("B5!")
        await until_done(desk, "silo-1")
        assert desk.notes.of(FIRST) == [("B1", NEW), ("B2", NEW)]
        rest = [("B3", NEW), ("B4", NEW), ("B5!", NEW)]
        assert desk.notes.of(SECOND) == [("B1", AGAIN), ("B2", AGAIN), *rest]
        desk.give("silo-0")
        await desk.until_owner("silo-0")
        handed = (await desk.record()).listed
        assert handed == ()
        await asyncio.sleep(5.0)
        assert len(desk.notes.begun) == 7

    play(test, capabilities=capabilities)


@every_kind
def test_what_is_acknowledged_while_the_queue_is_handed_over_is_done(
    capabilities: frozenset[Capability],
) -> None:
    async def test(desk: Desk) -> None:
        await desk.keep("B1", "B2")
        await until_seen(desk, 2)
        await desk.keep("B3")
        await until_seen(desk, 3)
        started_s = desk.now_s
        desk.give("silo-1")
        await asyncio.sleep(1.0)
        await desk.keeper.acknowledge("B3")
        await desk.until_owner("silo-1")
        assert desk.now_s - started_s < 1.1
        await desk.keep("B4!")
        await until_done(desk, "silo-1")
        assert desk.notes.items() == ["B1", "B2", "B3", "B4!"]
        assert not any(one.redelivered for one in desk.notes.begun)

    play(test, capabilities=capabilities)


def test_an_acknowledgement_that_the_agent_does_not_hear_is_kept_by_the_activation() -> None:
    async def test(desk: Desk) -> None:
        await desk.keep("B1", "B2", "B3")
        await until_seen(desk, 3)
        desk.give("silo-1")
        await desk.until_owner("silo-1")
        desk.simulation.crash("silo-0")
        await desk.until(lambda: len(desk.notes.of(SECOND)) == 3)
        await desk.keeper.acknowledge("B3")
        await desk.keep("B4!")
        await until_done(desk, "silo-1")
        assert desk.notes.of(SECOND)[3:] == [("B4!", NEW)]

    play(test, ownership=OwnershipOptions(max_handoff_s=0.0))


def test_what_was_not_acknowledged_comes_again_after_a_crash() -> None:
    async def test(desk: Desk) -> None:
        await desk.keep("B1", "B2", "B3")
        await until_seen(desk, 3)
        await desk.keeper.acknowledge("B1")
        await asyncio.sleep(3.0)  # the record is written once a second
        desk.simulation.crash("silo-0")
        desk.give("silo-1")
        async with asyncio.timeout(60.0):
            await desk.until_owner("silo-1")
        await desk.until(lambda: len(desk.notes.of(SECOND)) == 2)
        assert desk.notes.of(SECOND) == [("B2", AGAIN), ("B3", AGAIN)]
        await desk.keeper.acknowledge("B3")
        await until_done(desk, "silo-1")

    play(test)
