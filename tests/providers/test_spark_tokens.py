"""The identities of messages: equal for every attempt, and different for all other messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pyspark_millstream.tokens import NUMBER_BITS, Numbering, Origin

ORIGINS = st.builds(Origin, st.sampled_from(["a", "b"]), st.integers(0, 1 << 40), st.integers(0, 3))


def marks(origin: Origin, count: int) -> list[tuple[str, int]]:
    numbering = Numbering(origin)
    pairs = [(origin.producer, numbering.take()) for _ in range(count)]
    numbering.check()
    assert numbering.used == count
    return pairs


def test_a_message_is_named_by_writer_partition_batch_and_number() -> None:
    assert marks(Origin("query-1", 3, 7), 2) == [
        ("query-1/7", 3 << 31),
        ("query-1/7", (3 << 31) + 1),
    ]


@given(ORIGINS, st.integers(0, 20))
def test_another_attempt_gets_the_same_marks(origin: Origin, count: int) -> None:
    again = Origin(origin.writer, origin.batch, origin.partition)
    assert marks(origin, count) == marks(again, count)


@given(st.sets(ORIGINS, max_size=8), st.integers(1, 20))
def test_no_two_messages_share_a_mark(origins: set[Origin], count: int) -> None:
    pairs = [pair for origin in origins for pair in marks(origin, count)]
    assert len(set(pairs)) == len(origins) * count


@given(ORIGINS, st.integers(1, 5))
def test_sequences_of_a_producer_grow_from_batch_to_batch_below_63_bits(
    origin: Origin, count: int
) -> None:
    seqs = [seq for _, seq in marks(origin, count)]
    assert seqs == sorted(set(seqs)) and 0 <= seqs[0] and seqs[-1] < 1 << 63
    if origin.batch:
        before = Origin(origin.writer, origin.batch - 1, origin.partition)
        if before.producer == origin.producer:
            assert max(seq for _, seq in marks(before, count)) < seqs[0]


def test_batch_ids_have_no_end() -> None:
    last, next_ = Origin("w", (1 << 32) - 1, 0), Origin("w", 1 << 32, 0)
    assert marks(last, 1) == [("w/0", ((1 << 32) - 1) << 31)]
    assert marks(next_, 1) == [("w/0/1", 0)]
    assert marks(Origin("w", (5 << 32) + 7, 0), 1) == [("w/0/5", 7 << 31)]


def test_more_messages_than_fit_into_a_batch_are_refused() -> None:
    numbering = Numbering(Origin("w", (1 << 32) - 1, 0))
    numbering._used = (1 << NUMBER_BITS) - 1
    assert numbering.take() == (1 << 63) - 1
    with pytest.raises(ValueError, match="more than 2147483648 messages"):
        numbering.take()
