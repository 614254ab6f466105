from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.examples import examples

from millstream.providers.memory import NothingToCommit, Offset
from millstream.providers.memory.partition import Partition, PartitionOptions
from millstream.providers.memory.segments import Chain, Segment
from millstream.runtime import ConfigError, CursorTooOld, StreamError

TOP = (1 << 64) - 1


def partition_of(
    count: int, *groups: str, size: int = 3, spare_max: int = 1, start: int = 0
) -> Partition[int]:
    """Make a partition of small segments with the items `start`, `start + 1`, ..."""
    partition = Partition[int](PartitionOptions(size, spare_max), start)
    for group in groups:
        partition.register(group)
    extend(partition, count)
    return partition


def extend(partition: Partition[int], count: int) -> None:
    for _ in range(count):
        assert partition.append(partition.end) == partition.end - 1


def consume(partition: Partition[int], group: str, count: int) -> list[int]:
    batch = partition.pull(group, count)
    partition.commit(group)
    return batch


def segments_of(partition: Partition[int]) -> Iterator[Segment[int]]:
    return iter(partition._chain)


def test_partition_is_empty_when_new() -> None:
    partition = partition_of(0, "g")
    assert (partition.first, partition.end, partition.depth("g")) == (0, 0, 0)
    assert partition.pull("g", 5) == []
    assert partition.segment_count == 1


def test_growth_reuses_the_array_of_the_last_committed_segment() -> None:
    partition = partition_of(9, "g")
    arrays = [segment.slots for segment in segments_of(partition)]
    assert consume(partition, "g", 3) == [0, 1, 2]
    assert consume(partition, "g", 3) == [3, 4, 5]
    extend(partition, 1)
    live = list(segments_of(partition))
    assert [segment.slots for segment in live] == [[6, 7, 8], [9, None, None]]
    assert live[1].slots is arrays[1]
    assert partition.spare_count == 1 and arrays[0] == [None, None, None]
    assert partition.pull("g", 9) == [6, 7, 8, 9]


def test_pull_repeats_until_commit() -> None:
    partition = partition_of(10, "g")
    assert partition.pull("g", 7) == partition.pull("g", 7) == [0, 1, 2, 3, 4, 5, 6]
    assert partition.commit("g") == 7
    assert partition.pull("g", 7) == [7, 8, 9]


def test_commit_covers_the_last_pull_only() -> None:
    partition = partition_of(10, "g")
    assert partition.pull("g", 4) == [0, 1, 2, 3]
    assert partition.pull("g", 3) == [0, 1, 2]
    partition.commit("g")
    assert partition.pull("g", 1) == [3]


def test_batches_of_any_size_cross_segments_in_order() -> None:
    partition = partition_of(13, "g")
    assert [consume(partition, "g", count) for count in (4, 3, 2, 4)] == [
        [0, 1, 2, 3],
        [4, 5, 6],
        [7, 8],
        [9, 10, 11, 12],
    ]
    assert partition.pull("g", 4) == []
    extend(partition, 1)
    assert partition.pull("g", 4) == [13]


def test_late_group_starts_at_what_was_released() -> None:
    freed: list[int] = []
    partition = Partition[int](PartitionOptions(3), freed=freed.append)
    partition.register("g1")
    extend(partition, 1)
    consume(partition, "g1", 1)
    assert freed == [1]
    extend(partition, 1)
    partition.register("g2")
    assert partition.pull("g2", 9) == [1]
    assert partition.pull("g1", 9) == [1]


def test_group_that_starts_latest_sees_only_what_comes() -> None:
    partition = partition_of(4, "g")
    partition.register("late", "latest")
    assert partition.pull("late", 9) == []
    extend(partition, 1)
    assert partition.pull("late", 9) == [4]


def test_batch_does_not_change_when_its_segment_is_recycled() -> None:
    partition = partition_of(3, "g")
    batch = partition.pull("g", 3)
    partition.commit("g")
    extend(partition, 6)
    assert batch == [0, 1, 2]
    assert partition.pull("g", 9) == [3, 4, 5, 6, 7, 8]


def test_second_commit_is_refused_and_changes_nothing() -> None:
    partition = partition_of(4, "g")
    consume(partition, "g", 4)
    with pytest.raises(NothingToCommit):
        partition.commit("g")
    extend(partition, 3)
    with pytest.raises(NothingToCommit):
        partition.commit("g")
    assert partition.pull("g", 9) == [4, 5, 6]


def test_empty_pull_leaves_nothing_to_commit() -> None:
    partition = partition_of(2, "g")
    consume(partition, "g", 2)
    assert partition.pull("g", 1) == []
    with pytest.raises(NothingToCommit):
        partition.commit("g")


