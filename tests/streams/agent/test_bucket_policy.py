"""Policy "buckets": the slowest subscription slows its own queue, and no other queue."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conditions import until
from tests.contract.reference import LEASES, LEDGER, LOG, Broker, ReferenceQueues
from tests.streams.agent.caches import cursor_at
from tests.streams.agent.cursors import append

from millstream.balancers import DeploymentBalancer
from millstream.runtime import ConfigError, Grain, LocalCluster, Silo
from millstream.streams import (
    CacheLimits,
    Capability,
    Event,
    HashRingMapper,
    PersistentStreams,
    QueueMessage,
    StreamId,
    StreamNamespace,
    StreamOptions,
    Token,
    subscribe,
)
from millstream.streams.agent.cache.cursor import Cursor
from millstream.streams.agent.cache.queue_cache import QueueCache

LIMITS = CacheLimits(events_max=100, policy="buckets")
STREAMS = [StreamId("n", key) for key in "abc"]
LINES = StreamNamespace("lines", int, subscriptions="implicit")
SEEN: dict[str, list[int]] = defaultdict(list)
GATE = asyncio.Event()


# --- how far the queue is read --------------------------------------------------------------------


def read(cache: QueueCache, stream: StreamId, count: int) -> list[Cursor]:
    """Append messages of one item, with a cursor at each that is the first of its stream."""
    cursors = []
    for _ in range(count):
        message = QueueMessage(stream, Token(1, cache.next_index + 1), (b"x",), {}, 0.0)
        slot = append(cache, message)
        if cache.first_of(stream) == slot.index:
            cursors.append(cursor_at(cache, slot.index))
        cache.release(slot)
    return cursors


def test_one_bucket_is_read_at_a_time_until_nine_are_more_than_full() -> None:
    cache = QueueCache(LIMITS)
    rooms = []
    for _ in range(10):
        rooms.append(cache.room()[0])
        read(cache, STREAMS[0], 10)
    assert rooms == [10] * 10
    assert cache.room() == (0, 0)


def test_what_others_have_done_behind_the_oldest_counts_as_if_it_were_held() -> None:
    cache = QueueCache(LIMITS)
    (slow,) = read(cache, STREAMS[0], 1)
    for _ in range(90):
        assert cache.room()[0] == 10
        for quick in read(cache, STREAMS[1], 1):
            quick.advance(1)
    assert (cache.events, cache.span, cache.room()) == (1, 91, (0, 0))
    slow.advance(1)
    assert (cache.events, cache.room()[0]) == (0, 10)


def test_the_pressure_ends_as_soon_as_the_slowest_leaves_the_oldest_bucket() -> None:
    cache = QueueCache(LIMITS)
    (slow,) = read(cache, STREAMS[0], 100)
    for done in range(1, 11):
        assert cache.room() == (0, 0), done
        slow.advance(1)
    assert cache.room()[0] == 10


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 2)), max_size=60),
    st.integers(10, 45),
)
def test_it_never_holds_more_than_it_may_and_is_read_while_nine_buckets_are_free(
    steps: list[tuple[int, int, int]], events_max: int
) -> None:
    limits = CacheLimits(events_max=events_max, policy="buckets")
    cache, cursors, bucket = QueueCache(limits), dict[int, Cursor](), events_max // 10
    for wanted, count, mover in steps:
        room = cache.room()[0]
        assert (room > 0) == (cache.span <= 9 * bucket) and room <= bucket
        for cursor in read(cache, STREAMS[wanted], min(count, room)):
            cursors[wanted] = cursor
        if mover in cursors:
            cursors[mover].advance(1)
            if cursors[mover].is_drained:
                del cursors[mover]
        cache.check()
        assert cache.span <= 10 * bucket


def test_fewer_events_than_buckets_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"CacheLimits.events_max is 9; .* at least 10"):
        CacheLimits(events_max=9, policy="buckets")
    CacheLimits(events_max=9)


# --- with providers -------------------------------------------------------------------------------


class Reader(Grain):
    @subscribe(LINES)
    async def on_line(self, event: Event[int]) -> None:
        if self.key == "slow":
            await GATE.wait()
        SEEN[self.key].append(event.item)


def provider(queues: ReferenceQueues, limits: CacheLimits = LIMITS) -> PersistentStreams:
    return PersistentStreams(
        queues,
        mapper=HashRingMapper(queues=1),
        balancer=DeploymentBalancer(rebalance_delay_s=0.01),
        options=StreamOptions(cache=limits, poll_first_s=0.001, poll_ceiling_s=0.005),
    )


@pytest.fixture(autouse=True)
def clean() -> None:
    global GATE
    GATE = asyncio.Event()
    SEEN.clear()


async def test_a_slow_consumer_stops_its_queue_at_ten_buckets_and_then_all_goes_on() -> None:
    def streams() -> PersistentStreams:
        return provider(ReferenceQueues(Broker(capacity=1_000), LOG))

    async with LocalCluster(silos=1, grains=[Reader], streams={"default": streams}) as cluster:
        await cluster.stream(LINES, "slow").publish(0)
        for number in range(300):
            await cluster.stream(LINES, "quick").publish(number)
        await until(lambda: len(SEEN["quick"]) >= 90)
        for _ in range(200):
            await asyncio.sleep(0)
        assert SEEN["quick"] == list(range(len(SEEN["quick"]))) and len(SEEN["quick"]) <= 99
        GATE.set()
        await until(lambda: len(SEEN["quick"]) == 300)
        assert SEEN == {"slow": [0], "quick": list(range(300))}


@pytest.mark.parametrize(
    ("capabilities", "why"), [(LEDGER, "can be read again"), (LEASES, "has no order")]
)
async def test_it_is_refused_where_it_would_mean_nothing(
    capabilities: frozenset[Capability], why: str
) -> None:
    streams = provider(ReferenceQueues(Broker(), capabilities))
    with pytest.raises(ConfigError, match=f"'default': CacheLimits.policy is 'buckets', .*{why}"):
        async with Silo(grains=[Reader], streams={"default": streams}):
            pass
