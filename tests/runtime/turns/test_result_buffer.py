"""The batches of a streamed result: each item once, in order, within the limits."""

from __future__ import annotations

import random

import pytest

from millstream.runtime import ResultsAborted
from millstream.runtime.turns.result_buffer import ResultBuffer


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_requests_and_repetitions_gives_each_item_once(seed: int) -> None:
    rng = random.Random(seed)
    items_max, bytes_max = rng.randint(1, 6), rng.randint(1, 60)
    buffer = ResultBuffer(items_max, bytes_max)
    given = [rng.randbytes(rng.randint(0, 30)) for _ in range(60)]
    waiting, got, last, number = list(given), [], [b"none"], 0
    while waiting or not buffer.is_empty:
        if waiting and buffer.has_room(len(waiting[0])) and rng.random() < 0.7:
            buffer.put(waiting.pop(0))
        elif rng.random() < 0.4 and number:
            assert buffer.repeats(number)
            assert buffer.take(number) == last
        else:
            number += 1
            assert not buffer.repeats(number)
            last = buffer.take(number)
            assert len(last) <= items_max
            assert len(last) < 2 or sum(map(len, last)) <= bytes_max
            got += last
    assert got == given


def test_a_batch_is_full_at_each_of_its_limits() -> None:
    buffer = ResultBuffer(2, 10)
    assert buffer.has_room(1_000)  # one item alone may be larger
    buffer.put(b"12345")
    assert buffer.has_room(5) and not buffer.has_room(6)
    buffer.put(b"12345")
    assert not buffer.has_room(0)
    assert buffer.take(1) == [b"12345", b"12345"]
    assert buffer.is_empty and buffer.has_room(1_000)
    buffer.put(b"12345")
    assert buffer.has_room(5) and not buffer.has_room(6)


@pytest.mark.parametrize("number", [-1, 0, 1, 4])
def test_other_numbers_than_the_last_and_the_next_are_refused(number: int) -> None:
    buffer = ResultBuffer(2, 10)
    buffer.take(1)
    buffer.take(2)
    with pytest.raises(ResultsAborted, match=f"batch {number} .* after batch 2"):
        buffer.take(number)
    assert buffer.take(2) == []


def test_the_first_request_has_the_number_one() -> None:
    with pytest.raises(ResultsAborted):
        ResultBuffer(2, 10).take(0)
