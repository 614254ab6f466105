"""Balancing and generated events (rows 114 to 124): the readers of queues, and their changes."""

from __future__ import annotations

import asyncio
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.streams.conformance.actors import LINES, Listener, ears
from tests.streams.conformance.adapters import NUMBERS, PUBLISHES, SURVIVES, Feed
from tests.streams.conformance.place import Place, conforms

from millstream.balancers import DeploymentBalancer, LeaseBalancer, RingBalancer, best_fit
from millstream.runtime import StreamError
from millstream.streams import (
    OwnershipOptions,
    QueueId,
    SiloSet,
    StreamOptions,
    pause_queue,
    resume_queue,
)
from millstream.streams.testing import owners, wait_owned

TEN = list(range(10))
NAMES = st.lists(st.text("abcdef", min_size=1, max_size=4), unique=True, min_size=1, max_size=9)


@pytest.mark.row(114)
@settings(max_examples=examples(200))
@given(queues=NAMES, silos=NAMES)
def test_shares_differ_by_one_at_most_place_everything_once_and_do_not_depend_on_order(
    queues: list[str], silos: list[str]
) -> None:
    found = best_fit(queues, silos)
    placed = [queue for share in found.values() for queue in share]
    assert sorted(placed) == sorted(queues) and set(found) <= set(silos)
    sizes = [len(found.get(silo, ())) for silo in silos]
    assert max(sizes) - min(sizes) <= 1
    shuffled = best_fit(list(reversed(queues)), list(reversed(silos)))
    assert {silo: set(share) for silo, share in found.items() if share} == {
        silo: set(share) for silo, share in shuffled.items() if share
    }


@pytest.mark.row(114)
def test_half_of_the_silos_share_everything_and_move_no_queue_of_the_others_twice() -> None:
    queues, silos = [f"q{n}" for n in range(16)], [f"s{n}" for n in range(8)]
    held = {queue: silo for silo, share in best_fit(queues, silos).items() for queue in share}
    half = best_fit(queues, silos[:4], held=held)
    assert sorted(len(share) for share in half.values()) == [4, 4, 4, 4]
    stays = [queue for silo, share in half.items() for queue in share if held[queue] == silo]
    assert len(stays) == 8


def sizes(place: Place) -> list[int]:
    """Return the number of queues that each silo reads, with silos that read none."""
    counts = Counts(owners(place.cluster).values())
    return sorted(counts[silo.services.name] for silo in place.cluster.silos())


LEASED = StreamOptions(ownership=OwnershipOptions(lease_s=15))


@pytest.mark.parametrize("how", ["stop", "crash"])
@conforms(116, needs=[SURVIVES], silos=4, queues=6, balancer=LeaseBalancer, options=LEASED)
async def test_six_leased_queues_go_to_the_silos_that_are_there(place: Place, how: str) -> None:
    async def even(wanted: list[int]) -> None:
        await place.until(lambda: sizes(place) == wanted, within_s=120)

    async def end(number: int) -> None:
        await place.leave(number) if how == "stop" else place.crash(number)

    await even([1, 1, 2, 2])
    await end(3)
    await even([2, 2, 2])
    await end(2)
    await even([3, 3])
    await place.join(2)
    await even([2, 2, 2])


async def stop_while_queues_move(place: Place) -> None:
    await place.grain(Listener, "a").listen("s")
    for number in (1, 2):
        place.cluster.boot(f"silo-{number}")
        await place.calm(3)
        await place.leave(0 if number == 1 else 1)
        await place.calm(20)
    await place.until(lambda: sizes(place) == [6], within_s=200)
    await place.publish(LINES, "s", *TEN)
    await place.until_came("a", *TEN)


MOVING: dict[str, Any] = {"silos": 3, "up": 1, "queues": 6, "options": LEASED}


@conforms(120, needs=[PUBLISHES], silos=2, queues=8)
async def test_queues_are_stopped_and_started_by_hand_and_nothing_is_read_meanwhile(
    place: Place,
) -> None:
    await place.grain(Listener, "a").listen("s")
    queues = await wait_owned(place.cluster)
    await place.until(lambda: sizes(place) == [4, 4])
    await asyncio.gather(*(pause_queue(place.client, queue) for queue in queues))
    await place.until(lambda: owners(place.cluster) == {})
    await place.publish(LINES, "s", *TEN)
    await place.calm(5)
    assert place.stats() == [] and not ears.by["a"]
    await asyncio.gather(*(resume_queue(place.client, queue) for queue in queues))
    await place.until(lambda: sizes(place) == [4, 4])
    await place.until_came("a", *TEN)


