"""Types that hooks admit: register_type, pydantic models and references."""

from __future__ import annotations

import ast
import collections
import datetime as dt
import enum
import importlib
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

import pydantic
import pytest

import millstream.runtime.codec.hooks as hooks
from millstream.runtime import DefinitionError, NotInCluster, register_type
from millstream.runtime.codec.arguments import Arguments
from millstream.runtime.codec.codec import build_codec
from millstream.runtime.codec.hooks import find_hook, register_hook

msgpack: Any = importlib.import_module("msgpack")  # has no type information

PLACE = "Airport.add: argument `by`"
T = TypeVar("T")


@pytest.fixture(autouse=True)
def restore_hooks() -> Iterator[None]:
    before = list(hooks._hooks)
    yield
    hooks._hooks[:] = before
    find_hook.cache_clear()


# --- register_type -------------------------------------------------------------------------------


@dataclass
class HoldsPaths:
    paths: list[pathlib.PurePosixPath]


def test_registered_type_goes_round_at_any_depth() -> None:
    register_type(pathlib.PurePosixPath, str, pathlib.PurePosixPath)
    path = pathlib.PurePosixPath("/a/b")
    for hint, value in (
        (pathlib.PurePosixPath, path),
        (pathlib.PurePosixPath | None, None),
        (dict[str, pathlib.PurePosixPath], {"a": path}),
        (HoldsPaths, HoldsPaths([path])),
        (int | pathlib.PurePosixPath, path),
    ):
        codec = build_codec(hint, PLACE)
        assert codec.decode(codec.encode(value)) == value == codec.isolate(value)
        assert not codec.needs_runtime
    assert build_codec(pathlib.PurePosixPath, PLACE).encode(path) == b"\xa4/a/b"


def test_registered_type_takes_instances_of_its_subclasses() -> None:
    register_type(pathlib.PurePath, str, pathlib.PurePath)
    codec = build_codec(pathlib.PurePath, PLACE)
    assert codec.isolate(pathlib.PurePosixPath("a")) == pathlib.PurePath("a")
    with pytest.raises(TypeError, match="expected `PurePath`, got `str`"):
        codec.encode("a")
    with pytest.raises(DefinitionError, match="`PurePosixPath` has no encoding"):
        build_codec(pathlib.PurePosixPath, PLACE)


def test_registered_containers_come_back_as_themselves() -> None:
    register_type(collections.deque, list, collections.deque)
    register_type(collections.OrderedDict, dict, collections.OrderedDict)
    register_type(collections.Counter, dict, collections.Counter)
    for hint, value in (
        (collections.deque[int], collections.deque([1, 2])),
        (collections.OrderedDict[str, int], collections.OrderedDict(a=1)),
        (list[collections.Counter[str]], [collections.Counter("aab")]),
    ):
        back = build_codec(hint, PLACE).isolate(value)
        assert back == value
        assert type(back) is type(value)


def test_registering_again_replaces_the_first_registration() -> None:
    register_type(complex, str, complex)
    register_type(complex, lambda c: [c.real, c.imag], lambda parts: complex(*parts))
    assert build_codec(complex, PLACE).encode(1 + 2j)[:1] == b"\x92"
    assert build_codec(complex, PLACE).isolate(1 + 2j) == 1 + 2j


def test_registering_a_type_that_needs_no_help_is_refused() -> None:
    with pytest.raises(DefinitionError, match="`HoldsPaths` already has an encoding"):
        register_type(HoldsPaths, str, lambda _: HoldsPaths([]))


def test_decoder_of_a_registered_type_that_returns_another_type_is_caught() -> None:
    register_type(complex, str, str)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Expected `complex`, got `str`"):
        build_codec(complex, PLACE).isolate(1j)


def test_encoder_of_a_registered_type_may_refuse_a_value() -> None:
    def refuse(_value: complex) -> object:
        raise ValueError("not today")

    register_type(complex, refuse, complex)
    with pytest.raises(TypeError, match="not today"):
        build_codec(complex, PLACE).encode(1j)


# --- pydantic ------------------------------------------------------------------------------------


class Kind(enum.Enum):
    SMALL = "small"