def test_commit_upto_keeps_the_rest_of_the_batch() -> None:
    partition = partition_of(8, "g")
    partition.pull("g", 6)
    for outside in (-1, 7):
        with pytest.raises(ValueError, match="pulled 0 to 6"):
            partition.commit("g", outside)
    assert partition.commit("g", 4) == 4
    assert consume(partition, "g", 2) == [4, 5]
    partition.pull("g", 2)
    assert partition.commit("g", 6) == 6
    assert partition.pull("g", 9) == [6, 7]


@pytest.mark.parametrize(
    ("first", "second", "live"), [(3, 6, 3), (6, 6, 2), (3, 2, 4), (9, 9, 2), (0, 9, 4)]
)
def test_growth_recycles_only_what_all_groups_have_committed(
    first: int, second: int, live: int
) -> None:
    partition = partition_of(9, "a", "b")
    for group, count in (("a", first), ("b", second)):
        if count:
            consume(partition, group, count)
    partition.pull("a", 9)
    extend(partition, 1)
    assert partition.segment_count == live
    assert partition.pull("a", 99) == list(range(first, 10))
    assert partition.pull("b", 99) == list(range(second, 10))
    partition.check()


def test_reader_at_the_end_of_a_full_tail_leaves_it_before_it_is_recycled() -> None:
    partition = partition_of(3, "g")
    consume(partition, "g", 3)
    extend(partition, 4)
    partition.check()
    assert partition.pull("g", 9) == [3, 4, 5, 6]


def test_recycled_segment_fails_loudly_and_lets_its_items_go() -> None:
    partition = partition_of(3, "g")
    stale = next(segments_of(partition))
    slots = stale.slots
    consume(partition, "g", 3)
    extend(partition, 4)
    with pytest.raises(AttributeError, match="slots"):
        stale.copy(0, 1)
    assert slots == [6, None, None]


@pytest.mark.parametrize("spare_max", [0, 1, 2, 9])
def test_spares_are_at_most_spare_max_and_are_used_again(spare_max: int) -> None:
    partition = partition_of(18, "g", spare_max=spare_max)
    arrays = {id(segment.slots) for segment in segments_of(partition)}
    consume(partition, "g", 15)
    extend(partition, 1)
    assert partition.spare_count == min(spare_max, 4)
    extend(partition, 3)
    assert partition.spare_count == max(min(spare_max, 4) - 1, 0)
    reused = [segment for segment in segments_of(partition) if id(segment.slots) in arrays]
    assert len(reused) >= min(2 + spare_max, 3)


def test_trim_recycles_without_growth() -> None:
    partition = partition_of(9, "g")
    consume(partition, "g", 9)
    assert (partition.first, partition.segment_count) == (0, 3)
    partition.trim()
    assert (partition.first, partition.segment_count, partition.spare_count) == (9, 1, 1)
    partition.check()
    extend(partition, 1)
    assert partition.pull("g", 9) == [9]


def test_partition_without_a_group_retains_all() -> None:
    partition = partition_of(20)
    partition.trim()
    partition.register("g")
    assert partition.pull("g", 99) == list(range(20))


def test_partition_without_a_group_keeps_two_segments_when_it_drops_the_oldest() -> None:
    freed: list[int] = []
    partition = Partition[int](PartitionOptions(3, on_no_group="drop_oldest"), freed=freed.append)
    extend(partition, 20)
    assert partition.segment_count == 2
    assert (partition.first, sum(freed), partition.released) == (15, 15, 15)
    partition.register("g")
    extend(partition, 20)
    assert partition.pull("g", 99) == list(range(15, 40))


def test_reset_moves_a_group_anywhere_in_what_is_stored() -> None:
    partition = partition_of(9, "g", "slow")
    consume(partition, "g", 8)
    partition.pull("g", 1)
    partition.reset("g", 2)
    with pytest.raises(NothingToCommit):
        partition.commit("g")
    assert partition.pull("g", 4) == [2, 3, 4, 5]
    assert partition.depth("g") == 7
    partition.reset("g", 9)
    assert partition.pull("g", 4) == []
    extend(partition, 1)
    assert partition.pull("g", 4) == [9]
    assert partition.pull("slow", 99) == list(range(10))


def test_reset_back_does_not_take_back_what_was_released() -> None:
    freed: list[int] = []
    partition = Partition[int](PartitionOptions(3), freed=freed.append)
    partition.register("g")
    extend(partition, 6)
    consume(partition, "g", 5)
    partition.reset("g", 1)
    assert partition.released == 5
    consume(partition, "g", 3)
    partition.reset("g", 6)
    assert freed == [5, 1]
    extend(partition, 1)
    partition.check()


def test_reset_back_holds_recycling() -> None:
    partition = partition_of(9, "g")
    consume(partition, "g", 9)
    partition.reset("g", 1)
    extend(partition, 9)
    assert partition.pull("g", 99) == list(range(1, 18))


