"""Columns become item values and columns again, with any nesting of types."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
arrow = pytest.importorskip("pyarrow", reason="PyArrow is not installed (extra `spark`)")

from hypothesis import settings  # noqa: E402

from pyspark_millstream.values import array_of, values_of  # noqa: E402

INT64 = st.integers(-(2**63), 2**63 - 1)
NAN = float("nan")
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))


def decimals(digits: int, places: int) -> st.SearchStrategy[Decimal]:
    def made(number: int) -> Decimal:
        return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -places))

    return st.integers(-(10**digits) + 1, 10**digits - 1).map(made)


SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (arrow.bool_(), st.booleans()),
    (arrow.int8(), st.integers(-128, 127)),
    (arrow.int16(), st.integers(-(2**15), 2**15 - 1)),
    (arrow.int32(), st.integers(-(2**31), 2**31 - 1)),
    (arrow.int64(), INT64),
    (arrow.float32(), st.floats(width=32)),
    (arrow.float64(), st.floats()),
    (arrow.string(), st.text(st.characters(codec="utf-8"), max_size=5)),
    (arrow.binary(), st.binary(max_size=5)),
    (arrow.date32(), st.dates()),
    (arrow.timestamp("us", "UTC"), TIMES.map(lambda one: one.replace(tzinfo=UTC))),
    (arrow.timestamp("us"), TIMES),
    (arrow.time64("ns"), st.times()),
    (arrow.duration("us"), st.timedeltas(timedelta(days=-99_999), timedelta(days=99_999))),
    *(
        (
            arrow.decimal128(digits, places),
            decimals(digits, places),
        )
        for digits, places in ((38, 18), (38, 0), (10, 10), (5, 2))
    ),
]


Kinds = tuple[Any, st.SearchStrategy[Any]]


def nullable(kinds: Kinds) -> st.SearchStrategy[Any]:
    return st.none() | kinds[1]


def listed(inner: Kinds) -> Kinds:
    return arrow.list_(inner[0]), st.lists(nullable(inner), max_size=3)


def mapped(key: Kinds, inner: Kinds) -> Kinds:
    pairs = st.lists(st.tuples(key[1], nullable(inner)), max_size=3, unique_by=lambda pair: pair[0])
    return arrow.map_(key[0], inner[0]), pairs


def structed(inner: list[Kinds]) -> Kinds:
    fields = {f"f{at}": one for at, one in enumerate(inner)}
    kind = arrow.struct([(name, one[0]) for name, one in fields.items()])
    return kind, st.fixed_dictionaries({name: nullable(one) for name, one in fields.items()})


def deeper(inner: st.SearchStrategy[Kinds]) -> st.SearchStrategy[Kinds]:
    """Nest the types one level deeper."""
    return st.one_of(
        inner.map(listed),
        st.lists(inner, min_size=1, max_size=2).map(structed),
        st.builds(mapped, st.sampled_from(SCALARS), inner),
    )


ONE = st.sampled_from(SCALARS)
KINDS = st.one_of(ONE, deeper(ONE), deeper(ONE | deeper(ONE)), deeper(deeper(deeper(ONE))))


def shown(value: Any, nan: str | None, *, is_key: bool = False) -> Any:
    """Return a comparable value: NaN becomes "NaN" as a key, and `nan` elsewhere."""
    if isinstance(value, float) and value != value:
        return "NaN" if is_key else nan
    if isinstance(value, dict):
        return {name: shown(one, nan) for name, one in value.items()}
    if isinstance(value, tuple):
        return shown(value[0], nan, is_key=True), shown(value[1], nan)
    return [shown(one, nan) for one in value] if isinstance(value, list) else value


@given(st.data())
@settings(max_examples=examples(400), deadline=None)
def test_every_value_comes_back_as_it_was_three_deep(data: st.DataObject) -> None:
    kinds = data.draw(KINDS)
    given_values = data.draw(st.lists(nullable(kinds), max_size=4))
    column = arrow.array([None, *given_values], kinds[0]).slice(1)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(values_of(column)))
    back = array_of(sent, kinds[0])
    back.validate(full=True)
    assert back.type == kinds[0]
    assert shown(back.to_pylist(), "NaN") == shown(column.to_pylist(), None)


NAIVE = arrow.timestamp("us")
NESTED = arrow.struct([("day", arrow.date32()), ("prices", arrow.list_(arrow.decimal128(9, 2)))])


def test_what_is_missing_in_a_struct_is_null_and_what_is_more_is_left_out() -> None:
    found = array_of([{"day": "2026-01-31", "x": 1}, None, {}], NESTED).to_pylist()
    day = {"day": date(2026, 1, 31), "prices": None}
    assert found == [day, None, {"day": None, "prices": None}]


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ({"day": "yesterday"}, NESTED, "at .day: .*yesterday"),
        ({"prices": ["1.50", "1.505"]}, NESTED, r"at .prices: at \[\]: "),
        ({"prices": 7}, NESTED, "at .prices: it is int, not a list"),
        ([7], NESTED, "it is list, not a map of fields"),
        ({"a": "x"}, arrow.map_(arrow.string(), arrow.int64()), "at {}: "),
        ({"x": 1}, arrow.map_(arrow.date32(), arrow.int64()), "at  key: "),
        ({None: 1}, arrow.map_(arrow.string(), arrow.int64()), "the key nil"),
        (7, arrow.map_(arrow.string(), arrow.int64()), "it is int, not a map"),
    ],
)
def test_the_place_of_what_does_not_fit_is_named(value: Any, kind: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        array_of([None, value], kind)


def test_maps_that_no_item_can_have_are_refused() -> None:
    nested = arrow.array([[([1], 1)]], arrow.map_(arrow.list_(arrow.int64()), arrow.int64()))
    with pytest.raises(ValueError, match="keys of type list.*map_entries"):
        values_of(nested)
    twice = arrow.array([[("a", 1), ("a", 2)]], arrow.map_(arrow.string(), arrow.int64()))
    with pytest.raises(ValueError, match="2 entries, but only 1 different keys"):
        values_of(twice)


def test_a_time_without_a_zone_is_of_utc_also_in_a_list() -> None:
    zoned = arrow.list_(arrow.timestamp("us", "UTC"))
    found = array_of([["2026-01-31T12:00:00", datetime(2026, 1, 31, tzinfo=UTC)]], zoned)
    assert found.to_pylist() == [[datetime(2026, 1, 31, hour, tzinfo=UTC) for hour in (12, 0)]]
    assert array_of(["12:00:00.5"], arrow.time64("us")).to_pylist() == [time(12, 0, 0, 500_000)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ([[NAN, 1.5]], [None, 1.5]),
        ([{"a": NAN}], {"a": None}),
        ([[{"a": [NAN]}]], [{"a": [None]}]),
    ],
)
def test_nan_is_missing_at_every_depth(column: Any, value: Any) -> None:
    assert values_of(arrow.array(column)) == [value]


def test_nan_in_a_map_is_missing_as_a_value_and_kept_as_a_key() -> None:
    kind = arrow.map_(arrow.float64(), arrow.float64())
    (found,) = values_of(arrow.array([[(NAN, NAN), (1.0, NAN)]], kind))
    assert list(found.values()) == [None, None] and None not in found


@pytest.mark.parametrize("kind", [arrow.string(), arrow.large_string()], ids=str)
@pytest.mark.parametrize("value", [7, b"x", True])
def test_a_column_of_texts_takes_nothing_else(kind: Any, value: Any) -> None:
    assert array_of(["a", None], kind).to_pylist() == ["a", None]
    with pytest.raises(TypeError, match="it is not text"):
        array_of(["a", value], kind)


@pytest.mark.parametrize("kind", [arrow.timestamp("ns"), arrow.timestamp("ns", "UTC")], ids=str)
def test_a_time_that_no_item_can_have_is_refused_and_not_cut(kind: Any) -> None:
    (found,) = values_of(arrow.array([1_000], kind))
    assert found == datetime(1970, 1, 1, 0, 0, 0, 1, kind.tz and UTC)
    with pytest.raises(ValueError, match="would lose data"):
        values_of(arrow.array([1_001], kind))


def test_a_struct_without_fields_is_there_or_is_not() -> None:
    assert array_of([None, {}, {"x": 1}], arrow.struct([])).to_pylist() == [None, {}, {}]