class Parcel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    weight_g: int = pydantic.Field(alias="weightGrams", ge=0)
    kind: Kind = Kind.SMALL
    when: dt.datetime = dt.datetime(2026, 1, 1)
    tags: set[str] = set()
    inner: Parcel | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def weight_kg(self) -> float:
        return self.weight_g / 1000


class BigParcel(Parcel):
    extra: int = 0


class Wrapped(pydantic.BaseModel, Generic[T]):
    value: T


@dataclass
class Van:
    parcels: list[Parcel]
    first: Parcel | None = None


def parcel(weight_g: int = 5, **more: Any) -> Parcel:
    return Parcel(weightGrams=weight_g, **more)


def test_pydantic_models_go_round_alone_and_inside_others() -> None:
    one = parcel(tags={"a", "b"}, inner=parcel(6), when=dt.datetime(2026, 5, 1, tzinfo=dt.UTC))
    for hint, value in (
        (Parcel, one),
        (Parcel | None, None),
        (list[Parcel], [one]),
        (Van, Van([one], one)),
        (Parcel | Van, one),
        (Wrapped[int], Wrapped[int](value=3)),
    ):
        codec = build_codec(hint, PLACE)
        assert codec.decode(codec.encode(value)) == value == codec.isolate(value)


def test_pydantic_model_is_sent_by_field_names_without_computed_fields() -> None:
    plain = msgpack.unpackb(build_codec(Parcel, PLACE).encode(parcel()))
    assert sorted(plain) == ["inner", "kind", "tags", "weight_g", "when"]


def test_pydantic_model_is_copied_and_validated() -> None:
    codec, one = build_codec(Parcel, PLACE), parcel()
    assert codec.isolate(one) is not one
    with pytest.raises(TypeError, match="greater than or equal to 0"):
        codec.decode(msgpack.packb({"weight_g": -1}))
    with pytest.raises(TypeError, match="expected `Parcel`, got `dict`"):
        codec.encode({"weight_g": 1})
    with pytest.raises(TypeError, match="`BigParcel`, which would lose fields `extra`"):
        codec.encode(BigParcel(weightGrams=1))


def test_open_generic_pydantic_model_is_refused() -> None:
    with pytest.raises(DefinitionError, match="`Wrapped` leaves type variable `T` open"):
        build_codec(Wrapped, PLACE)


