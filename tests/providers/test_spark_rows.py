"""Arrow batches as messages: values, chunks and groups."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
arrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from millstream.streams.contracts.message import VALUE_HEAD_BYTES  # noqa: E402
from millstream.streams.extending import IngestMessage  # noqa: E402
from pyspark_millstream import rows as rows_module  # noqa: E402
from pyspark_millstream.rows import (  # noqa: E402
    Chunk,
    Chunker,
    KeyedRows,
    MessageSize,
    encode_message,
)
from pyspark_millstream.values import values_of  # noqa: E402

NAN = float("nan")
MOMENT = datetime(2013, 1, 1, 10, 0, 0, 250000, tzinfo=UTC)
BEFORE_1970 = datetime(1, 1, 1, tzinfo=UTC)


def chunks_of(
    rows: list[tuple[str, int]],
    cuts: list[int],
    chunk_rows: int,
    size: MessageSize | None = None,
    pad: str = "",
) -> list[Chunk]:
    """Chunk rows that come in Arrow batches cut at these places."""
    chunker = Chunker("key", ["n", "pad"] if pad else ["n"], chunk_rows, size)
    chunks: list[Chunk] = []
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for start, end in pairwise(edges):
        part = rows[start:end]
        columns = {
            "n": arrow.array([n for _, n in part], arrow.int64()),
            "key": arrow.array([key for key, _ in part], arrow.string()),
            "pad": arrow.array([pad * (1 + n % 3) for _, n in part], arrow.string()),
        }
        chunks += chunker.feed(arrow.record_batch(columns))
        chunker.check()
    return chunks + list(chunker.rest())


ROWS = st.lists(st.sampled_from("abc"), max_size=60).map(
    lambda keys: [(key, n) for n, key in enumerate(keys)]
)


def numbers_of(message: KeyedRows) -> list[int]:
    return [msgspec.msgpack.decode(item)["n"] for item in message.items]


@given(
    ROWS,
    st.lists(st.integers(0, 60), max_size=6),
    st.integers(1, 20),
    st.integers(20, 300),
    st.integers(1, 9),
)
def test_chunks_do_not_depend_on_how_spark_cut_the_batches(
    rows: list[tuple[str, int]],
    cuts: list[int],
    chunk_rows: int,
    message_bytes: int,
    items: int,
) -> None:
    size = MessageSize(message_bytes, items)
    chunks = chunks_of(rows, cuts, chunk_rows, size, "x" * 30)
    assert chunks == chunks_of(rows, [], chunk_rows, size, "x" * 30)
    counts = [sum(len(message.items) for message in chunk) for chunk in chunks]
    assert sum(counts) == len(rows)
    assert all(count == chunk_rows for count in counts[:-1])


@given(ROWS, st.integers(1, 20), st.integers(20, 300), st.integers(1, 9))
def test_grouping_keeps_the_order_per_key_and_of_first_appearance(
    rows: list[tuple[str, int]], chunk_rows: int, message_bytes: int, items: int
) -> None:
    size = MessageSize(message_bytes, items)
    for number, chunk in enumerate(chunks_of(rows, [], chunk_rows, size, "x" * 9)):
        part = rows[number * chunk_rows : (number + 1) * chunk_rows]
        firsts = [numbers_of(message)[0] for message in chunk]
        assert firsts == sorted(firsts)
        for key in {key for key, _ in part}:
            mine = [message for message in chunk if message.key == key]
            assert [n for one in mine for n in numbers_of(one)] == [n for k, n in part if k == key]
            for one, next_one in pairwise([*mine, None]):
                assert one is not None and 1 <= len(one.items) <= items
                assert bytes_of(one) <= message_bytes or len(one.items) == 1
                if next_one is not None:  # the message was full
                    with_next = bytes_of(one) + 5 + len(next_one.items[0])
                    assert len(one.items) == items or with_next > message_bytes


def test_a_row_counts_as_much_as_queues_count() -> None:
    assert rows_module.ROW_HEAD_BYTES == VALUE_HEAD_BYTES


def bytes_of(message: KeyedRows) -> int:
    return len(message.key) + sum(len(item) + 5 for item in message.items)


def test_a_chunk_is_bounded_by_bytes_too_and_so_is_what_is_decoded_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows_module, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(rows_module, "DECODED_BYTES", 500)
    decoded: list[int] = []
    items_of = rows_module._items_of

    def noted(batch: Any, names: tuple[str, ...]) -> Any:
        decoded.append(batch.num_rows)
        return items_of(batch, names)

    monkeypatch.setattr(rows_module, "_items_of", noted)
    chunks = chunks_of([("abc"[n % 3], n) for n in range(90)], [], 1_000, None, "x" * 50)
    sizes = [sum(len(item) for one in chunk for item in one.items) for chunk in chunks]
    assert len(chunks) > 5 and all(800 < size <= 1_000 for size in sizes[:-1])
    assert sum(decoded) == 90 and max(decoded) <= 5


@pytest.mark.parametrize("extra", [0, 1])
def test_a_row_that_no_queue_accepts_is_refused_with_its_place(extra: int) -> None:
    rows = arrow.record_batch({"key": ["k", "k"], "pad": ["x", "x" * 100]})
    body = msgspec.msgpack.encode({"pad": "x" * 100})
    largest = len(body) + 5 + 1
    chunker = Chunker("key", ["pad"], 10, MessageSize(50, 10, largest - extra))
    if not extra:
        assert not list(chunker.feed(rows))
        assert [len(one.items) for one in next(chunker.rest())] == [1, 1]
        return
    want = (
        f"row 1 of the partition, with key 'k', makes a message of {largest} bytes; .*{largest - 1}"
    )
    with pytest.raises(ValueError, match=want):
        list(chunker.feed(rows))


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


def test_a_message_has_embedded_items() -> None:
    items = [msgspec.msgpack.encode({"n": n}) for n in (1, None)]
    body = encode_message(KeyedRows("BÖS", items), 2 << 31)
    assert msgspec.msgpack.decode(body) == ["BÖS", 2 << 31, [{"n": 1}, {"n": None}]]
    sent = msgspec.msgpack.decode(body, type=IngestMessage)
    assert (sent.key, sent.seq, len(sent.items)) == ("BÖS", 2 << 31, 2)
    many = encode_message(KeyedRows("k", [b"\x07"] * 70_000))
    assert msgspec.msgpack.decode(many) == ["k", 0, [7] * 70_000]


def test_integer_keys_become_text() -> None:
    chunker = Chunker("id", ["id"], 10)
    assert not list(chunker.feed(arrow.record_batch({"id": arrow.array([7, -1, 7])})))
    (chunk,) = chunker.rest()
    assert [(one.key, len(one.items)) for one in chunk] == [("7", 2), ("-1", 1)]
    assert not list(chunker.rest())


def test_a_null_key_is_refused_with_its_row() -> None:
    chunker = Chunker("key", ["key"], 10)
    list(chunker.feed(arrow.record_batch({"key": arrow.array(["a"])})))
    with pytest.raises(ValueError, match="key_column 'key' is null in 1 rows, first in row 2"):
        list(chunker.feed(arrow.record_batch({"key": arrow.array(["b", None])})))
