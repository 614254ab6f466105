"""Codec.isolate: the values that pass without a copy, and the equality with the wire."""

from __future__ import annotations

import datetime as dt
import enum
import importlib
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime.extending import codec_of

msgpack: Any = importlib.import_module("msgpack")  # has no type information

PLACE = "Airport.add: argument `by`"


@dataclass
class Flight:
    carrier: str
    delay: float | None = None


@dataclass(frozen=True)
class Point:
    x: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    start: Point
    end: Point
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class FrozenWithList:
    items: list[int]


class Landed(msgspec.Struct, tag=True, frozen=True):
    at: str


class Diverted(msgspec.Struct, tag=True):
    to: str


class Pair(NamedTuple):
    left: int
    right: str


class Color(enum.Enum):
    RED = "red"


Miles = NewType("Miles", int)
Positive = Annotated[int, msgspec.Meta(gt=0)]

FAST: list[tuple[Any, set[type]]] = [
    (int, {int}),
    (int | None, {int, type(None)}),
    (str, {str}),
    (bytes, {bytes}),
    (float, {float}),
    (bool, {bool}),
    (UUID, {UUID}),
    (Decimal, {Decimal}),
    (dt.date, {dt.date}),
    (dt.timedelta, {dt.timedelta}),
    (Color, {Color}),
    (Any, {type(None), bool, int, float, str, bytes}),
    (str | dt.date, {str, dt.date}),
    (Miles, {int}),
    (Positive, set()),
    (dt.datetime, set()),
    (list[int], set()),
    (Flight, set()),
    (bytearray, set()),
]


@pytest.mark.parametrize(("hint", "types"), FAST)
def test_fast_types_are_the_immutable_ones(hint: Any, types: set[type]) -> None:
    assert codec_of(hint, PLACE).fast_types == types


SAME: list[tuple[Any, Any]] = [
    (int, 2**64 - 1),
    (str, "né"),
    (Point, Point(1, "a")),
    (Segment, Segment(Point(1), Point(2))),
    (Landed, Landed("BOS")),
    (Landed | Diverted, Landed("BOS")),
    (Pair, Pair(1, "a")),
    (tuple[int, str], (1, "a")),
    (tuple[Point, ...], (Point(1), Point(2))),
    (frozenset[str], frozenset({"a"})),
    (dt.datetime, dt.datetime(2026, 1, 1)),
    (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    (dt.time, dt.time(1)),
    (Literal["a"], "a"),
    (list[int] | None, None),
    (Color, Color.RED),
]


@pytest.mark.parametrize(("hint", "value"), SAME)
def test_isolate_passes_what_cannot_change(hint: Any, value: Any) -> None:
    assert codec_of(hint, PLACE).isolate(value) is value


COPIED: list[tuple[Any, Any]] = [
    (list[int], [1]),
    (dict[str, int], {}),
    (Flight, Flight("AA")),
    (FrozenWithList, FrozenWithList([1])),
    (tuple[list[int], ...], ([1],)),
    (Any, [1]),
    (Diverted, Diverted("JFK")),
    (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))),
    (dt.datetime, dt.datetime(2026, 1, 1, fold=1)),
]


@pytest.mark.parametrize(("hint", "value"), COPIED)
def test_isolate_copies_what_can_change_or_would_arrive_changed(hint: Any, value: Any) -> None:
    assert codec_of(hint, PLACE).isolate(value) is not value


def test_isolate_copies_a_frozen_value_that_holds_a_subclass() -> None:
    @dataclass(frozen=True)
    class Bigger(Point):
        items: list[int] = field(default_factory=list)

    segment = Segment(Bigger(1, items=[1]), Point(2))
    assert codec_of(Segment, PLACE).isolate(segment) == Segment(Point(1), Point(2))


def test_isolate_brings_a_zoned_datetime_to_utc() -> None:
    tokyo = dt.datetime(2026, 1, 1, 9, tzinfo=ZoneInfo("Asia/Tokyo"))
    assert codec_of(dt.datetime, PLACE).isolate(tokyo).hour == 0


ROWS = st.builds(
    Segment,
    st.builds(Point, st.integers(-(2**70), 2**70) | st.booleans(), st.text()),
    st.builds(Point, st.integers(), st.characters(codec=None)),
    st.lists(st.text()).map(tuple),
)


@given(ROWS)
def test_isolate_equals_the_wire_for_any_frozen_value(value: Segment) -> None:
    codec = codec_of(Segment, PLACE)
    try:
        remote: object = codec.decode(codec.encode(value))
    except TypeError as error:
        with pytest.raises(TypeError) as local:
            codec.isolate(value)
        assert str(local.value) == str(error)
    else:
        assert codec.isolate(value) == remote
        assert repr(codec.isolate(value)) == repr(remote)


@given(st.datetimes(timezones=st.none() | st.timezones()) | st.times() | st.timedeltas())
def test_isolate_equals_the_wire_for_times(value: Any) -> None:
    codec = codec_of(type(value), PLACE)
    try:
        remote = codec.decode(codec.encode(value))
    except TypeError:
        with pytest.raises(TypeError):
            codec.isolate(value)
    else:
        local = codec.isolate(value)
        assert repr(local) == repr(remote)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text() | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN)
def test_plain_values_go_round_through_both_libraries(value: Any) -> None:
    codec = codec_of(Any, PLACE)
    data = codec.encode(value)
    assert codec.decode(data) == value == codec.isolate(value)
    assert msgpack.unpackb(data, strict_map_key=False) == value
    assert codec.decode(msgpack.packb(value)) == value
