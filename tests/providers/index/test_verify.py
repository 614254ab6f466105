"""Messages that an index lacks or has wrong, found from the facts of each life."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.providers.spark.index import Difference, Finding, differences
from millstream.providers.spark.index.verify import LifeFacts, found_wrong

BEGINS_MS, CREATED_MS = 1_000, 2_000


def life(sequence: int = 5, *, last: int = 3, **other: Any) -> LifeFacts:
    """The facts of a complete and correct life, with some replaced by the arguments."""
    whole = LifeFacts(
        queue="q",
        shard=0,
        id="m",
        created_ms=CREATED_MS,
        sequence=sequence,
        first=1,
        last=last,
        changes=last,
        begins_ms=BEGINS_MS,
        trimmed_before_ms=0,
        current=last,
        current_created_ms=CREATED_MS,
        current_sequence=sequence,
        ended=None,
    )
    return whole._replace(**other)


def collected(sequence: int = 5, **other: Any) -> LifeFacts:
    nothing = {"current": None, "current_created_ms": None, "current_sequence": None}
    return life(sequence)._replace(**{**nothing, "ended": 3, **other})


def wrong_in(*lives: LifeFacts) -> list[tuple[str, int, str]]:
    return [(one.id, one.missing, one.what) for one in found_wrong(lives)]


def test_an_index_that_is_as_the_queue_has_no_findings() -> None:
    assert wrong_in() == []
    assert wrong_in(life(), collected(6), life(7)) == []


def test_a_single_message_that_is_missing_between_two_is_found() -> None:
    what = "the history has no change of the messages with sequences {0} to {1}"
    assert wrong_in(life(5), life(7)) == [("", 1, what.format(6, 6))]
    assert wrong_in(life(5), life(9)) == [("", 3, what.format(6, 8))]
    assert found_wrong([life(5), life(7)]) == [Finding("q", 0, "", 1, what.format(6, 6))]


@pytest.mark.parametrize("other", [{"shard": 1}, {"queue": "r"}])
def test_nothing_is_missing_between_messages_of_two_shards(other: dict[str, Any]) -> None:
    assert wrong_in(life(5), life(9, **other)) == []


@pytest.mark.parametrize(
    ("facts", "is_whole"),
    [
        ({"begins_ms": CREATED_MS - 1}, True),
        ({"begins_ms": CREATED_MS}, False),
        ({"trimmed_before_ms": CREATED_MS}, True),
        ({"trimmed_before_ms": CREATED_MS + 1}, False),
    ],
)
def test_what_was_before_the_index_or_deleted_for_its_age_is_not_missing(
    facts: dict[str, int], is_whole: bool
) -> None:
    late = life(first=3, changes=1, **facts)  # the index lacks its first two versions
    assert late.is_whole is is_whole
    known = ("m", 2, "the history has 1 of the versions up to 3")
    assert wrong_in(late) == ([known] if is_whole else [])
    assert bool(wrong_in(life(**facts), life(7))) is is_whole


def test_a_version_that_is_missing_in_the_middle_is_found_however_old_the_life_is() -> None:
    known = ("m", 1, "the history has 2 of the versions up to 3")
    assert wrong_in(life(changes=2)) == [known]
    assert wrong_in(life(changes=2, begins_ms=CREATED_MS)) == [known]


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        (collected(ended=None), "version 3 is not in current"),
        (life(current=2), "current has version 2, but the history has version 3"),
        (life(ended=3), "current has version 3, but the history has its collection"),
        (
            life(current_sequence=6),
            "current has the message of this id with sequence 6, but no change says that this "
            "message was collected (was the queue deleted?)",
        ),
        (
            life(current_created_ms=CREATED_MS + 1, current_sequence=4),
            "current has the message of this id with sequence 4, but no change says that this "
            "message was collected (was the queue deleted?)",
        ),
        (
            life(current_sequence=4),
            "current has the message of this id with sequence 4, which is older",
        ),
    ],
)
def test_a_current_row_that_differs_from_the_history_is_told(facts: LifeFacts, what: str) -> None:
    assert wrong_in(facts) == [("m", 0, what)]


def test_a_later_life_in_current_is_as_it_should_be_once_the_earlier_one_was_collected() -> None:
    assert wrong_in(life(ended=3, current_sequence=6)) == []


def test_depths_of_the_index_that_are_not_those_of_the_queues_are_told() -> None:
    index = {"q": {"pending": 2, "running": 1, "errored": 0}, "gone": {"pending": 1}}
    queues = {"q": {"pending": 2, "running": 3, "canceled": 0}, "new": {"pending": 4}}
    assert differences(index, queues) == [
        Difference("gone", "pending", 1, 0),
        Difference("new", "pending", 0, 4),
        Difference("q", "running", 1, 3),
    ]
    assert differences(queues, queues) == []