def test_reads_outside_of_what_is_stored_are_refused() -> None:
    partition = partition_of(9, "g", start=100)
    consume(partition, "g", 6)
    extend(partition, 1)
    assert (partition.first, partition.end) == (106, 110)
    for too_old in (0, 105):
        with pytest.raises(CursorTooOld, match="is 106"):
            partition.read_at(too_old, 1)
        with pytest.raises(CursorTooOld, match="is 106"):
            partition.reset("g", too_old)
    with pytest.raises(ValueError, match="end is 110"):
        partition.read_at(111, 1)
    with pytest.raises(ValueError, match="end is 110"):
        partition.reset("g", 111)
    assert partition.find_committed("g") == 106


def test_read_at_needs_no_group_and_moves_none() -> None:
    partition = partition_of(10, "g", start=5)
    assert partition.read_at(5, 4) == [5, 6, 7, 8]
    assert partition.read_at(9, 99) == [9, 10, 11, 12, 13, 14]
    assert partition.read_at(15, 9) == partition.read_at(7, 0) == []
    assert partition.pull("g", 1) == [5]


def test_unregister_frees_what_only_that_group_held() -> None:
    freed: list[int] = []
    partition = Partition[int](PartitionOptions(3), freed=freed.append)
    partition.register("fast")
    partition.register("slow")
    extend(partition, 7)
    consume(partition, "fast", 5)
    assert freed == []
    partition.unregister("slow")
    assert freed == [5]
    assert partition.groups == ("fast",)


def test_group_names_are_checked() -> None:
    partition = partition_of(1, "g")
    with pytest.raises(StreamError, match="already"):
        partition.register("g")
    for unknown in (
        partition.commit,
        partition.depth,
        partition.unregister,
        partition.find_committed,
    ):
        with pytest.raises(StreamError, match="'x' is not registered"):
            unknown("x")
    with pytest.raises(StreamError, match="'x' is not registered"):
        partition.pull("x", 1)


def test_counts_and_options_are_checked() -> None:
    partition = partition_of(1, "g")
    with pytest.raises(ValueError, match="at least 1"):
        partition.pull("g", 0)
    with pytest.raises(ValueError, match="at least 0"):
        partition.read_at(0, -1)
    with pytest.raises(ConfigError):
        PartitionOptions(segment_size=0)
    with pytest.raises(ConfigError):
        PartitionOptions(spare_max=-1)


def test_chain_refuses_to_grow_behind_a_tail_that_is_not_full() -> None:
    with pytest.raises(AssertionError):
        Chain[int](3, 1, 0).grow(0)


SIZE, SPARES = 3, 1
GROUPS = st.sampled_from(["a", "b", "c"])


class GroupModel:
    """The model of a group: its committed items, and the number of its last pull."""

    def __init__(self, committed: int) -> None:
        self.committed = committed
        self.pending = 0


Batch = list[list[int] | None]


