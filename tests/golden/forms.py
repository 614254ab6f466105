"""Names of Millstream's own classes on the wire and in stores, and their forms with all fields.

Owns: finding the names and forms in the product. Not: comparing (`test_golden`), writing
(`__main__`).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec import inspect as mi
from tests.imports import FOLDERS, ROOT, module_of

from millstream.providers.memory.queue_grain import MemoryQueue
from millstream.providers.priority import MessageExists, QueueSettings, Template
from millstream.providers.priority.core.results import make_refused
from millstream.providers.priority.owner.grain import owner_of
from millstream.runtime import Contract, MillstreamError, Overloaded, QueueFull
from millstream.runtime.codec.failures import describe
from millstream.runtime.extending import SystemTarget, codec_of, type_name
from millstream.streams import StreamId, Token
from millstream.streams.api.inbox import inbox_of
from millstream.streams.api.rendezvous import rendezvous_of
from millstream.streams.failures.policy import FailurePolicy, type_names
from millstream.streams.inbox.inbox import inbox_grain_of
from millstream.streams.staging.writer import writer_grain_of

__all__ = ["FILES", "HERE", "form_classes", "modules", "own"]

HERE = Path(__file__).parent
DECODED = re.compile(r"\bDecoder\(\s*([A-Z]\w+|(?:list|tuple)\[[^()]*?\])\s*[,)]")
ROWS = re.compile(r'\bRecordRows\(\s*\w+,\s*"[^"]*",\s*([A-Z]\w+)')
GRAINS = (inbox_of, inbox_grain_of, rendezvous_of, writer_grain_of, owner_of)
"""Each makes a grain type for a stream provider, or for a part of that name."""


@functools.cache
def modules() -> tuple[tuple[ModuleType, str], ...]:
    """Return each module of the product, and its source."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    named = ((module_of(path), path.read_text()) for path in paths if path.stem != "__main__")
    return tuple((importlib.import_module(name), text) for name, text in named)


def own(base: type) -> set[type]:
    """Return our classes below a base, and the base if it is ours."""
    modules()
    return {cls for cls in under(base) if cls.__module__.startswith("millstream.")}


def under(base: type) -> set[type]:
    inner: list[type] = base.__subclasses__()
    return {base}.union(*map(under, inner))


def names() -> list[str]:
    """Return errors, grain types and system targets, by the names that are sent and stored."""
    found = {f"error {type_name(cls)}" for cls in own(MillstreamError)}
    for make in GRAINS:
        found.add(f"grain {grain_name(make('NAME'))}")
    found.add(f"grain {grain_name(MemoryQueue)}")
    targets = own(SystemTarget)
    found |= {f"target {vars(cls)['target_name']}" for cls in targets if "target_name" in vars(cls)}
    extension = re.compile(r'\bextensions\.add\("(\w+)"')
    found |= {f"extension {name}" for _, text in modules() for name in extension.findall(text)}
    return sorted(found)


def grain_name(cls: type[Contract]) -> str:
    kind = cls.__millstream_type__
    return " ".join((kind.name, *sorted(kind.states)))


# --- forms ---------------------------------------------------------------------------------------


def form_classes() -> set[type]:
    """Return the classes that are decoded from rows, files or frames, and the classes inside of
    them."""
    roots: list[object] = []
    for module, text in modules():
        for found in (*DECODED.findall(text), *ROWS.findall(text)):
            roots.append(eval(found, vars(module)))
    classes = set[type]()
    for info in mi.multi_type_info(roots):
        collect(info, classes)
    return {cls for cls in classes if cls.__module__.startswith("millstream.")}


def collect(info: Any, into: set[type]) -> None:
    """Collect the classes in a type; each is entered once, so a recursive type ends."""
    cls = getattr(info, "cls", None)
    if isinstance(cls, type):
        if cls in into:
            return
        into.add(cls)
    for inner in vars_of(info):
        if isinstance(inner, mi.Type):
            collect(inner, into)


def vars_of(info: Any) -> Iterator[object]:
    """Yield the types inside a type: items, members of a union, types of fields."""
    for name in getattr(info, "__struct_fields__", ()):
        value = getattr(info, name)
        for one in value if isinstance(value, tuple) else (value,):
            yield getattr(one, "type", None) if isinstance(one, mi.Field) else one


def forms() -> list[str]:
    """Return each form, with its fields in order: a list of values, or a map by these names."""
    return sorted(form_of(cls) for cls in form_classes())


def form_of(cls: Any) -> str:
    name = cls.__name__
    if issubclass(cls, enum.Enum):
        return f"{name} one of {' '.join(repr(one.value) for one in cls)}"
    if dataclasses.is_dataclass(cls):
        return f"{name} map {' '.join(field.name for field in dataclasses.fields(cls))}"
    if not issubclass(cls, msgspec.Struct):
        return f"{name} list {' '.join(cls._fields)}"
    config = cls.__struct_config__
    kind = "list" if config.array_like else "map"
    tag = "" if config.tag is None else f" tag {config.tag!r}"
    return f"{name} {kind}{tag} {' '.join(cls.__struct_encode_fields__)}"


# --- bytes ---------------------------------------------------------------------------------------


def vectors() -> list[str]:
    """Return encoded values that contain a name of one of our classes."""
    every = sorted(own(MillstreamError), key=type_name)
    given_up = FailurePolicy(give_up_on=type_names((Overloaded, ValueError)))
    either = codec_of(Token | StreamId, "a vector")
    refusal = make_refused(0, MessageExists("encode", "id 'a' is taken"))
    group = ExceptionGroup("two", [QueueFull("a"), Overloaded("b", "c", 1)])
    found = {type_name(cls): describe(error_of(cls), "Airport/BOS.add") for cls in every}
    found |= {
        "policy": msgspec.msgpack.encode(given_up),
        "union Token": either.encode(Token(1, 2, 3)),
        "union StreamId": either.encode(StreamId("flights", "BOS")),
        "refusal": msgspec.msgpack.encode(refusal),
        "grouped": describe(group, "Airport/BOS.add"),
        "templates": repr((Template("a", QueueSettings()),)).encode(),
    }
    return [f"{name} {data!r}" for name, data in found.items()]


def error_of(cls: Any) -> Any:
    """Make an error without calling its `__init__`."""
    error = cls.__new__(cls, "text")
    error.args = ("text",)
    return error


FILES = {"names.txt": names, "forms.txt": forms, "vectors.txt": vectors}
