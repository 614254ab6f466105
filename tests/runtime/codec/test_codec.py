"""The codec: admitted annotations, the conversion of values, and the equality of local and
remote."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import importlib
import inspect
import ipaddress
import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Self, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from millstream.runtime import DefinitionError
from millstream.runtime.extending import codec_of

msgpack: Any = importlib.import_module("msgpack")  # has no type information

PLACE = "Airport.add: argument `by`"
T = TypeVar("T")


@dataclass
class Flight:
    carrier: str
    delay: float | None = None


@dataclass
class LongFlight(Flight):
    meals: int = 0


@dataclass
class SameFlight(Flight):
    pass


@dataclass(frozen=True)
class Point:
    x: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    start: Point
    end: Point
    tags: tuple[str, ...] = ()


@dataclass
class Later:
    total: int = field(init=False, default=7)
    _hidden: int = 1

    def __post_init__(self) -> None:
        if self._hidden < 0:
            raise ValueError("hidden is negative")


@dataclass
class Box(Generic[T]):
    value: T


@dataclass
class Node:
    name: str
    children: list[Node] = field(default_factory=list)


@attrs.frozen
class AttrsPoint:
    x: int = attrs.field(validator=attrs.validators.ge(0))
    y: float = attrs.field(converter=float, default=0.0)


@attrs.define
class AttrsHidden:
    _x: int


@attrs.define
class AttrsHiddenNamed:
    _x: int = attrs.field(alias="_x")


@attrs.define
class AttrsAliased:
    x: int = attrs.field(alias="why")


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict, total=False):
    level: int


class Landed(msgspec.Struct, tag=True, frozen=True):
    at: str


class Diverted(msgspec.Struct, tag=True):
    to: str


class StructBox(msgspec.Struct, Generic[T]):
    value: T


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Odd(enum.Enum):
    PAIR = (1, 2)


class Text(str):
    pass


class Tagged(list[int]):
    tag: str


@pydantic.dataclasses.dataclass
class PydanticRow:
    x: int


@dataclass
class HoldsPath:
    path: pathlib.Path


@dataclass
class HoldsUnion:
    either: Flight | Point


Miles = NewType("Miles", int)
Positive = Annotated[int, msgspec.Meta(gt=0)]

NATIVE: list[tuple[Any, Any]] = [
    (Flight, Flight("AA", 1.5)),
    (Point, Point(1)),
    (Segment, Segment(Point(1), Point(2, "b"), ("t",))),
    (Later, Later(_hidden=4)),
    (Box[int], Box(3)),
    (Box[Flight], Box(Flight("AA"))),
    (Node, Node("a", [Node("b")])),
    (PydanticRow, PydanticRow(x=1)),
    (AttrsPoint, AttrsPoint(1, 2.0)),
    (AttrsAliased, AttrsAliased(3)),
    (Landed, Landed("BOS")),
    (Landed | Diverted, Diverted("JFK")),
    (StructBox[int], StructBox(1)),
    (Pair, Pair(1, "a")),
    (Options, {"level": 3}),
    (Options, {}),
    (Miles, Miles(3)),
    (Positive, 4),
    (bool, True),
    (int, -(2**63)),
    (int, 2**64 - 1),
    (float, 1.5),
    (str, "né"),
    (bytes, b"\x00"),
    (bytearray, bytearray(b"x")),
    (memoryview, memoryview(b"x")),
    (None, None),
    (int | None, None),
    (int | str, "a"),
    (Literal["a", 1], 1),
    (dt.datetime, dt.datetime(2026, 11, 21, 1, 2, 3, 4)),
    (dt.datetime, dt.datetime(2026, 11, 21, 1, 2, tzinfo=dt.UTC)),
    (dt.datetime, dt.datetime(2026, 11, 21, 1, 2, tzinfo=ZoneInfo("Europe/Berlin"))),
    (dt.date, dt.date(2026, 11, 21)),
    (dt.time, dt.time(1, 2, 3, 4)),
    (dt.timedelta, dt.timedelta(days=-1, microseconds=1)),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=5)),
    (Color, Color.RED),
    (Level, Level.LOW),
    (Mode, Mode.FAST),
    (Rights, Rights.READ | Rights.WRITE),
    (list[Flight], [Flight("AA")]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (Sequence[int], [1]),
    (Mapping[str, int], {"a": 1}),
    (AbstractSet[int], {1}),
    (dict[int, str], {1: "a"}),
    (dict[Mode, int], {Mode.FAST: 1}),
    (dict[UUID, int], {UUID(int=1): 1}),
    (dict[dt.date, int], {dt.date(2026, 1, 1): 1}),
    (dict[tuple[int, int], int], {(1, 2): 3}),
    (dict[Point, int], {Point(1): 1}),
    (Any, {"a": [1, 2.5, None, b"x", True]}),
]


@pytest.mark.parametrize(("hint", "value"), NATIVE)
def test_codec_brings_back_what_it_encoded(hint: Any, value: Any) -> None:
    codec = codec_of(hint, PLACE)
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)
    assert codec.hint is hint
    assert not codec.needs_runtime


@pytest.mark.parametrize(("hint", "value"), NATIVE)
def test_isolate_gives_what_the_wire_gives(hint: Any, value: Any) -> None:
    codec = codec_of(hint, PLACE)
    assert codec.isolate(value) == codec.decode(codec.encode(value))


REFUSED: list[tuple[Any, str]] = [
    (object, "`object` has no encoding"),
    (pathlib.Path, r"`Path` has no encoding; register it with `register_type\(Path"),
    (ipaddress.IPv4Address, "`IPv4Address` has no encoding"),
    (complex, "`complex` has no encoding"),
    (Fraction, "`Fraction` has no encoding"),
    (ValueError, "`ValueError` has no encoding"),
    (Callable[[], int], "`Callable` has no encoding"),
    (type[int], "`type` has no encoding"),
    (list[pathlib.Path], "item: `Path` has no encoding"),
    (dict[str, complex], "value: `complex`"),
    (tuple[int, complex], "item 1: `complex`"),
    (HoldsPath, "field `HoldsPath.path`: `Path` has no encoding"),
    (Box[pathlib.Path], "field `Box.value`: `Path`"),
    (HoldsUnion, r"its members must be `msgspec.Struct` with `tag=True`"),
    (list[Flight | Point], "works only as a whole argument"),
    (collections.deque[int], r"register_type\(deque"),
    (collections.OrderedDict[str, int], "`OrderedDict` has no encoding"),
    (collections.defaultdict[str, int], "`defaultdict` has no encoding"),
    (collections.Counter, "`Counter` has no encoding"),
    (Odd, "Enums must contain either all str or all int values"),
    (Iterable[int], "write `Sequence` or `list`"),
    (AttrsHidden, "attrs field `AttrsHidden._x` is not sent.*rename it"),
    (AttrsHiddenNamed, "attrs field `AttrsHiddenNamed._x` is not sent"),
    (list[Box], "`Box` leaves type variable `T` open"),  # type: ignore[type-arg]
    (T, "type variable `T` is open"),
    (list[T], "leaves type variable `T` open"),  # type: ignore[valid-type]
    (Box, "`Box` leaves type variable `T` open"),
    (Self, "`Self` is not known at run time"),
    (inspect.Parameter.empty, "the annotation is missing"),
    ("Flight", "is not supported"),
]


@pytest.mark.parametrize(("hint", "message"), REFUSED)
def test_codec_refuses_at_definition_what_it_cannot_carry(hint: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as caught:
        codec_of(hint, PLACE)
    assert str(caught.value).startswith(PLACE)


def test_codec_leaves_a_name_error_alone_when_a_field_is_not_defined_yet() -> None:
    @dataclass
    class Early:
        later: NotDefinedAnywhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(NameError, match="NotDefinedAnywhere"):
        codec_of(Early, PLACE)


# --- T13: values of another type than declared ---------------------------------------------------

CONVERTED: list[tuple[Any, Any, Any]] = [
    (int, True, 1),
    (int, Level.LOW, 1),
    (int | None, True, 1),
    (float, 3, 3.0),
    (float, True, 1.0),
    (float | None, 3, 3.0),
    (str, Mode.FAST, "fast"),
    (str, Text("a"), "a"),
    (bytes, bytearray(b"x"), b"x"),
    (bytes, memoryview(b"x"), b"x"),
    (Literal["fast"], Mode.FAST, "fast"),
    (Sequence[int], (1, 2), [1, 2]),
    (Sequence[int], collections.deque([1]), [1]),
    (Collection[int], {1}, [1]),
    (AbstractSet[int], frozenset({1}), {1}),
    (Mapping[str, int], collections.ChainMap({"a": 1}), {"a": 1}),
    (MutableMapping[str, int], collections.OrderedDict(a=1), {"a": 1}),
    (dict[str, int], collections.defaultdict(int, a=1), {"a": 1}),
    (Options, collections.OrderedDict(level=1), {"level": 1}),
    (tuple[int, str], Pair(1, "a"), (1, "a")),
    (list[str], [Mode.FAST, Text("b")], ["fast", "b"]),
]


@pytest.mark.parametrize(("hint", "value", "expected"), CONVERTED)
def test_value_becomes_what_the_wire_makes_of_it(hint: Any, value: Any, expected: Any) -> None:
    codec = codec_of(hint, PLACE)
    for back in (codec.isolate(value), codec.decode(codec.encode(value))):
        assert back == expected
        assert repr(back) == repr(expected)


UNFIT: list[tuple[Any, Any, str]] = [
    (int, "5", "expected `int`, got `str`"),
    (int, 1.0, "expected `int`, got `float`"),
    (bool, 1, "expected `bool`, got `int`"),
    (str, 1, "expected `str`, got `int`"),
    (str, Color.RED, "expected `str`, got `Color`"),
    (float, "1", "expected `float`, got `str`"),
    (float, Decimal(1), "expected `float`, got `Decimal`"),
    (None, 0, "expected `None`, got `int`"),
    (int | None, "5", r"expected `int \| None`, got `str`"),
    (Color, "red", "expected `Color`, got `str`"),
    (Literal["a"], "b", "expected `Literal\\['a'\\]`, got 'b'"),
    (Literal[1], True, "got True"),
    (Literal["a"], [], r"got \[\]"),
    (Decimal, 1, "expected `Decimal`, got `int`"),
    (UUID, str(UUID(int=1)), "expected `UUID`, got `str`"),
    (dt.date, dt.datetime(2026, 1, 1), "expected `date`, got its subclass `datetime`"),
    (list[int], (1,), r"expected `list\[int\]`, got `tuple`"),
    (Sequence[str], "abc", r"expected `Sequence\[str\]`, got `str`"),
    (dict[str, int], [1], "got `list`"),
    (Options, [1], "expected `Options`, got `list`"),
    (Flight, {"carrier": "AA"}, "expected `Flight`, got `dict`"),
    (Flight, LongFlight("AA"), "subclass `LongFlight`, which would lose fields `meals`"),
    (Flight, SameFlight("AA"), "subclass `SameFlight`, which would lose its own class"),
    (Flight | None, LongFlight("AA"), "would lose fields `meals`"),
    (Landed | Diverted, Point(1), r"expected `Landed \| Diverted`, got `Point`"),
    (int, 2**64, "out of range"),
    (float, 2**2000, "out of range"),
    (list[int], [2**70], "out of range"),
    (str, "a\ud800", "str with a lone surrogate at position 1"),
    (list[str], ["\ud800"], "lone surrogate"),
    (list[Any], [object()], "`object` has no encoding"),
    (Any, object(), "`object` has no encoding"),
]


@pytest.mark.parametrize(("hint", "value", "message"), UNFIT)
def test_value_of_another_type_is_a_type_error_at_the_caller(
    hint: Any, value: Any, message: str
) -> None:
    codec = codec_of(hint, PLACE)
    with pytest.raises(TypeError, match=message):
        codec.encode(value)
    with pytest.raises(TypeError, match=message):
        codec.isolate(value)


def test_container_subclass_with_attributes_is_refused() -> None:
    tagged = Tagged([1])
    tagged.tag = "x"
    codec = codec_of(list[int], PLACE)
    assert codec.isolate(Tagged([1])) == [1]
    with pytest.raises(TypeError, match="`Tagged`, which would lose fields `tag`"):
        codec.encode(tagged)


def test_value_that_contains_itself_is_a_type_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="contains itself"):
        codec_of(list[Any], PLACE).encode(loop)


NESTED: list[tuple[Any, Any, str]] = [
    (Flight, Flight(1), "Expected `str`, got `int` - at `\\$.carrier`"),  # type: ignore[arg-type]
    (Point, Point(True), "Expected `int`, got `bool` - at `\\$.x`"),
    (tuple[int, ...], (1, []), "got `array` - at `\\$\\[1\\]`"),
    (Positive, -1, "Expected `int` >= 1"),
    (list[Color], ["blue"], "Invalid enum value 'blue'"),
]


@pytest.mark.parametrize(("hint", "value", "message"), NESTED)
def test_wrong_value_inside_is_found_locally_as_remotely(
    hint: Any, value: Any, message: str
) -> None:
    codec = codec_of(hint, PLACE)
    with pytest.raises(TypeError, match=message) as local:
        codec.isolate(value)
    with pytest.raises(TypeError, match=message) as remote:
        codec.decode(codec.encode(value))
    assert str(local.value) == str(remote.value)


def test_decode_runs_validators_and_post_init() -> None:
    later, point = codec_of(Later, PLACE), codec_of(AttrsPoint, PLACE)
    with pytest.raises(TypeError, match="hidden is negative"):
        later.decode(msgspec.msgpack.encode({"_hidden": -1}))
    with pytest.raises(TypeError, match="must be >= 0"):
        point.decode(msgspec.msgpack.encode({"x": -1}))


def test_decode_ignores_unknown_fields_and_fills_defaults() -> None:
    codec = codec_of(Flight, PLACE)
    assert codec.decode(msgspec.msgpack.encode({"carrier": "AA", "new": 1})) == Flight("AA")
    with pytest.raises(TypeError, match="missing required field `carrier`"):
        codec.decode(msgspec.msgpack.encode({}))


@pytest.mark.parametrize("data", [b"", b"\x91", b"\xc1", b"\x01\x01"])
def test_decode_of_broken_bytes_is_a_type_error(data: bytes) -> None:
    with pytest.raises(TypeError):
        codec_of(list[int], PLACE).decode(data)


def test_decode_takes_memoryview_and_raw() -> None:
    codec = codec_of(list[int], PLACE)
    data = codec.encode([1, 2])
    assert codec.decode(memoryview(data)) == [1, 2]
    assert codec.decode(msgspec.Raw(data)) == [1, 2]


def test_any_takes_plain_values_only_and_says_so_by_what_comes_back() -> None:
    codec = codec_of(Any, PLACE)
    assert codec.isolate(Flight("AA")) == {"carrier": "AA", "delay": None}
    assert codec.isolate([(1, 2)]) == [[1, 2]]


# --- wire form -----------------------------------------------------------------------------------

GOLDEN: list[tuple[Any, Any, bytes, Any]] = [
    (int, -1, b"\xff", -1),
    (float, 1.5, b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5),
    (str, "BOS", b"\xa3BOS", "BOS"),
    (bytes, b"\x01", b"\xc4\x01\x01", b"\x01"),
    (None, None, b"\xc0", None),
    (Flight, Flight("AA"), b"\x82\xa7carrier\xa2AA\xa5delay\xc0", {"carrier": "AA", "delay": None}),
    (Pair, Pair(1, "a"), b"\x92\x01\xa1a", [1, "a"]),
    (Mode, Mode.FAST, b"\xa4fast", "fast"),
    (dt.date, dt.date(2026, 1, 2), b"\xaa2026-01-02", "2026-01-02"),
    (Decimal, Decimal("1.10"), b"\xa41.10", "1.10"),
    (Flight | Point, Point(1), b"\x92\xa5Point\x82\xa1x\x01\xa5label\xa0",
     ["Point", {"x": 1, "label": ""}]),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "value", "data", "plain"), GOLDEN)
def test_wire_form_is_the_golden_one_and_the_msgpack_package_agrees(
    hint: Any, value: Any, data: bytes, plain: Any
) -> None:
    codec = codec_of(hint, PLACE)
    assert codec.encode(value) == data
    assert codec.decode(data) == value
    assert msgpack.unpackb(data) == plain
    assert codec.decode(msgpack.packb(plain)) == value


def test_aware_datetime_is_the_timestamp_extension() -> None:
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    data = codec_of(dt.datetime, PLACE).encode(moment)
    assert data == b"\xd6\xff\x69\x55\xb9\x00"
    assert msgpack.unpackb(data, timestamp=3) == moment
