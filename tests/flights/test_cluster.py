"""The demo publishes only after the queues have found their owners."""

from __future__ import annotations

from examples.flights.cluster import QUEUES, SETTLED_S, Settled

from millstream.streams import QueueStats, SiloStats


def silos(*owned: list[int], epoch: int = 1, is_reading: bool = True) -> list[SiloStats]:
    """Make silos that own queues by number."""
    return [
        SiloStats(
            f"127.0.0.1:{at}@1",
            f"silo-{at}",
            0,
            [
                QueueStats(f"queue-{number}", epoch, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, is_reading)
                for number in numbers
            ],
        )
        for at, numbers in enumerate(owned)
    ]


EVEN = [0, 1, 2], [3, 4, 5], [6, 7]


def test_even_shares_are_settled_once_they_stay() -> None:
    settled = Settled(3)
    assert not settled.sample(silos(*EVEN), 10.0)
    assert not settled.sample(silos(*EVEN), 10.0 + SETTLED_S / 2)
    assert settled.sample(silos(*EVEN), 10.1 + SETTLED_S)


def test_a_queue_that_moves_begins_the_wait_again() -> None:
    settled = Settled(3)
    settled.sample(silos(*EVEN), 10.0)
    assert not settled.sample(silos([0, 1], [3, 4, 5], [6, 7, 2]), 10.0 + SETTLED_S)
    assert not settled.sample(silos([0, 1], [3, 4, 5], [6, 7, 2], epoch=2), 10.0 + 2 * SETTLED_S)


def test_uneven_shares_and_queues_that_nobody_reads_are_not_settled() -> None:
    for sample in (
        silos([0, 1, 2, 3], [4, 5, 6, 7]),
        silos([0, 1, 2, 3], [4, 5, 6], [7]),
        silos([0, 1, 2], [3, 4, 5], [6]),
        silos([0, 1, 2], [3, 4, 5], [6, 6]),
        silos(*EVEN, is_reading=False),
    ):
        settled = Settled(3)
        settled.sample(sample, 10.0)
        assert not settled.sample(sample, 20.0), sample


def test_more_silos_than_queues_have_a_queue_each_or_none() -> None:
    settled = Settled(QUEUES + 2)
    each = silos(*([number] for number in range(QUEUES)), [], [])
    settled.sample(each, 10.0)
    assert settled.sample(each, 20.0)
    assert "queue-3 by silo-3" in str(settled)
