"""Messages as Arrow batches: values that fit the columns, and the errors for others."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
arrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from millstream.streams import Token  # noqa: E402
from millstream.streams.rewinding.target import ReadMessage  # noqa: E402
from pyspark_millstream import rows as rows_module  # noqa: E402
from pyspark_millstream.columns import PLAIN, Columns, cut  # noqa: E402
from pyspark_millstream.rows import Chunker, encode_message  # noqa: E402

PLAIN_KINDS = [
    arrow.string(),
    arrow.binary(),
    arrow.map_(arrow.string(), arrow.string()),
    arrow.string(),
    arrow.timestamp("us", "UTC"),
]
TIME = datetime(2026, 1, 31, 12, 0, 0, 250000, UTC)


def message(key: str, *items: Any, seq: int = 5, headers: dict[str, str] | None = None) -> Any:
    raw = [msgspec.Raw(msgspec.msgpack.encode(item)) for item in items]
    return ReadMessage(key, Token(0, seq), raw, TIME.timestamp(), headers)


def rows(messages: list[Any], **kinds: Any) -> list[dict[str, Any]]:
    schema = arrow.schema(list(kinds.items()))
    found: list[dict[str, Any]] = Columns(schema, is_plain=False).batch(messages).to_pylist()
    return found


def test_without_a_schema_a_row_has_what_the_message_has() -> None:
    schema = arrow.schema(list(zip(PLAIN, PLAIN_KINDS, strict=True)))
    messages = [message("a", 1, "x", headers={"h": "1"}), message("b", None, seq=6)]
    found = Columns(schema, is_plain=True).batch(messages)
    assert found.schema == schema
    assert [
        (row["key"], row["payload"], row["token"][-8:], row["time"]) for row in found.to_pylist()
    ] == [
        ("a", b"\x01", "00000000", TIME),
        ("a", b"\xa1x", "00000001", TIME),
        ("b", b"\xc0", "00000000", TIME),
    ]
    assert [row["headers"] for row in found.to_pylist()] == [[("h", "1")], [("h", "1")], []]


def test_with_a_schema_columns_are_fields_and_those_of_the_message() -> None:
    items = {"n": 7, "key": "its own", "x": 1.5}, {"n": None}
    found = rows(
        [message("a", *items)],
        n=arrow.int64(),
        key=arrow.string(),
        _key=arrow.string(),
        x=arrow.float64(),
        y=arrow.bool_(),
        _time=arrow.timestamp("us", "UTC"),
    )
    assert found == [
        {"n": 7, "key": "its own", "_key": "a", "x": 1.5, "y": None, "_time": TIME},
        {"n": None, "key": None, "_key": "a", "x": None, "y": None, "_time": TIME},
    ]


VALUES = {
    "number": (7, arrow.int32()),
    "real": (2.5, arrow.float64()),
    "flag": (True, arrow.bool_()),
    "text": ("x", arrow.string()),
    "raw": (b"\x00", arrow.binary()),
    "day": (date(2026, 1, 31), arrow.date32()),
    "price": (Decimal("12.50"), arrow.decimal128(9, 2)),
    "at": (TIME, arrow.timestamp("us", "UTC")),
    "here": (TIME.replace(tzinfo=None), arrow.timestamp("us")),
    "many": ([1, 2], arrow.list_(arrow.int64())),
    "part": ({"a": 1}, arrow.struct([("a", arrow.int64())])),
    "map": ([("a", 1)], arrow.map_(arrow.string(), arrow.int64())),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_the_sink_wrote_is_read_as_it_was(name: str) -> None:
    value, kind = VALUES[name]
    schema = arrow.schema([("key", arrow.string()), (name, kind)])
    given = arrow.RecordBatch.from_pylist([{"key": "k", name: v} for v in (value, None)], schema)
    chunker = Chunker("key", [name], 10)
    (chunk,) = chunker.all(given, iter(()))
    key, _, items = msgspec.msgpack.decode(encode_message(chunk[0]))
    assert rows([message(key, *items)], **{name: kind}) == [{name: value}, {name: None}]


@pytest.mark.parametrize("name", VALUES)
def test_a_batch_that_is_decoded_in_slices_gives_the_same_items(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, kind = VALUES[name]
    schema = arrow.schema([("key", arrow.string()), (name, kind)])
    values = [value, None, value, value, None, value]
    given = arrow.RecordBatch.from_pylist([{"key": "k", name: v} for v in values], schema)

    def items() -> list[bytes]:
        (chunk,) = Chunker("key", [name], 10).all(given, iter(()))
        return chunk[0].items

    whole = items()
    monkeypatch.setattr(rows_module, "DECODED_BYTES", 1)
    assert items() == whole and len(whole) == len(values)


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00.25", "2026-01-31T12:00:00.25Z"])
def test_a_time_as_text_is_of_utc_where_it_has_no_zone(text: str) -> None:
    assert rows([message("a", {"at": text})], at=arrow.timestamp("us", "UTC")) == [{"at": TIME}]


@pytest.mark.parametrize(
    ("item", "kind", "text"),
    [
        ({"n": "x"}, arrow.int64(), "column 'n' is int64, and the item of stream 'a' at 0000"),
        ({"n": 1 << 40}, arrow.int32(), "has 1099511627776"),
        ({"n": 1}, arrow.string(), "it is not text"),
        ({"n": [1]}, arrow.int64(), r"has \[1\]"),
        (7, arrow.int64(), "is int, not a map: read without a schema"),
    ],
)
def test_what_does_not_fit_is_named(item: Any, kind: Any, text: str) -> None:
    messages = [message("z", {"n": None}), message("a", item)]
    with pytest.raises(ValueError, match=text):
        rows(messages, n=kind)


def malformed() -> list[Any]:
    """Three valid items, and between them an invalid one of each kind."""
    odd = ReadMessage("c", Token(0, 8), [msgspec.Raw(b"\xc1")], 0.0)
    return [
        message("a", {"n": 1, "s": "x"}, {"n": "one", "s": "y"}, seq=6),
        message("b", 7, {"n": 2, "s": 3}, {"n": 3, "s": "z"}, seq=7),
        odd,
        message("a", {"n": 4}, seq=9),
    ]


def made(mode: str, corrupt_kind: Any) -> tuple[list[dict[str, Any]], Columns]:
    kinds = {"n": arrow.int64(), "s": arrow.string(), "_key": arrow.string(), "bad": corrupt_kind}
    columns = Columns(arrow.schema(list(kinds.items())), is_plain=False, mode=mode, corrupt="bad")
    return columns.batch(malformed()).to_pylist(), columns


def test_a_permissive_read_keeps_what_fits_and_says_what_does_not() -> None:
    found, columns = made("permissive", arrow.string())
    assert [(row["n"], row["s"], row["_key"]) for row in found] == [
        (1, "x", "a"),
        (None, "y", "a"),
        (None, None, "b"),
        (2, None, "b"),
        (3, "z", "b"),
        (None, None, "c"),
        (4, None, "a"),
    ]
    reasons = [row["bad"] for row in found]
    for row, said in ((1, "'one'"), (2, "not a map"), (3, "not text"), (5, "cannot be decoded")):
        assert said in reasons[row] and "the item of stream" in reasons[row]
    assert [reasons[row] for row in (0, 4, 6)] == [None] * 3 and not columns.dropped
    items = [row["bad"] for row in made("permissive", arrow.binary())[0]]
    assert items[2] == b"\x07" and items[5] == b"\xc1" and items[0] is None
    assert msgspec.msgpack.decode(items[3]) == {"n": 2, "s": 3}


def test_a_permissive_read_without_the_column_has_nulls() -> None:
    schema = arrow.schema([("n", arrow.int64())])
    columns = Columns(schema, is_plain=False, mode="permissive", corrupt="bad")
    found = columns.batch(malformed())
    assert found.column("n").to_pylist() == [1, None, None, 2, 3, None, 4]


def test_malformed_items_are_dropped_and_counted() -> None:
    found, columns = made("dropmalformed", arrow.string())
    assert [(row["n"], row["bad"]) for row in found] == [(1, None), (3, None), (4, None)]
    assert columns.dropped == 4


def test_a_malformed_item_ends_a_failfast_read() -> None:
    with pytest.raises(ValueError, match="column 'n' is int64, and the item of stream 'a' at"):
        rows(malformed()[:1], n=arrow.int64())
    with pytest.raises(ValueError, match="'b' at .* is int, not a map"):
        rows(malformed()[1:], n=arrow.int64())


def test_an_item_that_is_no_messagepack_is_named() -> None:
    odd = ReadMessage("a", Token(0, 5), [msgspec.Raw(b"\xc1")], 0.0)
    with pytest.raises(ValueError, match="the item of stream 'a' .* cannot be decoded"):
        rows([odd], n=arrow.int64())


def test_messages_are_cut_into_parts_of_so_many_rows() -> None:
    def cut_at_4(*counts: int) -> list[list[int]]:
        messages = [message("a", *range(count)) for count in counts]
        return [[len(one.items) for one in part] for part in cut(messages, 4)]

    assert cut_at_4(3, 1, 9, 1, 1) == [[3, 1], [9], [1, 1]]
    assert cut_at_4(4, 3, 1, 3) == [[4], [3, 1], [3]]
    assert list(cut([], 4)) == []
