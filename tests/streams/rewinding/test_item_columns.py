"""Which columns the items of a type have."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NewType, TypedDict
from uuid import UUID

import msgspec
import pytest

from millstream.streams.rewinding.item_columns import columns_of, quoted

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


@pytest.mark.parametrize(
    "item",
    [None, int, list[int], dict[str, int], Listed, Price, Mixed, Open, Tree, Leg | Typed, "odd"],
)
def test_what_cannot_be_said_is_not_guessed(item: Any) -> None:
    assert columns_of(item) == []


def test_a_name_is_quoted() -> None:
    assert quoted("a`b c") == "`a``b c`"
