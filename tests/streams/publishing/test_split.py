"""The cuts of a published list, and the message that is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from millstream.runtime import ConfigError
from millstream.streams import MessageLimits, OutMessage, ProducerMark, SendLimits, StreamId
from millstream.streams.contracts.message import (
    HEAD_BYTES,
    VALUE_HEAD_BYTES,
    content_bytes,
    message_bytes,
)
from millstream.streams.publishing.split import PublishLimits, check_size, messages_of, split_items

A = StreamId("n", "a")


def sizes(bodies: list[int], items_max: int = 3, bytes_max: int = 10) -> list[list[int]]:
    """Return the sizes of the parts of a list of items of these sizes."""
    limits = PublishLimits(items_max=items_max, bytes_max=bytes_max)
    return [[len(one) for one in part] for part in split_items([b"x" * n for n in bodies], limits)]


@given(
    st.lists(st.binary(max_size=6), max_size=30),
    st.integers(1, 5),
    st.integers(1, 12),
)
def test_parts_are_the_list_in_order_each_within_the_limits_and_none_could_take_more(
    bodies: list[bytes], items_max: int, bytes_max: int
) -> None:
    parts = split_items(bodies, PublishLimits(items_max=items_max, bytes_max=bytes_max))
    assert [body for part in parts for body in part] == bodies
    for part in parts:
        total = sum(map(len, part))
        assert 1 <= len(part) <= items_max and (total <= bytes_max or len(part) == 1)
    for part, after in pairwise(parts):
        assert len(part) == items_max or sum(map(len, part)) + len(after[0]) > bytes_max


@pytest.mark.parametrize(
    ("bodies", "parts"),
    [
        ([], []),
        ([3, 3, 4], [[3, 3, 4]]),  # exactly at both limits
        ([3, 3, 5], [[3, 3], [5]]),
        ([1, 1, 1, 1], [[1, 1, 1], [1]]),
        ([11], [[11]]),  # one item may be larger
        ([11, 1], [[11], [1]]),
        ([1, 11, 1, 9], [[1], [11], [1, 9]]),
        ([0, 0, 0, 0], [[0, 0, 0], [0]]),
        ([5, 5, 5, 5, 5], [[5, 5], [5, 5], [5]]),
    ],
)
def test_a_list_is_cut_before_the_item_that_goes_beyond_a_limit(
    bodies: list[int], parts: list[list[int]]
) -> None:
    assert sizes(bodies) == parts


def test_a_list_within_the_limits_is_not_copied() -> None:
    for bodies in ([b"1"], [b"1", b"2"], [b"1", b"", b"234"]):
        (part,) = split_items(bodies, PublishLimits(items_max=3, bytes_max=4))
        assert part is bodies


def test_a_message_is_as_large_as_its_items_and_headers_may_be() -> None:
    limits = PublishLimits(message_bytes_max=10)
    check_size(OutMessage(A, [b"12345", b"678"], {"a": "b"}), limits)
    check_size(OutMessage(A, [b"1234567890"]), limits)
    for items, headers in (([b"12345", b"6789"], {"a": "b"}), ([b"12345678901"], {})):
        with pytest.raises(ValueError, match=r"n/a: a message of 11 bytes .* is 10"):
            check_size(OutMessage(A, items, headers), limits)


TEXTS = st.text(max_size=20)


@given(
    st.builds(StreamId, TEXTS, TEXTS),
    st.lists(st.binary(max_size=9), max_size=9),
    st.dictionaries(TEXTS, TEXTS, max_size=3),
    st.none() | st.builds(ProducerMark, TEXTS, st.just(1)),
    st.integers(1, 5_000),
    st.integers(1, 9),
)
def test_a_small_message_is_never_refused_or_cut(
    stream: StreamId,
    items: list[bytes],
    headers: dict[str, str],
    mark: ProducerMark | None,
    bytes_max: int,
    items_max: int,
) -> None:
    limits = PublishLimits(queue=MessageLimits(bytes_max, items_max))
    producer = "" if mark is None else mark.producer
    if (size := limits.small(stream, items, headers, producer)) >= 0:
        message = OutMessage(stream, items, headers, mark)
        check_size(message, limits)
        assert messages_of(stream, items, headers, limits) == [items]
        assert size == content_bytes(items, headers)


@pytest.mark.parametrize(("headers", "producer"), [({}, ""), ({}, "pqr"), ({"a": "bc"}, "")])
def test_a_message_is_small_up_to_its_limits(headers: dict[str, str], producer: str) -> None:
    items = [b"1", b"2"]
    names = len(A.namespace) + len(A.key) + len(producer)
    content = content_bytes(items, headers)
    limit = HEAD_BYTES + 4 * names + content + VALUE_HEAD_BYTES * (2 + 2 * len(headers))

    def small(**of: Any) -> int:
        return PublishLimits(**of).small(A, items, headers, producer)

    assert small(queue=MessageLimits(limit, 2)) == content
    assert small(message_bytes_max=limit) == small(bytes_max=limit) == content
    assert small(queue=MessageLimits(limit - 1, 2)) == -1
    assert small(message_bytes_max=limit - 1) == small(bytes_max=limit - 1) == -1
    assert small(queue=MessageLimits(limit, 1)) == small(items_max=1) == -1
    assert PublishLimits().small(A, (), {}) == -1


@pytest.mark.parametrize("head", [None, OutMessage(A, (), {"h": "xyz"})])
def test_a_list_is_cut_where_its_queue_accepts_no_more_to_the_byte(head: OutMessage | None) -> None:
    room = 2 * (10 + VALUE_HEAD_BYTES) + (0 if head is None else message_bytes(head))
    limits = PublishLimits(queue=MessageLimits(room))
    whole = [b"x" * 10] * 2
    (part,) = split_items(whole, limits, head)
    assert part is whole
    for sizes_of, wanted in (([10, 10, 10], [2, 1]), ([10, 11], [1, 1]), ([11, 9, 1], [2, 1])):
        parts = split_items([b"x" * size for size in sizes_of], limits, head)
        assert [len(one) for one in parts] == wanted


@pytest.mark.parametrize("head", [None, OutMessage(A, (), {"h": "xyz"})])
def test_a_list_is_cut_at_the_size_of_a_message_less_its_headers(head: OutMessage | None) -> None:
    limits = PublishLimits(message_bytes_max=20 + (0 if head is None else 4))
    for sizes_of, wanted in (([10, 10], [2]), ([10, 11], [1, 1]), ([10, 10, 10], [2, 1])):
        parts = split_items([b"x" * size for size in sizes_of], limits, head)
        assert [len(one) for one in parts] == wanted


@given(
    st.lists(st.binary(min_size=1, max_size=60), max_size=30),
    st.dictionaries(TEXTS, TEXTS, max_size=2),
    st.integers(150, 600),
    st.integers(1, 9),
)
def test_each_part_of_a_list_is_accepted_unless_it_is_one_item_that_is_too_large(
    bodies: list[bytes], headers: dict[str, str], bytes_max: int, items_max: int
) -> None:
    limits = PublishLimits(bytes_max=200, queue=MessageLimits(bytes_max, items_max))
    head = OutMessage(A, (), headers)
    parts = split_items(bodies, limits, head)
    assert [body for part in parts for body in part] == bodies
    for part in parts:
        assert len(part) == 1 or not limits.queue.refusal(with_fields(head, items=part))


def test_half_of_a_frame_is_for_what_is_sent() -> None:
    limits = PublishLimits(items_max=7, bytes_max=100, message_bytes_max=1_000)
    assert limits.within(2_001) == PublishLimits(7, 100, 1_000, MessageLimits(1_500))
    assert limits.within(1_999) == PublishLimits(7, 100, 999, MessageLimits(1_499))
    assert limits.within(198) == PublishLimits(7, 99, 99, MessageLimits(148))
    assert limits.within(1) == limits.within(0) == PublishLimits(7, 1, 1, MessageLimits(1))
    queue = MessageLimits(80, 3)
    assert replace(limits, queue=queue).within(198) == PublishLimits(7, 99, 99, queue)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_messages_max": 0},
        {"batch_bytes_max": 0},
        {"waiting_bytes_max": 0},
        {"call_limit_s": 0.0},
    ],
)
def test_limits_of_nothing_are_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SendLimits(**wrong)