class PartitionMachine(RuleBasedStateMachine):
    """Random appends, pulls, commits and resets, compared with a list of all items ever
    appended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.freed = 0
        self.partition = Partition[list[int] | None](PartitionOptions(SIZE, SPARES), 0, self.free)
        self.items: list[list[int] | None] = []
        self.groups: dict[str, GroupModel] = {}
        self.batches: list[tuple[Batch, Batch]] = []

    def free(self, count: int) -> None:
        assert count > 0
        self.freed += count

    def keep(self, batch: Batch, low: int, high: int) -> None:
        assert batch == self.items[low:high]
        self.batches = [*self.batches[-20:], (batch, list(batch))]

    @rule(count=st.integers(1, 8))
    def append(self, count: int) -> None:
        for _ in range(count):
            item = [len(self.items)]
            before = self.partition.segment_count
            assert self.partition.append(item) == len(self.items)
            self.items.append(item)
            if self.groups and self.partition.segment_count != before:
                self.check_size()

    def check_size(self) -> None:
        """Check that after growth only the segments that the slowest group needs are live."""
        slowest = min(group.committed for group in self.groups.values())
        live = self.partition.segment_count
        assert live <= ceil((self.partition.end - slowest) / SIZE) + 1
        assert self.partition.spare_count <= SPARES

    @rule(group=GROUPS, start=st.sampled_from(["earliest", "latest"]))
    def register(self, group: str, start: str) -> None:
        if group in self.groups:
            return
        earliest = max(self.partition.first, self.partition.released)
        if start == "latest":
            self.partition.register(group, "latest")
        else:
            self.partition.register(group)
        self.groups[group] = GroupModel(len(self.items) if start == "latest" else earliest)

    @rule(group=GROUPS, rarely=st.integers(0, 3))
    def unregister(self, group: str, rarely: int) -> None:
        if rarely == 0 and group in self.groups:
            self.partition.unregister(group)
            del self.groups[group]

    @precondition(lambda self: self.groups)
    @rule(group=GROUPS, count=st.integers(1, 10))
    def pull(self, group: str, count: int) -> None:
        model = self.groups.get(group)
        if model is None:
            return
        batch = self.partition.pull(group, count)
        high = min(model.committed + count, len(self.items))
        self.keep(batch, model.committed, high)
        model.pending = len(batch)

    @precondition(lambda self: self.groups)
    @rule(group=GROUPS, part=st.none() | st.integers(0, 10))
    def commit(self, group: str, part: int | None) -> None:
        model = self.groups.get(group)
        if model is None:
            return
        if not model.pending:
            with pytest.raises(NothingToCommit):
                self.partition.commit(group)
            return
        size = model.pending if part is None else part % (model.pending + 1)
        upto = None if part is None else model.committed + size
        model.committed += size
        model.pending = 0
        assert self.partition.commit(group, upto) == model.committed

    @precondition(lambda self: self.groups)
    @rule(group=GROUPS, choice=st.integers(0, 1000))
    def reset(self, group: str, choice: int) -> None:
        model = self.groups.get(group)
        if model is None:
            return
        first = self.partition.first
        model.committed = first + choice % (len(self.items) - first + 1)
        model.pending = 0
        self.partition.reset(group, model.committed)

    @rule(choice=st.integers(0, 1000), count=st.integers(0, 10))
    def read_at(self, choice: int, count: int) -> None:
        first = self.partition.first
        offset = first + choice % (len(self.items) - first + 1)
        self.keep(self.partition.read_at(offset, count), offset, offset + count)

    @precondition(lambda self: self.partition.first < len(self.items))
    @rule(choice=st.integers(0, 1000), count=st.integers(1, 6))
    def let_go(self, choice: int, count: int) -> None:
        first = self.partition.first
        at = first + choice % (len(self.items) - first)
        for offset in range(at, min(at + count, len(self.items))):
            assert self.partition.let_go(offset) == self.items[offset]
            self.items[offset] = None

    @rule()
    def trim(self) -> None:
        self.partition.trim()

    @invariant()
    def state_is_as_in_the_model(self) -> None:
        self.partition.check()
        assert self.partition.end == len(self.items)
        assert self.partition.released == self.freed
        for name, model in self.groups.items():
            assert self.partition.find_committed(name) == model.committed
            assert self.partition.depth(name) == len(self.items) - model.committed
        if self.groups:
            assert self.freed >= min(group.committed for group in self.groups.values())

    @invariant()
    def returned_batches_do_not_change(self) -> None:
        for batch, copy in self.batches:
            assert batch == copy


def test_partition_behaves_as_a_list_with_positions() -> None:
    run_state_machine_as_test(
        PartitionMachine, settings=settings(max_examples=examples(100), stateful_step_count=50)
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40))
def test_committed_batches_join_to_what_was_appended(steps: list[tuple[int, int]]) -> None:
    partition = partition_of(0, "g", "idle")
    seen: list[int] = []
    for produced, pulled in steps:
        extend(partition, produced)
        seen += consume(partition, "g", pulled)
    assert seen == list(range(len(seen)))
    assert len(seen) == partition.find_committed("g")
    assert partition.pull("idle", partition.end) == list(range(partition.end))


def test_offset_carries_and_wraps() -> None:
    assert Offset(0, TOP) + 1 == Offset(1, 0)
    assert Offset(TOP, TOP) + 1 == Offset(0, 0)
    assert Offset(0, 0) > Offset(TOP, TOP) and Offset(TOP, TOP) < Offset(0, 0)
    assert Offset(0, 2) - Offset(TOP, TOP) == Offset(0, 3)
    assert Offset(1, 0) - Offset(0, TOP) == Offset(0, 1)
    assert Offset(1, 0) >= Offset(1, 0) <= Offset(1, 1)


def test_offset_refuses_a_negative_distance_and_numbers_out_of_range() -> None:
    with pytest.raises(ValueError, match="negative"):
        _ = Offset(0, 1) - Offset(0, 2)
    for bad in ((-1, 0), (0, -1), (TOP + 1, 0), (0, TOP + 1)):
        with pytest.raises(ValueError, match="must be in"):
            Offset(*bad)


@given(st.integers(0, (1 << 128) - 1), st.integers(1, (1 << 63) - 1))
def test_offset_keeps_order_and_distance_in_a_window(base: int, ahead: int) -> None:
    low, high = Offset.of(base), Offset.of(base + ahead)
    assert low < high and high > low and not high <= low
    assert high - low == Offset(0, ahead)
    assert low + ahead == high
    assert high.near(base) == base + ahead
    assert low.near(base + ahead) == base
