"""Exports can be inspected, pickled and encoded, and are shown by their public names.

Python finds annotations and source by `__module__`, the module that defines the export. Users need
not know that module.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import logging
import pickle
import re
import traceback
from collections.abc import Iterator
from typing import Any, get_type_hints

import msgspec
import pytest
from tests.imports import FOLDERS, ROOT, module_of
from tests.test_rooms import FACES

from millstream.balancers import RingBalancer
from millstream.providers.memory import MemoryQueues, TopicOptions
from millstream.providers.priority import RequestInvalid
from millstream.runtime import (
    ConfigError,
    Grain,
    GrainError,
    MemoryStateStore,
    MillstreamError,
    Overloaded,
)
from millstream.runtime.codec.failures import KnownErrors, describe, rebuild
from millstream.runtime.extending import codec_of
from millstream.runtime.log_lines import traceback_of
from millstream.runtime.public_names import public_name, with_public_names
from millstream.runtime.wire.peers import SiloLeaving

PUBLISHED = sorted(
    module_of(path)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if "\npublish(__name__)\n" in path.read_text()
)
EXTRAS = {"http": "aiohttp", "redis": "redis", "index": "pyspark"}
FOR_TYPES = {"start_index"}
"""Functions with annotations of PySpark, which only type checkers import."""
NOT_ENCODED = "`Callable` has no encoding|`CallFilter` has no encoding|`Path` has no encoding"


def face(module: str) -> Any:
    """Import a public module; skip the test if the module needs an extra that is not installed."""
    extra = EXTRAS.get(module.rpartition(".")[2])
    if extra is not None:
        pytest.importorskip(extra, reason=f"{extra} is not installed")
    return importlib.import_module(module)


def exports(module: str, base: type = object) -> Iterator[Any]:
    """Yield our own classes and functions in `__all__`; with a base, only subclasses of it."""
    for name in face(module).__all__:
        value = getattr(face(module), name)
        is_ours = getattr(value, "__module__", "").startswith("millstream.")
        is_class = isinstance(value, type)
        if is_ours and (is_class or inspect.isfunction(value)):
            if base is object or (is_class and issubclass(value, base)):
                yield value


def is_frozen(cls: type) -> bool:
    if dataclasses.is_dataclass(cls):
        return bool(cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_config__.frozen
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def frozen_defaults(module: str) -> Iterator[Any]:
    """Yield each frozen value that can be made without arguments, mostly options."""
    for cls in exports(module, object):
        if isinstance(cls, type) and is_frozen(cls):
            try:
                yield cls()
            except TypeError:
                continue


def error_of(cls: Any) -> Any:
    """Make an error without calling its `__init__`."""
    error = cls.__new__(cls, "text")
    error.args = ("text",)
    return error


def test_public_modules_are_found() -> None:
    assert FACES - {"millstream.providers.spark"} < set(PUBLISHED)  # this module exports no class


@pytest.mark.parametrize("module", PUBLISHED)
def test_annotations_and_source_of_an_export_are_found(module: str) -> None:
    for value in exports(module):
        if value.__name__ not in FOR_TYPES:
            get_type_hints(value)
        heads = ("class", "def", "async def")
        source = inspect.getsource(value)
        assert any(f"{head} {value.__name__}" in source for head in heads), value


@pytest.mark.parametrize("module", PUBLISHED)
def test_an_export_and_frozen_options_are_pickled(module: str) -> None:
    for value in exports(module):
        assert pickle.loads(pickle.dumps(value)) is value
    for value in frozen_defaults(module):
        assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("module", PUBLISHED)
def test_an_exported_error_is_pickled_and_copied(module: str) -> None:
    for cls in exports(module, MillstreamError):
        error = error_of(cls)
        error.add_note("seen twice")
        for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(back), back.args, vars(back)) == (cls, error.args, vars(error))


def test_an_error_keeps_what_its_init_was_given() -> None:
    error = Overloaded("busy", "calls_max", 8)
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.limit_name, back.limit) == (str(error), "calls_max", 8)


@pytest.mark.parametrize("module", PUBLISHED)
def test_the_codec_takes_exported_errors_and_options(module: str) -> None:
    known = KnownErrors([face(module)])
    for cls in exports(module, Exception):
        back = rebuild(describe(error_of(cls), "Airport/BOS.add"), known)
        assert (type(back), back.args) == (cls, ("text",))
    for value in frozen_defaults(module):
        try:
            codec = codec_of(type(value), "a test")
        except TypeError as error:
            assert re.search(NOT_ENCODED, str(error)), error
            continue
        assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("module", PUBLISHED)
def test_an_exported_class_is_shown_by_a_name_that_can_be_imported(module: str) -> None:
    for cls in exports(module):
        if not isinstance(cls, type):
            continue
        place, _, name = public_name(cls).rpartition(".")
        assert place in PUBLISHED
        assert getattr(face(place), name) is cls
        assert getattr(cls, "_is_protocol", False) or cls.__repr__ is not object.__repr__, cls


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (MemoryStateStore(), "millstream.runtime.MemoryStateStore"),
        (MemoryQueues(), "millstream.providers.memory.MemoryQueues"),
        (RingBalancer(), "millstream.balancers.RingBalancer"),
    ],
)
def test_a_repr_has_the_public_name(value: object, name: str) -> None:
    assert repr(value) == f"<{name} object at {id(value):#x}>"


class Mine(MemoryStateStore):
    pass


class Airport(Grain):
    pass


@pytest.mark.parametrize("cls", [Mine, Airport])
def test_a_class_of_a_user_is_shown_as_ever(cls: type) -> None:
    value: object = cls()
    assert repr(value) == object.__repr__(value)


def test_an_options_repr_is_its_own() -> None:
    assert repr(TopicOptions()).startswith("TopicOptions(")


def raised() -> BaseException:
    """Return an error of ours, caused by others of ours, one of them in a group."""
    try:
        try:
            raise RequestInvalid("encode", "id", "is empty")
        except RequestInvalid as error:
            raise ExceptionGroup("two", [error, SiloLeaving("goes")]) from error
    except ExceptionGroup as group:
        try:
            raise ConfigError from group
        except ConfigError as error:
            return error


def test_headings_of_tracebacks_that_are_sent_and_logged_have_public_names() -> None:
    for text in (rebuild(describe(raised(), "A/1.m"), KnownErrors([])).__notes__[-1], logged()):
        headings = re.findall(r"^[ |]*(millstream\.[\w.]+)", text, re.M)
        assert headings == [
            "millstream.providers.priority.RequestInvalid",
            "millstream.providers.priority.RequestInvalid",
            "millstream.SiloLeaving",
            "millstream.runtime.ConfigError",
        ]


def logged() -> str:
    record = logging.makeLogRecord({"exc_info": (ConfigError, raised(), None)})
    return traceback_of(record.exc_info[1] if record.exc_info else None)


@pytest.mark.parametrize(
    "text",
    [
        "millstream.runtime.errors: a line of somebody's text",
        "ValueError: millstream.runtime.errors.Overloaded: told in a message",
        "shop.orders.SoldOut: gone",
    ],
)
def test_other_lines_of_a_traceback_stay(text: str) -> None:
    assert with_public_names(text) == text


def test_an_error_that_is_not_known_where_it_arrives_has_its_name_for_peers() -> None:
    error = error_of(Overloaded)
    arrived = rebuild(describe(error, "A/1.m"), NothingKnown([]))
    assert isinstance(arrived, GrainError)
    assert arrived.type_name == "millstream.Overloaded"


class NothingKnown(KnownErrors):
    def find(self, name: str) -> None:
        return None


def test_pythons_own_heading_names_the_module_that_defines_the_error() -> None:
    """`inspect.getsource` needs an unchanged `__module__`: docs/decisions/0033."""
    heading = traceback.format_exception_only(Overloaded("queue", "depth_max", 3))[-1]
    assert heading == "millstream.runtime.errors.Overloaded: queue: depth_max is 3\n"
