"""The columns for the items of a type."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NewType, TypedDict
from uuid import UUID

import msgspec
import pytest

from millstream.streams.rewinding.item_columns import columns_of, quote

Code = NewType("Code", str)


@dataclass
class Leg:
    carrier: Code
    delay: int | None
    legs: list[float] = field(default_factory=list)


class Told(msgspec.Struct, rename="camel"):
    is_late: bool
    raw_bytes: bytes
    at_time: datetime
    on_day: date
    id: UUID
    of: dict[str, int]
    leg: Leg


class Typed(TypedDict):
    n: int


class Listed(msgspec.Struct, array_like=True):
    n: int


class Price(msgspec.Struct):
    amount: Decimal


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 1


class Rich(msgspec.Struct):
    colour: Colour
    level: Level | None
    state: Literal["on", "off"]
    at: time
    took: timedelta
    by_day: dict[date, Decimal]
    by_colour: dict[Colour, int]


class Choice(msgspec.Struct):
    one: Literal[1, "x"]
    other: int


class Mixed(msgspec.Struct):
    either: int | str


class Open(msgspec.Struct):
    whatever: Any


class Tree(msgspec.Struct):
    below: list[Tree]


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (Leg, {"carrier": "string", "delay": "bigint", "legs": "array<double>"}),
        (Typed, {"n": "bigint"}),
        (Price, {"amount": "decimal(38,18)"}),
        (
            Rich,
            {
                "colour": "string",
                "level": "bigint",
                "state": "string",
                "at": "string",
                "took": "string",
                "by_day": "map<date,decimal(38,18)>",
                "by_colour": "map<string,bigint>",
            },
        ),
        (
            Told,
            {
                "isLate": "boolean",
                "rawBytes": "binary",
                "atTime": "timestamp",
                "onDay": "date",
                "id": "string",
                "of": "map<string,bigint>",
                "leg": "struct<`carrier`:string,`delay`:bigint,`legs`:array<double>>",
            },
        ),
    ],
)
def test_fields_are_columns(item: Any, wanted: dict[str, str]) -> None:
    assert {one.name: one.kind for one in columns_of(item)} == wanted


@pytest.mark.parametrize("item", [None, int, list[int], dict[str, int], Listed, Leg | Typed, "odd"])
def test_what_is_no_map_of_fields_has_no_columns(item: Any) -> None:
    assert columns_of(item) == []


class Inner(msgspec.Struct):
    listed: Listed


class Nested(msgspec.Struct):
    inner: list[Inner]


class Keyed(msgspec.Struct):
    by: dict[tuple[int, ...], int]


class Size(Enum):
    SMALL = "S"
    LARGE = 2


class Sized(msgspec.Struct):
    size: Size


@pytest.mark.parametrize(
    ("item", "name", "said"),
    [
        (Mixed, "either", "the type is int or str"),
        (Open, "whatever", "the type is any"),
        (Tree, "below", "contains itself"),
        (Nested, "inner", "its field 'listed': the type is Listed"),
        (Keyed, "by", "the keys are vartuple"),
        (Choice, "one", "the type is one of 1, 'x'"),
        (Sized, "", "either all str or all int values"),
    ],
)
def test_a_field_that_cannot_be_said_is_named_and_not_guessed(
    item: Any, name: str, said: str
) -> None:
    (found,) = [one for one in columns_of(item) if not one.kind]
    assert found.name == name and said in found.unsaid


@pytest.mark.parametrize(("lists", "is_said"), [(15, True), (16, False)])
def test_a_type_may_be_nested_sixteen_deep(lists: int, is_said: bool) -> None:
    kind: Any = int | None  # an optional value adds no level
    for _ in range(lists):
        kind = list[kind]
    (found,) = columns_of(msgspec.defstruct("Deep", [("n", kind)]))
    assert found.name == "n"
    if is_said:
        assert found.kind == "array<" * lists + "bigint" + ">" * lists
    else:
        assert not found.kind and "nested more than 16 deep" in found.unsaid


def test_a_name_is_quoted() -> None:
    assert quote("a`b c") == "`a``b c`"
