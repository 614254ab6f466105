"""Groups by exclusivity value: when a group is parked, and when dead heads are dropped."""

from __future__ import annotations

import pytest

from millstream.providers.priority.core.index.grouped import GroupedIndex, Holds
from millstream.providers.priority.core.index.plain import DEAD_MIN
from millstream.providers.priority.core.message import NO_TERMS, Message, key_of, new_message


class Rig:
    """One index. Messages get their sequences in the order of `put`."""

    def __init__(self, limit: int = 1) -> None:
        self.holds, self.messages = Holds(limit), dict[int, Message]()
        self.index = GroupedIndex(self.messages, self.holds)

    def put(self, value: str, priority: int, region: str = "us") -> Message:
        sequence = len(self.messages) + 1
        key, pairs = key_of(priority, sequence), (("region", region),)
        message = new_message(f"m{sequence}", b"", key, pairs, value, 1, NO_TERMS, 0)
        self.messages[sequence] = message
        self.index.add(message)
        self.index.check()
        return message

    def first(self, parkings: int = 10) -> str | None:
        self.holds.parkings_left = parkings
        found = self.index.first()
        return found.id if found is not None else None


def test_nothing_is_parked_before_a_step_says_how_many_may_be() -> None:
    rig = Rig()
    rig.put("a", 1)
    rig.holds.hold("a")
    assert rig.index.first() is None and not rig.holds.parked and rig.holds.parkings == 0
    assert rig.first() is None and set(rig.holds.parked) == {"a"} and rig.holds.parkings == 1


def test_a_value_stays_parked_until_it_is_held_less_often_than_the_limit() -> None:
    rig = Rig(limit=2)
    rig.put("a", 1)
    rig.holds.hold("a")
    assert rig.first() == "m1"
    rig.holds.hold("a")
    assert rig.first() is None
    rig.holds.set_limit(1)
    rig.holds.release("a")  # still held once, and the limit is 1 by now
    assert set(rig.holds.parked) == {"a"} and rig.first() is None and rig.holds.parkings == 1
    rig.holds.release("a")
    assert not rig.holds.parked and rig.first() == "m1"


@pytest.mark.parametrize("groups", [1, DEAD_MIN + 36])
def test_dead_heads_are_dropped_when_they_outnumber_the_groups_and_are_many(groups: int) -> None:
    rig = Rig()
    for number in range(groups):
        rig.put(f"v{number}", 1_000)
    dead_max = max(groups, DEAD_MIN)
    for step in range(1, dead_max + 1):  # each message is more urgent than the one before
        rig.put("v0", 1_000 - step)
        assert rig.index.dead == step
    newest = rig.put("v0", 0)
    assert rig.index.dead == 0 and len(rig.index.ready) == groups and rig.first() == newest.id


def test_of_a_value_s_pairs_one_is_told_or_each_once() -> None:
    rig = Rig()
    for region in ("us", "eu", "us", "asia"):
        rig.put("a", 1, region)
    rig.put("b", 1, "mars")
    assert rig.index.metadata_of("a", is_each=False) == {(("region", "us"),)}
    found = rig.index.metadata_of("a", is_each=True)
    assert {pairs[0][1] for pairs in found} == {"us", "eu", "asia"}
    assert rig.index.metadata_of("c", is_each=True) == set()


def test_a_check_sees_a_group_that_is_wrong() -> None:
    rig = Rig()
    rig.put("a", 1)
    rig.put("b", 2)
    rig.index.groups["b"].is_parked = True
    with pytest.raises(AssertionError):
        rig.index.check()
