"""The indexes of filters: when they are made, their contents, and the index that a search uses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.providers.priority import FilterNotReady, QueueSettings, RequestInvalid, State
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.index import filters as filters_module
from millstream.providers.priority.core.index.filters import (
    BUILD_STEPS,
    LEARN_MIN,
    SCAN_MAX,
    Filters,
)
from millstream.providers.priority.core.index.grouped import GroupedIndex, Holds
from millstream.providers.priority.core.message import NO_TERMS, Message, key_of, new_message
from millstream.providers.priority.core.results import PollStatus
from millstream.providers.priority.core.settings import SHAPES_MAX

REGION, KIND = ("region",), ("kind",)
US, RARE = (("region", "us"),), (("kind", "rare"),)
BOTH = (("kind", "rare"), ("region", "us"))


def with_messages(count: int, holds: Holds | None = None) -> Filters:
    """Make messages 1 to `count` without an index, all in the US, every tenth of a rare kind."""
    filters = Filters({}, holds)
    for sequence in range(1, count + 1):
        put(filters, sequence)
    return filters


def put(filters: Filters, sequence: int) -> Message:
    kind = "rare" if sequence % 10 == 0 else "usual"
    value = None if filters.holds is None else f"v{sequence}"
    pairs = (("kind", kind), ("region", "us"))
    message = new_message(f"m{sequence}", b"", key_of(7, sequence), pairs, value, 1, NO_TERMS, 0)
    filters.messages[sequence] = message
    filters.add(message)
    return message


def built(filters: Filters, *shapes: tuple[str, ...]) -> Filters:
    filters.set_shapes(shapes)
    filters.build(10**6)
    return filters


def test_a_shape_is_made_is_kept_while_it_is_named_and_goes_when_it_is_not() -> None:
    filters = built(with_messages(30), REGION, KIND)
    region = filters.shapes[REGION]
    assert set(filters.shapes) == {REGION, KIND} and not filters.is_building
    filters.set_shapes((REGION,))
    assert list(filters.shapes) == [REGION] and filters.shapes[REGION] is region
    assert filters.counts(US) is not None and filters.counts(RARE) is None
    filters.set_shapes(())
    assert not filters.shapes


def test_a_shape_that_comes_back_is_built_anew() -> None:
    filters = built(with_messages(30), KIND)
    filters.set_shapes(())
    filters.remove(key_of(7, 10), filters.messages.pop(10))
    filters.set_shapes((KIND,))
    assert filters.is_building and filters.counts(RARE) is None
    assert filters.build(10**6) == 29 and sum(filters.counts(RARE) or ()) == 2


def test_building_takes_as_many_steps_as_it_may_over_all_shapes() -> None:
    filters = with_messages(10)
    filters.set_shapes((REGION, KIND))
    assert filters.build(0) == 0 and filters.is_building
    assert filters.build(3) == 3 and len(filters.shapes[REGION].todo) == 7
    assert filters.build(9) == 9 and len(filters.shapes[KIND].todo) == 8
    assert filters.is_building and filters.build(100) == 8 and not filters.is_building
    assert filters.build(100) == 0


def test_a_search_without_a_shape_of_its_own_goes_through_the_smallest_that_has_all() -> None:
    filters = with_messages(30)
    assert filters.near(BOTH) is filters.all
    assert (smallest := built(filters, REGION, KIND).near(BOTH)) is not None
    assert smallest.live == 3
    assert (smallest := built(filters, KIND, REGION).near(BOTH)) is not None
    assert smallest.live == 3 and smallest is filters.near(RARE)
    assert filters.near((("kind", "none"),)) is None


def test_a_shape_that_goes_leaves_no_parked_group_behind() -> None:
    holds = Holds(1)
    filters = built(with_messages(2, holds), REGION)
    holds.parkings_left = 10
    holds.hold("v1")
    region = filters.source(US)
    for source in (filters.all, region):
        found = source.first()
        assert found is not None and found.id == "m2"
    assert set(holds.parked["v1"]) == {filters.all, region}
    filters.set_shapes(())
    assert list(holds.parked["v1"]) == [filters.all]
    holds.release("v1")
    assert not holds.parked and isinstance(filters.all, GroupedIndex)


@pytest.mark.parametrize("holds", [None, Holds(1)])
def test_a_check_of_all_sees_what_is_wrong_with_any_index(holds: Holds | None) -> None:
    filters = built(with_messages(30, holds), REGION)
    filters.check()
    for index in (filters.all, filters.shapes[REGION].indexes[("us",)]):
        index.live += 1
        with pytest.raises(AssertionError):
            filters.check()
        index.live -= 1
    filters.check()


# -- filters without a shape


def queue_of(count: int, **given: Any) -> PriorityCore:
    """Make pending messages, every third of kind `a`."""
    core = PriorityCore.create(0, "q", QueueSettings(**given), keeps_rows=False)
    for number in range(count):
        pairs = {"kind": "abc"[number % 3], "region": "us"}
        core.enqueue(0, MessageFields(f"m{number}", b"", count - number, pairs))
    return core


KIND_A = {"kind": "a"}
MANY = SCAN_MAX + 10_000


def test_a_filter_beside_many_messages_is_answered_in_short_steps() -> None:
    core = queue_of(MANY)
    found = core.dequeue(1, "w", 2, KIND_A)
    steps = 1
    while found.status is PollStatus.MORE:
        assert not found.leases
        found = core.dequeue(1, "w", 2, KIND_A)
        steps += 1
    assert steps == -(-MANY // BUILD_STEPS)
    assert [lease.id for lease in found.leases] == [f"m{MANY - 3}", f"m{MANY - 6}"]
    assert core.dequeue(1, "w", 1, {"kind": "none"}).status is PollStatus.EMPTY


def test_looks_with_a_filter_are_refused_until_the_background_has_built_its_index() -> None:
    core = queue_of(MANY)
    for look in (core.read.peek, core.read.heads):
        with pytest.raises(FilterNotReady, match="try again"):
            look(1, KIND_A)
    with pytest.raises(FilterNotReady):
        core.read.depth(KIND_A)
    assert core.next_due_ms() == 0, "the background has something to do"
    while core.sweep(1).is_more:
        pass
    assert core.read.depth(KIND_A)[State.PENDING] == MANY // 3
    assert core.read.heads(1, KIND_A) == [3]


def test_messages_in_any_state_are_looked_at_for_a_depth() -> None:
    core = queue_of(SCAN_MAX + 1, retention_ms=10**6)
    for number in range(SCAN_MAX):
        core.cancel(1, f"m{number}")
    assert core.dequeue(1, "w", 1, {"region": "us"}).leases
    with pytest.raises(FilterNotReady):
        core.read.depth(KIND_A)


def test_a_filter_for_which_there_is_no_room_is_refused_with_the_setting_to_change() -> None:
    shapes = tuple((f"key{number}",) for number in range(SHAPES_MAX))
    core = queue_of(SCAN_MAX + 1, shapes=shapes)
    with pytest.raises(
        RequestInvalid, match=r"keys kind: .* more than 20000 .* to the setting `sh"
    ):
        core.dequeue(1, "w", 1, KIND_A)
    with pytest.raises(RequestInvalid, match="`shapes`"):
        core.read.depth(KIND_A)
    core.dequeue(1, "w")
    assert core.dequeue(1, "w", 1, KIND_A).leases, "as many as may be looked at"


def test_shapes_that_are_named_take_the_place_of_learned_ones() -> None:
    core = queue_of(LEARN_MIN + 9)
    filters = core._contents.filters
    for wanted in (KIND_A, {"region": "us"}, {"kind": "a", "region": "us"}):
        core.dequeue(1, "w", 1, wanted)
    assert list(filters.learned) == [("kind",), ("region",), ("kind", "region")]
    shapes = tuple((f"key{number}",) for number in range(SHAPES_MAX - 2))
    core.configure(2, QueueSettings(shapes=(*shapes, ("region",))))
    assert set(filters.shapes) == {*shapes, ("region",), ("kind", "region")}
    core.check()


def test_few_messages_are_looked_at_without_a_shape() -> None:
    core = queue_of(LEARN_MIN)
    assert core.dequeue(1, "w", 1, KIND_A).leases and not core._contents.filters.shapes


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_queue_that_learns_its_shapes_gives_what_one_without_shapes_gives(
    data: st.DataObject,
) -> None:
    key = data.draw(st.sampled_from([None, "kind"]))
    with pytest.MonkeyPatch.context() as patch:
        cores = [PriorityCore.create(0, "q", QueueSettings(key, lease_ms=3)) for _ in "ab"]
        for number in range(data.draw(st.integers(1, 40))):
            limits = data.draw(st.sampled_from([(0, 0, 1), (1, 2, 3), (3, 5, 1)]))
            act = data.draw(st.sampled_from(["put", "put", "take", "sweep", "depth"]))
            chosen = data.draw(st.tuples(st.sampled_from("abc"), st.sampled_from(["us", "eu"])))
            wanted = {"kind": chosen[0]} if number % 2 else {"region": chosen[1]}
            answers = []
            for core, (learn, scan, build) in zip(cores, (limits, (99, 99, 1)), strict=True):
                patch.setattr(filters_module, "LEARN_MIN", learn)
                patch.setattr(filters_module, "SCAN_MAX", scan)
                patch.setattr(filters_module, "BUILD_STEPS", build)
                pairs = {"kind": chosen[0], "region": chosen[1]}
                answers.append(done_by(core, act, number, pairs, wanted))
                core.check()
            assert answers[0] == answers[1]


def done_by(
    core: PriorityCore, act: str, number: int, pairs: dict[str, str], wanted: dict[str, str]
) -> object:
    """Return the answer of one operation, which is repeated as often as it asks for."""
    if act == "put":
        return core.enqueue(number, MessageFields(f"m{number}", b"", number % 5, pairs))
    if act == "sweep":
        while core.sweep(number).is_more:
            pass
        return None
    if act == "take":
        while (found := core.dequeue(number, "w", 2, wanted)).status is PollStatus.MORE:
            if found.leases:
                break
        return found.leases
    while True:
        try:
            return core.read.depth(wanted), core.read.heads(3, wanted)
        except FilterNotReady:
            continue
