"""A partition filled with lists and emptied with `take` behaves as one that takes single items."""

from __future__ import annotations

from typing import Literal

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.call_count import calls_of
from tests.examples import examples

from millstream.providers.memory.partition import Partition, PartitionOptions
from millstream.runtime import StreamError

GROUPS = ("a", "b")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 9)),
        st.tuples(st.sampled_from(GROUPS), st.integers(1, 7)),
        st.tuples(st.just("trim"), st.just(0)),
    ),
    max_size=40,
)


def state_of(partition: Partition[int], groups: tuple[str, ...]) -> object:
    partition.check()
    assert partition.first <= partition.released <= partition.end
    if groups:
        assert partition.released == min(map(partition.find_committed, groups))
    return (
        (partition.first, partition.released, partition.end),
        (partition.segment_count, partition.spare_count),
        [partition.find_committed(group) for group in groups],
        partition.read_at(partition.first, partition.end - partition.first),
    )


@given(
    STEPS,
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(["retain", "drop_oldest"]),
)
@settings(max_examples=examples(300))
def test_lists_and_takes_do_what_single_items_and_commits_do(
    steps: list[tuple[str, int]],
    segment_size: int,
    spare_max: int,
    group_count: int,
    on_no_group: Literal["retain", "drop_oldest"],
) -> None:
    options = PartitionOptions(segment_size, spare_max, on_no_group)
    freed: list[list[int]] = [[], []]
    by_list = Partition[int](options, 3, freed[0].append)
    by_item = Partition[int](options, 3, freed[1].append)
    groups, number = GROUPS[:group_count], 0
    for group in groups:
        by_list.register(group)
        by_item.register(group)
    for step, count in steps:
        if step == "put":
            items = list(range(number, number + count))
            number += count
            assert by_list.extend(items) == 3 + number
            assert [by_item.append(item) for item in items] == [3 + item for item in items]
        elif step == "trim":
            by_list.trim()
            by_item.trim()
        elif step in groups:
            batch = by_item.pull(step, count)
            if batch:
                by_item.commit(step)
            assert by_list.take(step, count) == batch
        assert state_of(by_list, groups) == state_of(by_item, groups)
        assert sum(freed[0]) == sum(freed[1]) == by_list.released - 3


def partition_of(count: int, segment_size: int = 2) -> Partition[int]:
    partition = Partition[int](PartitionOptions(segment_size))
    partition.extend(range(count))
    return partition


def test_every_stored_item_can_be_let_go_of_once_and_reads_as_none() -> None:
    partition = partition_of(5)
    assert [partition.let_go(offset) for offset in (3, 0, 4)] == [3, 0, 4]
    assert [partition.let_go(offset) for offset in (3, 0, 4)] == [None] * 3
    assert partition.read_at(0, 9) == [None, 1, 2, None, None]
    partition.check()


def test_what_is_not_stored_cannot_be_let_go_of() -> None:
    partition = partition_of(5)
    with pytest.raises(ValueError, match="offset is 5, the end: no item"):
        partition.let_go(5)
    with pytest.raises(ValueError, match="offset is 6, but the end is 5"):
        partition.let_go(6)


def test_one_old_item_does_not_keep_the_slots_of_all_that_were_let_go_of_behind_it() -> None:
    partition = partition_of(10, segment_size=2)
    partition.register("all")
    for offset in range(1, 9):
        assert partition.let_go(offset) == offset
    arrays = {id(segment.slots) for segment in partition._chain}
    # the arrays of the first and last segment, and the shared empty one
    assert partition.segment_count == 5 and len(arrays) == 3
    assert partition.spare_count == 1  # as many of the released arrays as are kept
    assert partition.read_at(0, 10) == [0, *[None] * 8, 9]
    assert partition.take("all", 10) == [0, *[None] * 8, 9]
    partition.extend([10, 11, 12])
    partition.trim()
    assert partition.read_at(10, 9) == [10, 11, 12]
    partition.check()


def test_what_was_let_go_of_in_whole_segments_is_stepped_over() -> None:
    partition = partition_of(11, segment_size=2)
    for offset in [1, 2, 3, 4, 5, 7]:
        partition.let_go(offset)
    assert [partition.first_held(at) for at in range(12)] == [0, 1, 6, 6, 6, 6, 6, 7, 8, 9, 10, 11]
    for offset in [6, 8, 9, 10]:
        partition.let_go(offset)
    assert [partition.first_held(at) for at in (2, 9, 10, 11)] == [10, 10, 10, 11]
    with pytest.raises(ValueError, match="offset is 12, but the end is 11"):
        partition.first_held(12)


def test_letting_go_costs_the_same_however_much_is_stored() -> None:
    def calls(stored: int) -> int:
        partition = partition_of(stored)
        return calls_of(lambda: partition.let_go(stored - 2))

    assert calls(10) == calls(5_000)


def test_the_tail_keeps_its_array_until_it_is_full() -> None:
    partition = partition_of(3, segment_size=2)
    assert partition.let_go(2) == 2
    partition.append(3)
    assert partition.read_at(0, 9) == [0, 1, None, 3]
    assert partition.let_go(3) == 3
    partition.append(4)
    assert partition.read_at(0, 9) == [0, 1, None, None, 4]
    partition.check()


def test_a_segment_is_found_wherever_the_first_one_begins() -> None:
    partition = partition_of(9, segment_size=2)
    partition.register("all")
    partition.take("all", 5)
    partition.trim()
    assert partition.first == 5
    assert [partition.read_at(offset, 1) for offset in range(5, 10)] == [[5], [6], [7], [8], []]


def test_a_take_of_an_unknown_group_is_refused() -> None:
    with pytest.raises(StreamError, match="'late' is not registered"):
        partition_of(1).take("late", 1)


def test_a_take_forgets_what_was_pulled() -> None:
    partition = partition_of(3)
    partition.register("a")
    assert partition.pull("a", 2) == [0, 1]
    assert partition.take("a", 1) == [0]
    with pytest.raises(StreamError, match="nothing since its last commit, at 1"):
        partition.commit("a")
    assert partition.take("a", 9) == [1, 2]
    assert partition.take("a", 9) == []


def test_the_check_of_the_invariants_sees_an_item_where_none_is_stored() -> None:
    partition = partition_of(1)
    partition.check()
    partition._chain.tail.slots[1] = 7
    with pytest.raises(AssertionError):
        partition.check()
