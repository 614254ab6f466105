"""The steps of a change of the number of queues, and their effects in one silo."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conditions import spin

from millstream.runtime import ConfigError, MemoryStateStore
from millstream.streams import HashRingMapper, QueueId, StreamId, Token
from millstream.streams.ownership.layout import Layout
from millstream.streams.ownership.mapper_record import MapperRecord, MapperRecords, OldRing

TWO, FIVE = HashRingMapper(queues=2), HashRingMapper(queues=2).with_queues(5, 2)
STREAMS = [StreamId("n", f"k{n}") for n in range(40)]
MOVED = next(s for s in STREAMS if TWO.queue_for(s) == "queue-0" != FIVE.queue_for(s))
STAYS = next(s for s in STREAMS if TWO.queue_for(s) == FIVE.queue_for(s))
ALL = FIVE.queues()


def ring(mapper: HashRingMapper) -> MapperRecord:
    names = mapper.queues()
    return MapperRecord(len(names), names[0], names[-1], mapper.epoch)


def begun() -> MapperRecord:
    return ring(TWO).begin(ring(FIVE), ALL)


def sealed(record: MapperRecord, *queues: QueueId) -> MapperRecord:
    for queue in queues or ALL:
        is_old = queue in TWO.queues()
        record = record.seal(queue, Token(0, 7) if is_old else None, is_old=is_old)
    return record


def old_of(record: MapperRecord) -> OldRing:
    assert record.old is not None
    return record.old


def test_a_change_begins_with_both_rings_and_a_new_era() -> None:
    record = begun()
    assert (record.queues, record.mapper_epoch, record.era) == (5, 2, 1)
    assert (old_of(record).queues, old_of(record).mapper_epoch) == (2, 1)
    assert old_of(record).begun_era == 1 and old_of(record).unsealed == ALL
    assert not old_of(record).is_sealed and record.configured == ring(TWO).ring


@given(st.permutations([*[("seal", q) for q in ALL], *[("pass", q) for q in TWO.queues()]]))
def test_the_old_ring_is_left_when_all_is_sealed_and_passed(
    steps: list[tuple[str, QueueId]],
) -> None:
    record, done = begun(), set[tuple[str, QueueId]]()
    for what, queue in [*steps, *steps]:  # each step may be repeated
        if what == "seal":
            record = sealed(record, queue)
        elif ("seal", queue) in done or record.old is None:
            record = record.pass_barrier(queue)
        else:
            continue
        done.add((what, queue))
        assert (record.old is None) == (done == set(steps))
    assert record.old is None and record.ring == ring(FIVE).ring and record.era == 1


def test_a_queue_that_never_had_a_message_is_done_when_it_is_sealed() -> None:
    record = begun().seal("queue-0", None, is_old=True)
    assert old_of(record).passed == {"queue-0": ()} and old_of(record).barriers == {"queue-0": None}
    assert old_of(record.seal("queue-4", None, is_old=False)).passed == {"queue-0": ()}


def test_the_old_ring_stays_while_a_stream_is_behind_and_only_that_one_waits() -> None:
    layout, new = Layout(HashRingMapper(queues=2)), FIVE.queue_for(MOVED)
    other = next(
        s for s in STREAMS if s != MOVED and TWO.queue_for(s) == "queue-0" != FIVE.queue_for(s)
    )
    record = sealed(begun()).pass_barrier("queue-1").pass_barrier("queue-0", [MOVED])
    assert old_of(record).passed == {"queue-1": (), "queue-0": (MOVED,)}
    layout.adopt(record)
    assert not layout.is_open(MOVED, new, 1)
    assert layout.is_open(other, FIVE.queue_for(other), 1)
    assert record.pass_barrier("queue-0", [MOVED]) is record
    assert record.pass_barrier("queue-0").old is None


def test_who_may_come_with_which_ring() -> None:
    assert ring(TWO).takes(ring(TWO)) and not ring(TWO).takes(ring(HashRingMapper(queues=5)))
    record = begun()
    for brought, is_taken in ((2, True), (5, True), (3, False)):
        assert record.takes(ring(HashRingMapper(queues=brought))) is is_taken


async def test_one_change_at_a_time_and_the_same_one_again_is_harmless() -> None:
    store = MemoryStateStore()
    records = MapperRecords(store, "p", HashRingMapper(queues=2))
    layout = Layout(HashRingMapper(queues=2))
    first = await records.resize(layout.with_queues(5, 2), layout.ring_of)
    assert await records.resize(layout.with_queues(5, 3), layout.ring_of) == first
    with pytest.raises(ConfigError, match="a change to 5 queues"):
        await records.resize(layout.with_queues(6, 3), layout.ring_of)
    assert await records.mapper_epoch() == 2 and await records.era() == 1


def test_until_the_record_is_read_a_silo_knows_the_ring_that_it_brings() -> None:
    layout = Layout(TWO)
    assert layout.epoch == 1 and layout.queues() == layout.read_queues() == TWO.queues()
    assert layout.queue_for(MOVED) == "queue-0" and layout.queues_of(MOVED) == ("queue-0",)
    assert layout.is_settled and layout.old is None and layout.old_queues() == ()
    assert layout.era == layout.asked_era == 0
    assert layout.is_open(MOVED, "queue-0", 0) and not layout.is_open(MOVED, "queue-0", 1)


def test_publishers_use_the_new_ring_when_every_queue_is_sealed() -> None:
    layout = Layout(HashRingMapper(queues=2))
    assert layout.adopt(ring(TWO)) and not layout.adopt(ring(TWO))
    record = begun()
    assert not layout.is_news(record) and layout.adopt(record)
    assert (layout.epoch, layout.queues()) == (1, TWO.queues())
    assert layout.queue_for(MOVED) == "queue-0" and not layout.is_settled
    assert layout.read_queues() == ALL
    assert layout.queues_of(MOVED) == ("queue-0", FIVE.queue_for(MOVED))
    assert layout.queues_of(STAYS) == (TWO.queue_for(STAYS),)
    record = sealed(record)
    assert layout.is_news(record) and layout.adopt(record) and not layout.is_news(record)
    assert (layout.epoch, layout.queues()) == (2, ALL)
    assert layout.queue_for(MOVED) == FIVE.queue_for(MOVED)
    assert layout.old_queues() == TWO.queues()


def test_an_event_waits_for_its_former_queue_and_no_other() -> None:
    layout, new = Layout(HashRingMapper(queues=2)), FIVE.queue_for(MOVED)
    layout.adopt(sealed(begun()))
    assert not layout.is_open(MOVED, new, 1)
    assert layout.is_open(MOVED, "queue-0", 0) and layout.is_open(MOVED, new, 0)
    assert layout.is_open(STAYS, TWO.queue_for(STAYS), 1)
    layout.adopt(sealed(begun()).pass_barrier("queue-1"))
    assert not layout.is_open(MOVED, new, 1)
    layout.adopt(sealed(begun()).pass_barrier("queue-0"))
    assert layout.is_open(MOVED, new, 1) and not layout.is_open(MOVED, new, 2)
    layout.adopt(sealed(begun()).pass_barrier("queue-0").pass_barrier("queue-1"))
    assert layout.is_settled and layout.is_open(MOVED, new, 1) and layout.old is None
    assert layout.read_queues() == ALL and layout.old_queues() == ()


async def test_an_era_that_is_not_known_is_looked_for() -> None:
    layout, looks = Layout(HashRingMapper(queues=2)), list[int]()
    layout.adopt(ring(TWO))
    layout.look_again = lambda: looks.append(layout.asked_era)
    waiting = asyncio.ensure_future(layout.wait_open(STAYS, "queue-0", 3))
    await spin()
    assert looks == [3] and layout.asked_era == 3 and not waiting.done()
    layout.on_record_read(0)
    await spin()
    assert looks == [3], "who waits does not ask again while there is no news"
    layout.on_record_read(2)
    await spin()
    assert not waiting.done()
    layout.on_record_read(3)
    await waiting
    assert layout.era == 3


async def test_who_waits_goes_on_when_the_former_queue_is_done() -> None:
    layout, new = Layout(HashRingMapper(queues=2)), FIVE.queue_for(MOVED)
    layout.adopt(sealed(begun()))
    looks: list[int] = []
    layout.look_again = lambda: looks.append(layout.asked_era)
    waiting = asyncio.ensure_future(layout.wait_open(MOVED, new, 1))
    await spin()
    assert not waiting.done() and looks == [], "its ring is known"
    layout.adopt(sealed(begun()).pass_barrier("queue-0"))
    await waiting


def test_a_mapper_that_cannot_be_resized_is_named() -> None:
    class Fixed:
        epoch = 1

        def queues(self) -> list[QueueId]:
            return ["a"]

        def queue_for(self, stream: StreamId, /) -> QueueId:
            return "a"

    with pytest.raises(ConfigError, match="Fixed has no method `resized"):
        Layout(Fixed()).with_queues(3, 2)


def test_a_mapper_that_a_broker_brings_is_used_from_now_on() -> None:
    layout = Layout(TWO)
    layout.bring(FIVE)
    assert (layout.epoch, layout.queues(), layout.read_queues()) == (2, ALL, ALL)
    assert layout.queue_for(MOVED) == FIVE.queue_for(MOVED)
    assert layout.queues_of(MOVED) == ("queue-0", FIVE.queue_for(MOVED))
    assert layout.ring_of(5, 2) is FIVE
