"""Losses that an owner of a queue found are reported by the next one, however the first ended."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import msgspec
import pytest
from tests.conditions import until
from tests.streams.partition_place import PartitionPlace

from millstream.runtime import Grain, LocalCluster
from millstream.streams import (
    Event,
    Gap,
    OutMessage,
    StreamId,
    StreamNamespace,
    Token,
    on_gap,
    subscribe,
)
from millstream.streams.agent.losses import LOST_KEPT_S, Loss, Losses
from millstream.streams.ownership.record import LostRanges, QueueProgress

LINES = StreamNamespace("lines", int, subscriptions="implicit")
SEEN: dict[str, list[Any]] = defaultdict(list)


@pytest.fixture(autouse=True)
def clean() -> None:
    SEEN.clear()


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        SEEN[self.key].append(event.item)

    @on_gap(LINES)
    async def lost(self, gap: Gap) -> None:
        SEEN[self.key].append(gap)


def token(seq: int) -> Token:
    return Token(1, seq)


async def heard(cluster: LocalCluster, key: str, item: int) -> list[Any]:
    """Publish an event; return all that the grain has heard when it has this event."""
    await cluster.stream(LINES, key).publish(item)
    await until(lambda: item in SEEN[key])
    return SEEN[key]


async def lose(place: PartitionPlace, count: int) -> None:
    """Store events and delete them while no silo runs."""
    partition = place.broker.partition("p0")
    for number in range(count):
        body = msgspec.msgpack.encode(number)
        partition.append(OutMessage(StreamId("lines", "a"), [body]), 0.0)
    await place.broker.forget("p0", len(partition.records))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_the_next_owner_tells_of_what_the_last_one_found(end: str) -> None:
    place = PartitionPlace([Reader])
    async with place.cluster() as cluster:
        assert await heard(cluster, "a", 100) == [100]
    await lose(place, 4)
    async with place.cluster() as cluster:  # it reports the loss to `b`, and has no event for `a`
        gap, event = await heard(cluster, "b", 200)
        assert (gap.after, gap.first, event) == (token(0), token(5), 200)
        if end == "kill":
            async with asyncio.timeout(20):
                while (await place.record()).upto != token(5):
                    await asyncio.sleep(0)
            await cluster.silos[0].kill()
    record = await place.record()
    assert record.lost is not None and record.lost.parts == ((token(0), token(5)),)
    async with place.cluster() as cluster:
        first, gap, event = await heard(cluster, "a", 101)
        assert (first, gap.first, event) == (100, token(5), 101)


FOUND = Loss(token(4), token(8))
NOTED = LostRanges(1_000.0, ((token(4), token(8)),))


def test_what_is_found_is_to_be_in_the_record() -> None:
    losses = Losses(is_noted=True)
    assert not losses.matters and losses.note_in(QueueProgress()) == QueueProgress()
    losses.add(FOUND, 1_000.0)
    progress = losses.note_in(QueueProgress(token(9)))
    assert losses.matters and losses.is_waiting and progress == QueueProgress(token(9), lost=NOTED)
    losses.on_stored(QueueProgress(token(8)))  # this write was under way before
    assert losses.is_waiting
    losses.on_stored(progress)
    assert not losses.matters and not losses.is_waiting


def test_what_one_that_was_behind_has_lost_is_for_the_next_owner_to_tell_to_others() -> None:
    losses = Losses(is_noted=True)
    losses.add(Loss(token(5), token(8)), 900.0)
    losses.note(Loss(token(4), token(8)), 1_000.0)
    assert losses.note_in(QueueProgress()).lost == NOTED and losses.is_waiting
    assert losses.of(StreamId("a", "1")) == (Loss(token(5), token(8)),)


def test_where_tokens_are_no_positions_the_record_says_nothing() -> None:
    losses = Losses()
    losses.add(Loss(None, None), 1_000.0)
    assert not losses.matters and losses.of(StreamId("a", "1")) == (Loss(None, None),)


def test_the_next_owner_has_what_is_not_too_old_and_adds_to_it() -> None:
    losses = Losses(NOTED, 1_000.0 + LOST_KEPT_S - 1, is_noted=True)
    assert losses.of(StreamId("a", "1")) == (FOUND,) and not losses.matters
    losses.add(FOUND, 5_000.0)
    losses.add(Loss(token(20), None), 6_000.0)
    lost = losses.note_in(QueueProgress()).lost
    assert lost == LostRanges(6_000.0, ((token(4), token(8)), (token(20), None)))


def test_what_is_too_old_is_told_no_more_and_leaves_the_record() -> None:
    losses = Losses(NOTED, 1_000.0 + LOST_KEPT_S, is_noted=True)
    assert not losses.of(StreamId("a", "1")) and losses.matters
    losses.on_stored(losses.note_in(QueueProgress(lost=NOTED)))
    assert not losses.matters
