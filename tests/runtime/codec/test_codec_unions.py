"""Unions that MessagePack cannot tell apart."""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NewType, TypedDict
from uuid import UUID

import pydantic
import pytest

from millstream.runtime import DefinitionError
from millstream.runtime.extending import codec_of, needs_wrappers

msgpack: Any = importlib.import_module("msgpack")  # has no type information

PLACE = "Airport.move: argument `what`"


@dataclass
class Landed:
    at: str


@dataclass
class LateLanded(Landed):
    by_s: int = 0


@dataclass(frozen=True)
class Diverted:
    to: str


class Report(pydantic.BaseModel):
    text: str


class LongReport(Report):
    pages: int


class First(TypedDict):
    x: int


class Second(TypedDict):
    y: int


Code = NewType("Code", str)

WELL_TYPED: list[tuple[Any, Any]] = [
    (Landed | Diverted, Landed("BOS")),
    (Landed | Diverted, Diverted("JFK")),
    (Landed | Diverted | None, None),
    (Landed | Diverted | None, Landed("BOS")),
    (Landed | Diverted | int, 5),
    (Landed | Report, Report(text="t")),
    (Landed | Report, Landed("BOS")),
    (str | dt.datetime, "2026-01-01T00:00:00"),
    (str | dt.datetime, dt.datetime(2026, 1, 1)),
    (dt.datetime | dt.date, dt.datetime(2026, 1, 1)),
    (dt.datetime | dt.date, dt.date(2026, 1, 1)),
    (list[int] | tuple[int, ...], [1]),
    (list[int] | tuple[int, ...], (1,)),
    (bytes | UUID, UUID(int=1)),
    (Literal["x"] | dt.date, "x"),
    (Annotated[Landed, "arrives"] | Annotated[Diverted, "does not"], Diverted("JFK")),
    (Code | dt.date, "BOS"),
    (Landed | Diverted | Annotated[None, "unknown"], None),
]


@pytest.mark.parametrize(("hint", "value"), WELL_TYPED)
def test_union_brings_back_the_member_that_was_sent(hint: Any, value: Any) -> None:
    assert needs_wrappers(hint)
    codec = codec_of(hint, PLACE)
    for back in (codec.decode(codec.encode(value)), codec.isolate(value)):
        assert back == value
        assert type(back) is type(value)


@pytest.mark.parametrize("hint", [int | str, Landed | None, int | float | None, Report | None, int])
def test_union_that_msgspec_can_decode_is_left_to_it(hint: Any) -> None:
    assert not needs_wrappers(hint)


def test_union_on_the_wire_is_member_name_and_value() -> None:
    data = codec_of(Landed | Diverted, PLACE).encode(Landed("BOS"))
    assert data == b"\x92\xa6Landed\x81\xa2at\xa3BOS"
    assert msgpack.unpackb(data) == ["Landed", {"at": "BOS"}]


@pytest.mark.parametrize(
    ("hint", "value", "tag"),
    [
        (list[int] | tuple[int, ...], [1], "list"),
        (Literal["x"] | dt.date, "x", "Literal"),
        (Annotated[Landed, "arrives"] | Diverted, Landed("BOS"), "Landed"),
        (Code | dt.date, "BOS", "str"),
        (Sequence[int] | Landed | Diverted, [1], "Sequence"),
    ],
)
def test_what_stands_around_a_member_is_no_part_of_its_name(
    hint: Any, value: Any, tag: str
) -> None:
    assert msgpack.unpackb(codec_of(hint, PLACE).encode(value))[0] == tag


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (Landed | Diverted, 5, r"expected `Landed \| Diverted`, got `int`"),
        (Landed | Diverted, None, "got `None"),
        (Landed | Diverted, LateLanded("BOS"), "would lose fields `by_s`"),
        (Landed | Report, LongReport(text="t", pages=3), "would lose fields `pages`"),
        (str | dt.date, "\ud800", "lone surrogate"),
    ],
)
def test_union_refuses_a_value_of_no_member(hint: Any, value: Any, message: str) -> None:
    codec = codec_of(hint, PLACE)
    with pytest.raises(TypeError, match=message):
        codec.encode(value)
    with pytest.raises(TypeError, match=message):
        codec.isolate(value)


def test_union_converts_a_value_that_only_widens() -> None:
    codec = codec_of(Landed | Diverted | float, PLACE)
    assert codec.isolate(3) == 3.0
    assert type(codec.isolate(3)) is float
    assert type(codec.decode(codec.encode(3))) is float


def test_union_names_the_path_inside_the_member() -> None:
    codec = codec_of(Landed | Diverted, PLACE)
    with pytest.raises(TypeError, match=r"Expected `str`, got `int` - at `\$.at`"):
        codec.isolate(Landed(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Invalid value 'Lost'"):
        codec.decode(msgpack.packb(["Lost", {}]))


def test_union_passes_its_immutable_members_as_they_are() -> None:
    codec = codec_of(Landed | Diverted | str | dt.date, PLACE)
    assert codec.fast_types == {str, dt.date}
    frozen = Diverted("JFK")
    assert codec.isolate(frozen) is frozen


def _another_landed() -> type:
    @dataclass
    class Landed:
        other: int

    return Landed


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (Landed | _another_landed(), "two members of the union have the name `Landed`"),
        (list[int] | list[str], "two members of the union have the name `list`"),
        (First | Second, "a `dict` fits two members of `First | Second`"),
        (Landed | Diverted | complex, "union member `complex`: `complex` has no encoding"),
        (Landed | list[complex], "item: `complex` has no encoding"),
    ],
)
def test_union_is_refused_when_its_members_cannot_be_told_apart(hint: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        codec_of(hint, PLACE)
    assert str(caught.value).startswith(PLACE)
