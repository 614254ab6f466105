"""Resolving annotations: local names, names defined later, and type variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec
import pytest

from millstream.runtime import DefinitionError
from millstream.runtime.codec.types import resolve_hints
from millstream.runtime.extending import codec_of

PLACE = "Airport.add: argument `by`"
T = TypeVar("T")
K = TypeVar("K")
Positive = Annotated[int, msgspec.Meta(gt=0)]


@dataclass
class Flight:
    carrier: str


class Base(Generic[T]):
    value: list[T]

    async def put(self, item: T, also: list[T] | None) -> T: ...  # type: ignore[empty-body]


class Other(Generic[T]):
    async def get(self) -> dict[str, T]: ...  # type: ignore[empty-body]


class Middle(Base[K], Generic[K]):
    extra: K


class Concrete(Middle[Flight], Other[int]):
    me: Concrete


def test_hints_fill_type_variables_in_base_by_base() -> None:
    put = resolve_hints(Base.put, {}, Concrete)
    assert put == {"item": Flight, "also": list[Flight] | None, "return": Flight}
    assert resolve_hints(Other.get, {}, Concrete) == {"return": dict[str, int]}


def test_hints_of_a_class_are_filled_in_too() -> None:
    assert resolve_hints(Concrete, {}, Concrete) == {
        "value": list[Flight],
        "extra": Flight,
        "me": Concrete,
    }


def test_hints_leave_an_open_variable_for_the_codec_to_refuse() -> None:
    hint = resolve_hints(Base.put, {}, Middle)["item"]
    with pytest.raises(DefinitionError, match="type variable `K` is open"):
        codec_of(hint, PLACE)


def test_hints_know_local_names_and_the_class_itself() -> None:
    @dataclass
    class Local:
        x: int

    class Grainlike:
        async def put(self, item: Local, other: Grainlike) -> None: ...

    hints = resolve_hints(Grainlike.put, {"Local": Local}, Grainlike)
    assert hints == {"item": Local, "other": Grainlike, "return": type(None)}


def test_hints_raise_name_error_when_a_name_is_not_defined_yet() -> None:
    async def put(item: NotThere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(NameError, match="NotThere"):
        resolve_hints(put, {}, Flight)


def test_hints_keep_annotated_limits() -> None:
    async def put(item: Positive) -> None: ...

    assert resolve_hints(put, {}, Flight)["item"] == Positive
