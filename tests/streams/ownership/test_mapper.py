"""The mapper: fixed golden vectors, the rule of the ring, an even spread."""

from __future__ import annotations

from collections import Counter

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime import ConfigError
from millstream.streams import HashRingMapper, QueueMapper, StreamId

# hash of `namespace NUL key`, then the queue of 1, 3, 8 and 65,536 queues; must never change
GOLDEN = [
    ("arrivals", "BOS", 0x3E43CDFE73790AC7, (0, 1, 2, 15940)),
    ("arrivals", "JFK", 0x804BAF5F6044CBE4, (0, 2, 5, 32844)),
    ("departures", "BOS", 0xC033822D367ABA49, (0, 0, 7, 49204)),
    ("", "", 0xC44BDFF4074EECDB, (0, 0, 7, 50252)),
    ("città", "東京", 0xE74F6FAA92470E26, (0, 0, 0, 59216)),
    ("orders", "0", 0x4557A02FECE62645, (0, 1, 3, 17752)),
    ("orders", "1", 0xBD2125ADFE3CC80D, (0, 0, 6, 48418)),
    ("orders", "4", 0x9555AB337BF900F2, (0, 2, 5, 38230)),
]


@pytest.mark.parametrize(("namespace", "key", "point", "numbers"), GOLDEN)
def test_mapper_gives_the_golden_queue(
    namespace: str, key: str, point: int, numbers: tuple[int, ...]
) -> None:
    assert xxhash.xxh3_64_intdigest(f"{namespace}\0{key}".encode()) == point
    for queues, number in zip((1, 3, 8, 65_536), numbers, strict=True):
        mapper = HashRingMapper(queues=queues, prefix="q")
        assert mapper.queue_for(StreamId(namespace, key)) == f"q-{number}"


@given(st.integers(1, 500), st.text(), st.text())
def test_mapper_picks_the_first_point_at_or_after_the_hash(
    queues: int, namespace: str, key: str
) -> None:
    digest = xxhash.xxh3_64_intdigest(f"{namespace}\0{key}".encode())
    points = [n * (2**64 // queues) for n in range(queues)]
    expected = next((n for n, point in enumerate(points) if point >= digest), 0)
    found = HashRingMapper(queues=queues).queue_for(StreamId(namespace, key))
    assert found == f"queue-{expected}"


def test_mapper_spreads_streams_evenly() -> None:
    mapper = HashRingMapper(queues=8)
    counts = Counter(mapper.queue_for(StreamId("n", str(key))) for key in range(8_000))
    assert set(counts) == set(mapper.queues())
    assert all(900 < count < 1_100 for count in counts.values())


def test_mapper_names_its_queues_in_order_and_its_epoch() -> None:
    mapper: QueueMapper = HashRingMapper(queues=3, prefix="p")
    assert list(mapper.queues()) == ["p-0", "p-1", "p-2"]
    assert mapper.epoch == 1


@pytest.mark.parametrize("queues", [0, -1, 65_537])
def test_mapper_refuses_a_count_outside_its_range(queues: int) -> None:
    with pytest.raises(ConfigError, match=str(queues)):
        HashRingMapper(queues=queues)


def test_mapper_refuses_an_empty_prefix() -> None:
    with pytest.raises(ConfigError, match="prefix"):
        HashRingMapper(queues=1, prefix="")
