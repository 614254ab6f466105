"""The end of a query's next batch, and the ranges that its tasks read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from millstream.streams import Token
from millstream.streams.rewinding.outside import Range
from millstream.streams.rewinding.target import Extent
from pyspark_millstream.offsets import (
    Loss,
    ReadSource,
    advance,
    behind,
    ends,
    firsts,
    losses,
    make_stored,
    parse,
    ranges,
    restore,
    texts,
)
from pyspark_millstream.read_options import parse_read

ALL = 1 << 62


def t(seq: int, era: int = 0) -> Token:
    return Token(era, seq)


def extent(queue: str, first: int, last: int, *, is_open: bool = True) -> Extent:
    """Make the extent of a queue. With first > last it has no messages."""
    if first > last:
        return Extent(queue, None, None, is_open)
    return Extent(queue, t(first), t(last), is_open)


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [
        (t(3), t(8), 5),
        (t(8), t(8), 0),
        (t(8), t(3), 0),
        (t(3, era=1), t(8), 0),
        (t(9), t(4, era=1), 4),  # the former era's messages after t(9) are unknown
        (t(9), t(0, era=1), 1),
    ],
)
def test_the_messages_between_two_positions_are_counted_by_their_numbers(
    start: Token, end: Token, count: int
) -> None:
    assert behind(start, end) == count


def test_a_position_behind_what_is_known_stays_beside_a_queue_that_is_far_ahead() -> None:
    extents = [extent("a", 1, 9), extent("b", 1, 100)]
    assert advance({"a": t(50), "b": t(1)}, extents, 10) == {"a": t(50), "b": t(11)}


def test_a_batch_goes_to_the_end_where_nothing_limits_it() -> None:
    extents = [extent("a", 1, 9), extent("b", 1, 3), extent("c", 1, 0)]
    assert advance({"a": t(4), "b": t(4)}, extents, ALL) == {"a": t(10), "b": t(4)}
    assert firsts(extents) == {"a": t(1), "b": t(1)}
    assert ends(extents) == {"a": t(10), "b": t(4)}


def test_a_queue_enters_at_its_first_message_before_anything_is_read_of_it() -> None:
    extents = [extent("a", 1, 9), extent("b", 5, 8)]
    once = advance({"a": t(1)}, extents, ALL)
    assert once == {"a": t(10), "b": t(5)}
    assert ranges({"a": t(1)}, once, 100) == [Range("a", t(1), t(10))]
    assert advance(once, extents, ALL) == {"a": t(10), "b": t(9)}


def test_the_share_of_a_queue_is_what_lies_before_it_and_one_at_least() -> None:
    extents = [extent("a", 1, 100), extent("b", 1, 1000), extent("c", 1, 2)]
    start = {"a": t(1), "b": t(1), "c": t(1)}
    assert advance(start, extents, 110) == {"a": t(10), "b": t(100), "c": t(2)}
    assert advance(start, extents, 1) == {"a": t(2), "b": t(2), "c": t(2)}
    assert advance(start, extents, 1102) == {"a": t(101), "b": t(1001), "c": t(3)}


def test_across_an_era_a_batch_goes_to_the_end() -> None:
    extents = [Extent("a", t(1), t(500, era=1), True)]
    assert advance({"a": t(1)}, extents, 10) == {"a": t(501, era=1)}
    assert advance({"a": t(400, era=1)}, extents, 10) == {"a": t(410, era=1)}
    assert ranges({"a": t(1)}, {"a": t(501, era=1)}, 10) == [Range("a", t(1), t(501, era=1))]


def test_a_queue_that_is_no_longer_used_stays_while_it_has_messages_and_is_not_read_twice() -> None:
    extents = [extent("a", 1, 9, is_open=False), extent("b", 1, 9)]
    start = {"a": t(5), "b": t(5)}
    first = advance(start, extents, ALL)
    assert first == {"a": t(10), "b": t(10)}
    assert advance(first, extents, ALL) == first
    again = [extent("a", 1, 12), extent("b", 1, 9)]  # the number of queues was changed back
    end = advance(first, again, ALL)
    assert ranges(first, end, ALL) == [Range("a", t(10), t(13))]
    empty = [extent("a", 1, 0, is_open=False), extent("b", 1, 9)]
    assert advance(start, empty, ALL) == {"b": t(10)}


def test_what_came_behind_the_target_is_left_for_another_query() -> None:
    extents = [extent("a", 1, 99), extent("b", 1, 99)]
    target = {"a": t(10)}
    assert advance({"a": t(1)}, extents, ALL, target) == target
    assert advance(target, extents, ALL, target) == target


def test_a_position_behind_what_is_known_stays() -> None:
    """Silos may differ in the newest message that they know."""
    assert advance({"a": t(50)}, [extent("a", 1, 9)], ALL) == {"a": t(50)}
    assert ranges({"a": t(50)}, {"a": t(50)}, 10) == []


def test_what_is_gone_is_told_with_the_first_that_is_kept() -> None:
    extents = [extent("a", 5, 9), extent("b", 5, 9), extent("c", 1, 0)]
    start = {"a": t(4), "b": t(5), "c": t(1), "gone": t(3)}
    assert losses(start, extents) == [Loss("a", t(4), t(5), None)]


def test_a_position_behind_the_end_of_a_queue_is_a_loss() -> None:
    extents = [extent("a", 5, 9), extent("b", 5, 9)]
    assert losses({"a": t(11), "b": t(10)}, extents) == [Loss("a", t(11), t(5), t(10))]
    assert losses({"a": t(1, era=1), "b": t(10)}, extents) == [Loss("a", t(1, era=1), t(5), t(10))]


def test_an_offset_is_stored_with_its_source_and_restored() -> None:
    source = ReadSource("airports", "default", "arrivals", "00ff")
    found = make_stored(source, {"b": t(2), "a": t(1)})
    assert restore(found) == (source, {"a": t(1), "b": t(2)})
    assert json.dumps(found) == json.dumps(make_stored(source, {"a": t(1), "b": t(2)}))
    for odd in ({"a": str(t(1))}, {**found, "queues": []}, {**found, "incarnation": None}, {}):
        with pytest.raises(ValueError, match="Give the query a new checkpoint"):
            restore(odd)
    given = options(starting_offsets=json.dumps(found)).starting_offsets
    assert given == (source, {"a": t(1), "b": t(2)})


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60)), min_size=1, max_size=4),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_batches_read_each_message_once_and_in_order(
    queues: list[tuple[int, int]], most: int, split: int
) -> None:
    extents = [extent(f"q{at}", first, first + more - 1) for at, (first, more) in enumerate(queues)]
    start: dict[str, Token] = {}
    read: dict[str, list[int]] = {one.queue: [] for one in extents}
    for _ in range(1000):
        end = advance(start, extents, most)
        assert all(end[queue] >= position for queue, position in start.items())
        if end == start:
            break
        for part in ranges(start, end, split):
            assert 0 < part.end.seq - part.start.seq <= split
            read[part.queue] += range(part.start.seq, part.end.seq)
        assert parse(json.loads(json.dumps(texts(end)))) == end
        start = end
    else:
        pytest.fail("it never ends")
    assert [len(found) for found in read.values()] == [more for _, more in queues]
    for (first, more), found in zip(queues, read.values(), strict=True):
        assert found == list(range(first, first + more))


def options(**given: Any) -> Any:
    is_stream = given.pop("is_stream", True)
    return parse_read({"gateways": "a:1", "namespace": "n", **given}, is_stream=is_stream)


def test_options_have_defaults_and_are_read() -> None:
    found = options()
    assert (found.starting_offsets, found.fail_on_data_loss) == ("latest", True)
    assert options(is_stream=False).starting_offsets == "earliest"
    token = "00000000-0000000000000007-00000000"
    found = options(starting_offsets=json.dumps({"q": token}), fail_on_data_loss="FALSE")
    assert found.starting_offsets == (None, {"q": t(7)}) and not found.fail_on_data_loss
    assert found.max_bytes_per_batch is None
    assert options(max_bytes_per_batch="9").max_bytes_per_batch == 9
    assert found.mode == "failfast" and options(mode="PERMISSIVE").mode == "permissive"
    spelled = [{"columnNameOfCorruptRecord": "c"}, {"column_name_of_corrupt_record": "c"}]
    assert [options(**one).column_name_of_corrupt_record for one in spelled] == ["c", "c"]
    assert options(starting_offsets="2026-01-01T00:00:00Z").starting_offsets == 1767225600.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"starting_offset": "latest"}, r"unknown option 'starting_offset': write option\('start"),
        ({"starting_offsets": "newest"}, "write earliest, latest, a time such as"),
        ({"starting_offsets": "2026-01-01T00:00:00"}, "it has no time zone"),
        ({"starting_offsets": '{"q": "7"}'}, "queue 'q': '7' is not a token"),
        ({"starting_offsets": '{"q": '}, "write earliest, latest"),
        ({"starting_offsets": "latest", "is_stream": False}, "spark.read would return no rows"),
        ({"max_messages_per_batch": "0"}, "write a whole number from 1 to"),
        ({"max_bytes_per_batch": "0"}, "write a whole number from 1 to"),
        ({"max_bytes_per_batch": "9", "is_stream": False}, "only streaming queries have one"),
        ({"mode": "lenient"}, "write failfast, permissive, dropmalformed"),
        ({"fail_on_data_loss": "yes"}, "write true or false"),
        ({"patience_s": "-1"}, "write seconds, above 0"),
        ({"namespace": ""}, "option 'namespace' is missing"),
        ({"key_column": "id"}, "unknown option 'key_column': the options are gateways"),
    ],
)
def test_options_that_cannot_work_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        options(**given)
