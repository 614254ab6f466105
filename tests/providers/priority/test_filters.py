"""The indexes of filters: which are made, of what, and which one a search goes through."""

from __future__ import annotations

import pytest

from millstream.providers.priority.core.index.filters import Filters
from millstream.providers.priority.core.index.grouped import GroupedIndex, Holds
from millstream.providers.priority.core.message import NO_TERMS, Message, key_of

REGION, KIND = ("region",), ("kind",)
US, RARE = (("region", "us"),), (("kind", "rare"),)
BOTH = (("kind", "rare"), ("region", "us"))


def with_messages(count: int, holds: Holds | None = None) -> Filters:
    """Messages 1 to `count`, all in the US, every tenth of a rare kind; they are not indexed."""
    filters = Filters({}, holds)
    for sequence in range(1, count + 1):
        put(filters, sequence)
    return filters


def put(filters: Filters, sequence: int) -> Message:
    kind = "rare" if sequence % 10 == 0 else "usual"
    value = None if filters.holds is None else f"v{sequence}"
    pairs = (("kind", kind), ("region", "us"))
    message = Message(f"m{sequence}", b"", key_of(7, sequence), pairs, value, 1, NO_TERMS, 0)
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
