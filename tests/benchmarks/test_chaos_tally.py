"""Records are counted correctly, so that a figure of 0 means that nothing was lost."""

from __future__ import annotations

from benchmarks.chaos.tally import Tally


def tally(acknowledged: list[int], *found: tuple[int, int]) -> Tally:
    made = Tally(len(acknowledged))
    for producer, count in enumerate(acknowledged):
        made.acknowledge(producer, count)
    for producer, number in found:
        made.found(producer, number)
    return made


def figures(made: Tally) -> tuple[int, int, int]:
    return made.lost, made.doubled, made.reordered


def test_what_was_acknowledged_and_is_there_in_order_is_well() -> None:
    made = tally([3, 2], (0, 0), (1, 0), (0, 1), (1, 1), (0, 2))
    assert figures(made) == (0, 0, 0)
    assert (made.records, made.stored) == (5, 5)


def test_what_is_not_there_is_lost_also_at_the_end() -> None:
    assert figures(tally([3], (0, 0), (0, 2))) == (1, 0, 0)
    assert figures(tally([3, 2], (0, 0))) == (4, 0, 0)


def test_what_is_there_twice_is_doubled_and_not_reordered() -> None:
    assert figures(tally([2], (0, 0), (0, 1), (0, 0), (0, 1), (0, 1))) == (0, 3, 0)


def test_what_comes_behind_a_later_one_is_reordered() -> None:
    assert figures(tally([4], (0, 0), (0, 3), (0, 1), (0, 2))) == (0, 0, 2)


def test_what_was_stored_and_not_acknowledged_is_no_fault() -> None:
    made = tally([1], (0, 0), (0, 1))
    assert figures(made) == (0, 0, 0) and made.stored == 2
