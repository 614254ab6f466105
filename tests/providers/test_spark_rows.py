"""Arrow batches to messages: values, chunks, groups."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="needs the extra `spark`")
arrow = pytest.importorskip("pyarrow", reason="needs the extra `spark`")

from millstream.streams.publishing.ingest import IngestMessage  # noqa: E402
from pyspark_millstream.rows import Chunk, Chunker, encode_chunk  # noqa: E402
from pyspark_millstream.tokens import Numbering, Origin  # noqa: E402
from pyspark_millstream.values import values_of  # noqa: E402

NAN = float("nan")
MOMENT = datetime(2013, 1, 1, 10, 0, 0, 250000, tzinfo=UTC)
BEFORE_1970 = datetime(1, 1, 1, tzinfo=UTC)


def chunks_of(rows: list[tuple[str, int]], cuts: list[int], chunk_rows: int) -> list[Chunk]:
    """The chunks of rows that come in batches which end at these places."""
    chunker = Chunker("key", ["n"], chunk_rows)
    chunks: list[Chunk] = []
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for start, end in pairwise(edges):
        part = rows[start:end]
        columns = {
            "n": arrow.array([n for _, n in part], arrow.int64()),
            "key": arrow.array([key for key, _ in part], arrow.string()),
        }
        chunks += chunker.feed(arrow.record_batch(columns))
        chunker.check()
    return chunks + list(chunker.rest())


ROWS = st.lists(st.sampled_from("abc"), max_size=60).map(
    lambda keys: [(key, n) for n, key in enumerate(keys)]
)


@given(ROWS, st.lists(st.integers(0, 60), max_size=6), st.integers(1, 20))
def test_chunks_do_not_depend_on_how_spark_cut_the_batches(
    rows: list[tuple[str, int]], cuts: list[int], chunk_rows: int
) -> None:
    chunks = chunks_of(rows, cuts, chunk_rows)
    assert chunks == chunks_of(rows, [], chunk_rows)
    sizes = [sum(map(len, chunk.values())) for chunk in chunks]
    assert sum(sizes) == len(rows)
    assert all(size == chunk_rows for size in sizes[:-1])


@given(ROWS, st.integers(1, 20))
def test_grouping_keeps_the_order_per_key_and_of_first_appearance(
    rows: list[tuple[str, int]], chunk_rows: int
) -> None:
    for number, chunk in enumerate(chunks_of(rows, [], chunk_rows)):
        part = rows[number * chunk_rows : (number + 1) * chunk_rows]
        assert list(chunk) == list(dict.fromkeys(key for key, _ in part))
        for key, items in chunk.items():
            assert items == [{"n": n} for other, n in part if other == key]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (arrow.array([1, None, -(2**62)]), [1, None, -(2**62)]),
        (arrow.array([1.5, NAN, None, float("inf")]), [1.5, None, None, float("inf")]),
        (arrow.array([0.5, NAN], arrow.float32()), [0.5, None]),
        (arrow.array(["x", None]), ["x", None]),
        (arrow.array([True, None]), [True, None]),
        (arrow.array([b"\x00", None]), [b"\x00", None]),
        (arrow.array([Decimal("1.10"), None]), [Decimal("1.10"), None]),
        (arrow.array([date(2013, 1, 1), None]), [date(2013, 1, 1), None]),
        (arrow.array([[1, None], None]), [[1, None], None]),
        (arrow.array([[("a", 1)]], arrow.map_(arrow.string(), arrow.int64())), [{"a": 1}]),
        (arrow.array([{"a": 1}, None]), [{"a": 1}, None]),
        (
            arrow.array([MOMENT, None, BEFORE_1970], arrow.timestamp("us", "America/New_York")),
            [MOMENT, None, BEFORE_1970],
        ),
        (
            arrow.array([MOMENT.replace(tzinfo=None), None], arrow.timestamp("us")),
            [MOMENT.replace(tzinfo=None), None],
        ),
    ],
    ids=lambda value: str(value.type) if hasattr(value, "type") else "",
)
def test_values_of_a_column_are_plain_and_missing_ones_nil(column: Any, values: list[Any]) -> None:
    got = values_of(column)
    assert got == values
    msgspec.msgpack.encode(got)


def test_a_timestamp_crosses_the_wire_as_the_same_instant() -> None:
    column = arrow.array([MOMENT], arrow.timestamp("us", "America/New_York"))
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(values_of(column)))
    assert decoded == [MOMENT]


def test_a_chunk_is_an_array_of_messages_with_embedded_items() -> None:
    numbering = Numbering(Origin("w", 2, 1))
    chunk: Chunk = {"BOS": [{"n": 1}, {"n": None}], "JFK": [{"n": 3}]}
    body = encode_chunk(chunk, numbering)
    first = 2 << 31
    assert msgspec.msgpack.decode(body) == [
        ["BOS", first, [{"n": 1}, {"n": None}]],
        ["JFK", first + 1, [{"n": 3}]],
    ]
    sent = msgspec.msgpack.decode(body, type=list[IngestMessage])
    assert [(one.key, one.seq, len(one.items)) for one in sent] == [
        ("BOS", first, 2),
        ("JFK", first + 1, 1),
    ]


def test_integer_keys_become_text() -> None:
    chunker = Chunker("id", ["id"], 10)
    assert not list(chunker.feed(arrow.record_batch({"id": arrow.array([7, -1, 7])})))
    assert list(chunker.rest()) == [{"7": [{"id": 7}, {"id": 7}], "-1": [{"id": -1}]}]
    assert not list(chunker.rest())


def test_a_null_key_is_refused_with_its_row() -> None:
    chunker = Chunker("key", ["key"], 10)
    list(chunker.feed(arrow.record_batch({"key": arrow.array(["a"])})))
    with pytest.raises(ValueError, match="key_column 'key' is null in 1 rows, first in row 2"):
        list(chunker.feed(arrow.record_batch({"key": arrow.array(["b", None])})))