def test_runtime_never_imports_pydantic_or_attrs() -> None:
    assert hooks.__file__ is not None
    for source in pathlib.Path(hooks.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            module = node.module if isinstance(node, ast.ImportFrom) else None
            assert not {"pydantic", "attrs", "attr"} & {*names, module}, source.name


# --- references and streams ----------------------------------------------------------------------


class Contract:
    """A stand-in for the runtime's class of that name."""


class Airport(Contract):
    def __init__(self, key: str = "self") -> None:
        self.key = key


class Hub(Airport):
    pass


class Viewer(Contract):
    pass


class Reference:
    """As the runtime's references: no subclass, but `__class__` is its grain class."""

    def __init__(self, cls: type, key: str, runtime: object) -> None:
        self.cls, self.key, self.runtime = cls, key, runtime

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore
        return self.cls


class Channel(Generic[T]):
    def __init__(self, item: Any, name: str, runtime: object) -> None:
        self.item, self.name, self.runtime = item, name, runtime


def _send(value: Any) -> object:
    if type(value) is Reference or isinstance(value, Airport):
        return value.key
    raise TypeError("pass what client.observe(viewer) returned")


@pytest.fixture
def references() -> None:
    register_hook(
        lambda cls: issubclass(cls, (Contract, Reference)),
        _send,
        lambda annotation, plain, runtime: Reference(annotation, plain, runtime),
    )
    register_hook(
        lambda cls: issubclass(cls, Channel),
        lambda channel: channel.name,
        lambda annotation, plain, runtime: Channel(get_args(annotation)[0], plain, runtime),
    )


@dataclass
class Message:
    to: Airport
    over: Channel[int]


@pytest.mark.usefixtures("references")
def test_reference_is_rebuilt_for_the_runtime_that_decodes() -> None:
    codec = build_codec(Airport, PLACE)
    assert codec.needs_runtime
    data = codec.encode(Reference(Airport, "BOS", "here"))
    assert data == b"\xa3BOS"
    for runtime in ("silo-1", "silo-2"):
        back = codec.decode(data, runtime)
        assert (type(back), back.cls, back.key, back.runtime) == (
            Reference,
            Airport,
            "BOS",
            runtime,
        )
    assert codec.isolate(Reference(Airport, "BOS", "here"), "there").runtime == "there"


@pytest.mark.usefixtures("references")
def test_reference_to_a_subclass_fits_and_one_to_another_class_does_not() -> None:
    codec = build_codec(Airport, PLACE)
    assert codec.isolate(Reference(Hub, "BOS", None)).key == "BOS"
    with pytest.raises(TypeError, match="expected `Airport`, got `Reference`"):
        codec.encode(Reference(Viewer, "v", None))
    with pytest.raises(TypeError, match="expected `Airport`, got `str`"):
        codec.encode("BOS")


@pytest.mark.usefixtures("references")
def test_grain_itself_is_sent_as_a_reference_and_a_bare_observer_is_refused() -> None:
    assert build_codec(Airport, PLACE).isolate(Airport("BOS"), "h").runtime == "h"
    with pytest.raises(TypeError, match=r"pass what client\.observe"):
        build_codec(Viewer, PLACE).encode(Viewer())


@pytest.mark.usefixtures("references")
def test_hook_gets_the_whole_annotation_inside_dataclasses_and_containers() -> None:
    codec = build_codec(list[Message], PLACE)
    assert codec.needs_runtime
    message = Message(Airport("BOS"), Channel(int, "n", None))
    [back] = codec.isolate([message], "runtime")
    assert (back.over.item, back.over.name, back.over.runtime) == (int, "n", "runtime")
    assert (back.to.key, back.to.runtime) == ("BOS", "runtime")


@pytest.mark.usefixtures("references")
def test_union_of_references_keeps_the_class() -> None:
    codec = build_codec(Airport | Viewer | None, PLACE)
    back = codec.isolate(Reference(Hub, "BOS", None), "h")
    assert (back.cls, back.runtime) == (Airport, "h")
    assert codec.isolate(None) is None


@pytest.mark.usefixtures("references")
def test_arguments_hand_the_runtime_on() -> None:
    codecs = [build_codec(Airport, PLACE), build_codec(int, PLACE)]
    arguments = Arguments(["to", "by"], codecs, "Airport.add")
    assert arguments.needs_runtime
    body = arguments.encode((Airport("BOS"), 3))
    assert msgpack.unpackb(body) == ["BOS", 3]
    assert arguments.decode(body, "h")[0].runtime == "h"  # type: ignore[attr-defined]
    assert arguments.isolate((Airport("BOS"), 3), "h")[0].runtime == "h"  # type: ignore[attr-defined]
    with pytest.raises(
        TypeError, match=r"Airport\.add: argument `to`: expected `Airport`, got `int`"
    ):
        arguments.encode((3, 3))


@pytest.mark.usefixtures("references")
def test_stream_without_item_type_is_refused() -> None:
    with pytest.raises(DefinitionError, match="`Channel` leaves type variable `T` open"):
        build_codec(Channel, PLACE)


def test_decodes_inside_a_decode_keep_their_own_runtimes() -> None:
    def rebuild(annotation: Any, plain: Any, runtime: Any) -> Reference:
        if plain:
            inner = codec.decode(msgpack.packb(plain - 1), runtime - 1)
            assert inner.runtime == runtime - 1
        return Reference(annotation, plain, runtime)

    register_hook(lambda cls: issubclass(cls, (Contract, Reference)), lambda ref: ref.key, rebuild)
    codec = build_codec(Airport, PLACE)
    assert codec.decode(msgpack.packb(3), 10).runtime == 10
    assert codec.decode(msgpack.packb(0), 20).runtime == 20


def test_error_of_the_runtime_in_a_hook_keeps_its_type() -> None:
    def rebuild(_annotation: Any, _plain: Any, _runtime: Any) -> object:
        raise NotInCluster("connect first")

    register_hook(lambda cls: issubclass(cls, Contract), lambda ref: ref.key, rebuild)
    codec = build_codec(Airport, PLACE)
    with pytest.raises(NotInCluster):
        codec.decode(b"\xa1a")
    with pytest.raises(NotInCluster):
        Arguments(["to"], [codec], "A.add").decode(b"\x91\xa1a")
