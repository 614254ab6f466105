"""What a grain class means: its methods, states and marks, and what is wrong with it.

Owns: `GrainType`, and every check that runs when a class is defined. Source of the rules:
spec/api.md T5, T7, T8, T10, T21. Invariant: an error names file and line.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FrameType
from typing import Any

from millstream.runtime.errors import DefinitionError

from .markers import Declaration, Flag, GrainOptions, Mark, marks_of
from .method import MethodSpec, place_of
from .state import StateField

__all__ = ["GrainType", "define"]

RESERVED_PREFIX = "_ms"
HOOKS = frozenset({"on_activate", "on_deactivate", "grain", "stream", "context", "key"})
PARAMETER_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


class GrainType:
    """A grain class as the runtime sees it."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls
        self.specs: dict[str, MethodSpec] = {}
        self.marks: dict[str, list[Mark]] = {}
        self.local_names: dict[str, str] = {}  # name -> why it is not remote
        self.states: dict[str, StateField[Any]] = {}
        self.stub_code: dict[bool, Any] = {}  # compiled by `stubs`: plain, and with options

    @property
    def options(self) -> GrainOptions:
        """Options given by `@grain`, which runs after the class is defined."""
        options: GrainOptions = self.cls.__millstream_options__
        return options

    @property
    def name(self) -> str:
        """The type name on the wire and in stores."""
        return self.options.name or self.cls.__name__

    def spec_of(self, wire_name: str) -> MethodSpec | None:
        """The method of a name, or None."""
        return self.specs.get(wire_name)

    def declarations(self) -> list[Declaration]:
        """What its marks tell the silos that do not host it."""
        marked = [(method, mark) for method, marks in self.marks.items() for mark in marks]
        found = [mark.declared(self.name, method) for method, mark in marked]
        return [one for one in found if one is not None]

    def resolve(self) -> None:
        """Build every codec that is still pending; called when a silo is built."""
        for spec in self.specs.values():
            try:
                spec.resolve()
            except NameError as error:
                raise DefinitionError(
                    f"{place_of(spec.fn)}: {spec.label}: {error}; annotations must be importable "
                    "at run time (not only under TYPE_CHECKING)"
                ) from None
        for name, field in self.states.items():
            field.resolve(f"{self.cls.__name__}.{name}")


def define(cls: type[Any], frame: FrameType) -> None:
    """Check a Contract subclass and give it its `GrainType`. Raises DefinitionError."""
    grain_type = GrainType(cls)
    localns = {**frame.f_locals, cls.__name__: cls} if frame.f_code.co_flags & 0x2 else {}
    for name in dir(cls):
        if name.startswith("__") or name in HOOKS:
            continue
        _define_name(grain_type, cls, name, localns)
    cls.__millstream_type__ = grain_type


def _define_name(
    grain_type: GrainType, cls: type[Any], name: str, localns: Mapping[str, Any]
) -> None:
    raw = inspect.getattr_static(cls, name)
    if name.startswith(RESERVED_PREFIX):
        raise DefinitionError(
            f"{place_of(cls)}: {cls.__name__}.{name}: names beginning with "
            f"{RESERVED_PREFIX!r} are the runtime's own"
        )
    if hasattr(raw, "__millstream_state__"):
        grain_type.states[name] = raw
        grain_type.local_names[name] = "grain state"
        return
    marks = marks_of(cls, name)
    for mark in marks:
        mark.define(cls, name, raw)
    if marks:
        grain_type.marks[name] = marks
    reason = _why_local(raw, name, marks)
    if reason:
        grain_type.local_names[name] = reason
        return
    _check_method(cls, name, raw, marks)
    spec = MethodSpec(cls.__name__, name, raw, marks)
    spec.localns, spec.owner_class = localns, cls
    try:
        if not getattr(cls, "__parameters__", ()):  # an open generic is checked when it is used
            spec.resolve()
    except NameError:
        pass  # defined later in the module: resolved on first use, or when a silo is built
    grain_type.specs[name] = spec


def _why_local(raw: Any, name: str, marks: list[Mark]) -> str:
    if any(mark.makes_local for mark in marks):
        return "a handler that only the runtime calls"
    if name.startswith("_"):
        return "private"
    if not inspect.isfunction(raw):
        return "not a method"
    return ""


def _check_method(cls: type[Any], name: str, fn: Any, marks: list[Mark]) -> None:
    place = f"{place_of(fn)}: {cls.__name__}.{name}"
    if inspect.isasyncgenfunction(fn):
        raise DefinitionError(
            f"{place}: methods that yield results are not available; return a "
            "list, or publish to a stream"
        )
    if not inspect.iscoroutinefunction(fn):
        raise DefinitionError(
            f"{place}: a public method must be `async def`; make it so, or name it `_{name}`"
        )
    for parameter in list(inspect.signature(fn).parameters.values())[1:]:
        if parameter.kind not in PARAMETER_KINDS:
            raise DefinitionError(f"{place}: name each parameter; `{parameter}` cannot be sent")
        if parameter.name.startswith(RESERVED_PREFIX):
            raise DefinitionError(
                f"{place}: parameter names beginning with {RESERVED_PREFIX!r} are the runtime's own"
            )
    flags = {mark.name for mark in marks if isinstance(mark, Flag)}
    if "one_way" in flags and inspect.signature(fn).return_annotation not in (None, "None"):
        raise DefinitionError(f"{place}: a one-way method has no result: annotate `-> None`")
    _check_implemented(cls, name, fn, place)


def _check_implemented(cls: type[Any], name: str, fn: Any, place: str) -> None:
    """A grain must not inherit a method's body from a contract."""
    if not cls.__millstream_hosted__:
        return
    owner = next(base for base in cls.__mro__ if name in base.__dict__)
    if getattr(owner, "__millstream_hosted__", None) is False:
        raise DefinitionError(
            f"{place}: {cls.__name__} inherits `{name}` from the contract {owner.__name__} "
            "and must implement it"
        )
