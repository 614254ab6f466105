"""Arguments: the codec of a whole argument list."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime.codec.arguments import Arguments
from millstream.runtime.codec.codec import build_codec

msgpack: Any = importlib.import_module("msgpack")  # has no type information


@dataclass
class Flight:
    carrier: str
    delay: float = 0.0


@dataclass
class LongFlight(Flight):
    meals: int = 0


@dataclass(frozen=True)
class Other:
    x: int


def arguments(**hints: Any) -> Arguments:
    codecs = [build_codec(hint, f"Airport.add: argument `{name}`") for name, hint in hints.items()]
    return Arguments(list(hints), codecs, "Airport.add")


GOLDEN: list[tuple[dict[str, Any], tuple[Any, ...], bytes, list[Any]]] = [
    ({}, (), b"\x90", []),
    ({"by": int}, (5,), b"\x91\x05", [5]),
    ({"by": float}, (5,), b"\x91\xcb\x40\x14\x00\x00\x00\x00\x00\x00", [5.0]),
    ({"a": str, "b": list[int]}, ("x", [1]), b"\x92\xa1x\x91\x01", ["x", [1]]),
    ({"f": Flight, "n": int | None}, (Flight("AA"), None),
     b"\x92\x82\xa7carrier\xa2AA\xa5delay\xcb" + bytes(8) + b"\xc0",
     [{"carrier": "AA", "delay": 0.0}, None]),
    ({"e": Flight | Other}, (Other(1),), b"\x91\x92\xa5Other\x81\xa1x\x01", [["Other", {"x": 1}]]),
]  # fmt: skip


@pytest.mark.parametrize(("hints", "values", "body", "plain"), GOLDEN)
def test_arguments_are_one_golden_array(
    hints: dict[str, Any], values: tuple[Any, ...], body: bytes, plain: list[Any]
) -> None:
    codec = arguments(**hints)
    assert codec.encode(values) == body
    assert codec.decode(body) == values == codec.isolate(values)
    assert codec.decode(msgspec.Raw(body)) == values
    assert msgpack.unpackb(body) == plain
    assert not codec.needs_runtime


REFUSED: list[tuple[dict[str, Any], tuple[Any, ...], str]] = [
    ({"by": int}, ("5",), "argument `by`: expected `int`, got `str`"),
    ({"by": int}, (2**64,), "argument `by`: out of range"),
    ({"a": int, "by": int}, (1, 2**64), "argument `by`: out of range"),
    ({"a": int, "by": str}, (1, 2), "argument `by`: expected `str`, got `int`"),
    ({"a": int, "by": str}, (True, "\ud800"), "argument `by`: str with a lone surrogate"),
    ({"a": str, "by": list[str]}, ("a", ["\ud800"]), "argument `by`: str with a lone surrogate"),
    ({"by": Flight, "b": int}, (LongFlight("AA"), 1), "argument `by`: .*would lose fields `meals`"),
    ({"by": Flight | Other}, (LongFlight("AA"),), "argument `by`: .*would lose fields `meals`"),
    ({"by": dict[str, Any]}, ({"a": object()},), "argument `by`: `object` has no encoding"),
]


@pytest.mark.parametrize(("hints", "values", "message"), REFUSED)
def test_arguments_refuse_at_the_caller_and_name_the_argument(
    hints: dict[str, Any], values: tuple[Any, ...], message: str
) -> None:
    codec = arguments(**hints)
    with pytest.raises(TypeError, match=f"^Airport.add: {message}"):
        codec.encode(values)
    with pytest.raises(TypeError, match=f"^Airport.add: {message}"):
        codec.isolate(values)


INSIDE: list[tuple[dict[str, Any], tuple[Any, ...], str]] = [
    ({"by": Flight}, (Flight(1),), "Expected `str`, got `int` - at `$.carrier`"),  # type: ignore[arg-type]
    ({"by": Flight | Other}, (Other("1"),), "Expected `int`, got `str` - at `$.x`"),  # type: ignore[arg-type]
    ({"by": list[int]}, ([1, "2"],), "Expected `int`, got `str` - at `$[1]`"),
    ({"by": dict[str, int]}, ({1: 2},), "Expected `str`, got `int` - at `key` in `$`"),
    ({"by": list[list[int]]}, ([[1], [2, "3"]],), "Expected `int`, got `str` - at `$[1][1]`"),
]


@pytest.mark.parametrize(("hints", "values", "message"), INSIDE)
def test_arguments_name_argument_and_path_when_the_callee_finds_it(
    hints: dict[str, Any], values: tuple[Any, ...], message: str
) -> None:
    codec = arguments(first=int, **hints)
    with pytest.raises(TypeError) as remote:
        codec.decode(codec.encode((1, *values)))
    with pytest.raises(TypeError) as local:
        codec.isolate((1, *values))
    assert str(remote.value) == f"Airport.add: argument `by`: {message}" == str(local.value)


def test_arguments_of_a_foreign_sender_are_checked_too() -> None:
    codec = arguments(a=int, by=str)
    for body, message in (
        (msgpack.packb([1, 2]), "Airport.add: argument `by`: Expected `str`, got `int`"),
        (msgpack.packb([1]), "Airport.add: arguments: Expected `array` of length 2, got 1"),
        (msgpack.packb({}), "Airport.add: arguments: Expected `array`, got `object`"),
        (b"\x92\x01", "Airport.add: arguments: Input data was truncated"),
    ):
        with pytest.raises(TypeError) as caught:
            codec.decode(body)
        assert str(caught.value) == message


def test_isolated_arguments_share_nothing_that_can_change() -> None:
    flight, other = Flight("AA"), Other(1)
    copied, same = arguments(f=Flight, o=Other).isolate((flight, other))
    assert copied == flight
    assert copied is not flight
    assert same is other


@given(
    st.integers(-(2**66), 2**66) | st.booleans() | st.none() | st.text(),
    st.lists(st.integers() | st.booleans() | st.floats(allow_nan=False)) | st.integers(),
    st.text() | st.characters(codec=None),
)
def test_arguments_behave_the_same_local_and_remote(a: Any, b: Any, c: Any) -> None:
    codec = arguments(a=int | None, b=list[float], c=str)
    outcomes: list[object] = []
    for run in (lambda v: codec.decode(codec.encode(v)), codec.isolate):
        try:
            outcomes.append(repr(run((a, b, c))))
        except TypeError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]