@conforms(117, needs=[PUBLISHES], balancer=DeploymentBalancer, **MOVING)
async def test_a_silo_that_stops_while_a_deployment_moves_queues_leaves_none(place: Place) -> None:
    await stop_while_queues_move(place)


@conforms(117, needs=[PUBLISHES], balancer=LeaseBalancer, **MOVING)
async def test_a_silo_that_stops_while_leases_move_queues_leaves_none(place: Place) -> None:
    await stop_while_queues_move(place)


@conforms(117, needs=[PUBLISHES], balancer=RingBalancer, **MOVING)
async def test_a_silo_that_stops_while_a_ring_moves_queues_leaves_none(place: Place) -> None:
    await stop_while_queues_move(place)


@conforms(
    118,
    only="memory",
    silos=4,
    up=2,
    queues=8,
    balancer=lambda: DeploymentBalancer(rebalance_delay_s=60),
)
async def test_queues_move_to_silos_that_joined_after_the_delay_and_together(place: Place) -> None:
    await wait_owned(place.cluster)
    await place.until(lambda: sizes(place) == [4, 4])
    for number in (2, 3):
        await place.join(number)
    await place.calm(50)
    assert sizes(place) == [0, 0, 4, 4]
    await place.until(lambda: sizes(place) == [2, 2, 2, 2], within_s=60)
    place.crash(3)
    await place.until(lambda: sizes(place) == [2, 3, 3], within_s=30)


@conforms(
    118,
    only="memory",
    silos=4,
    up=2,
    queues=8,
    balancer=lambda: DeploymentBalancer(silos=[f"silo-{n}" for n in range(4)]),
)
async def test_queues_of_silos_that_are_configured_and_not_there_wait_for_them(
    place: Place,
) -> None:
    await place.until(lambda: sizes(place) == [2, 2])
    await place.calm(60)
    assert sizes(place) == [2, 2]
    for number in (2, 3):
        await place.join(number)
    await place.until(lambda: sizes(place) == [2, 2, 2, 2])


class Alphabetical:
    """Gives the first half of the queues to the first silo by name, and the rest to the last."""

    made = 0

    def __init__(self) -> None:
        Alphabetical.made += 1

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[Iterable[QueueId]], None],
    ) -> None:
        def answer() -> None:
            present = sorted(silos.silos())
            half = len(queues) // 2
            mine = list(queues[:half]) if silos.me == present[0] else []
            wanted(mine + (list(queues[half:]) if silos.me == present[-1] else []))

        self._unwatch = silos.watch(answer)
        answer()

    async def aclose(self) -> None:
        self._unwatch()


@conforms(119, only="memory", silos=3, queues=6, balancer=Alphabetical)
async def test_a_balancer_of_ones_own_decides(place: Place) -> None:
    await place.until(lambda: sizes(place) == [0, 3, 3])
    found = owners(place.cluster)
    queues = place.adapter.mapper(6).queues()
    assert [found[queue] for queue in queues] == ["silo-0"] * 3 + ["silo-2"] * 3
    assert Alphabetical.made >= 3


@conforms(123, only="generator", silos=2, queues=4, feed=Feed(tuple("abcdefgh"), 50))
async def test_a_generator_makes_the_streams_and_events_that_it_was_told_to(place: Place) -> None:
    keys = place.setting.feed.keys
    for key in keys:
        await place.until_heard(key, range(50))
    assert set(ears.by) == set(keys)
    with pytest.raises(StreamError):
        await place.publish(NUMBERS, "a", 1)


@conforms(123, only="generator", silos=2, queues=4, feed=Feed(tuple("abcd"), 200))
async def test_a_generator_goes_on_where_another_silo_stopped(place: Place) -> None:
    await place.calm(0.01)
    for number in (0, 1):
        await place.restart(number)
    for key in place.setting.feed.keys:
        await place.until_came(key, *range(200))


@conforms(124, needs=[PUBLISHES], silos=2, whichever=True)
async def test_the_log_says_what_happened_to_queues_and_events(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    ears.failing[3] = 1
    with caplog.at_level("INFO", "millstream"):
        await place.grain(Listener, "a").listen("s")
        await place.publish(LINES, "s", *TEN)
        await place.until_came("a", *TEN)
        await place.restart(1)
        await place.restart(0)
    assert "this silo acquired the queue (epoch" in caplog.text
    assert "handed over to the next silo" in caplog.text
    assert "Listener/a._on_line failed at" in caplog.text and "3 fails" in caplog.text
