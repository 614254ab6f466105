"""What a grain class means: its methods, their flags, codecs and places in the source.

Owns: `GrainType`, `MethodSpec`, and every check that runs when a class is defined. Source of the
rules: spec/api.md T5, T7, T8, T10, T21. Invariants: a spec's codecs are built once; a name that
cannot be resolved yet leaves the spec pending until first use; an error names file and line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from millstream.runtime.codec.arguments import Arguments
from millstream.runtime.codec.codec import Codec, build_codec
from millstream.runtime.codec.types import resolve_hints
from millstream.runtime.errors import DefinitionError

from .markers import Flag, GrainOptions, Mark, Timeout, marks_of

if TYPE_CHECKING:
    from millstream.runtime.cluster.table import Declaration

    from .state import StateField

__all__ = ["GrainType", "MethodSpec", "define", "place_of"]

RESERVED_PREFIX = "_ms"
HOOKS = frozenset({"on_activate", "on_deactivate", "grain", "stream", "context", "key"})
PARAMETER_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def place_of(fn: Any) -> str:
    """`file:line` of a function or class, for error messages."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(fn)}:{inspect.getsourcelines(fn)[1]}"
    except (OSError, TypeError):
        return "?"


class MethodSpec:
    """One method that can be called from elsewhere."""

    def __init__(self, owner: str, name: str, fn: Callable[..., Any], marks: list[Mark]) -> None:
        self.owner = owner
        self.owner_class: type[Any] = object
        self.name = name
        self.fn = fn
        self.signature = inspect.signature(fn)
        self.parameters = list(self.signature.parameters.values())[1:]
        flags = {mark.name for mark in marks if isinstance(mark, Flag)}
        self.is_read_only = "read_only" in flags
        self.is_interleaving = "always_interleave" in flags
        self.is_one_way = "one_way" in flags
        self.is_shielded = "shielded" in flags
        timeouts = [mark.seconds for mark in marks if isinstance(mark, Timeout)]
        self.timeout_s = timeouts[0] if timeouts else None
        self.invoke = invoker(fn, self.parameters)
        self.extension = ""
        self.is_internal = (
            "unshared" in flags
        )  # the runtime's own: arguments are not shared, so not copied
        self.wire_name = name
        self.localns: Mapping[str, Any] = {}
        self.codecs: list[Codec[Any]] = []
        self._arguments: Arguments | None = None
        self._result: Codec[Any] | None = None

    def differs_from(self, other: MethodSpec) -> str:
        """How the parameters of two methods of one name differ; empty if they do not."""
        own = [(p.name, p.kind) for p in self.parameters]
        others = [(p.name, p.kind) for p in other.parameters]
        if own == others:
            return ""
        return f"{self.label}{self.signature} and {other.label}{other.signature} differ"

    @property
    def label(self) -> str:
        """`Airport.add`, as shown in messages."""
        return f"{self.owner}.{self.wire_name}"

    @property
    def arguments(self) -> Arguments:
        """Codec of the argument list; resolves the annotations on first use."""
        if self._arguments is None:
            self.resolve()
        assert self._arguments is not None
        return self._arguments

    @property
    def result(self) -> Codec[Any]:
        """Codec of the result; resolves the annotations on first use."""
        if self._result is None:
            self.resolve()
        assert self._result is not None
        return self._result

    def resolve(self) -> None:
        """Build the codecs. Raises NameError (an annotation is not defined yet)."""
        if self._result is not None:
            return
        hints = resolve_hints(self.fn, self.localns, self.owner_class)
        place = f"{place_of(self.fn)}: {self.label}"
        for parameter in [*self.parameters, None]:
            name = "return" if parameter is None else parameter.name
            if name not in hints:
                what = "the result" if parameter is None else f"argument `{name}`"
                raise DefinitionError(f"{place}: {what} needs an annotation")
        self.codecs = [
            build_codec(hints[p.name], f"{place}: argument `{p.name}`") for p in self.parameters
        ]
        self._arguments = Arguments([p.name for p in self.parameters], self.codecs, self.label)
        self._result = build_codec(hints["return"], f"{place}: result")

    def isolate_argument(self, index: int, value: object, host: object) -> object:
        """What the callee gets for an argument; TypeError names it."""
        try:
            return self.codecs[index].isolate(value, host)
        except (TypeError, ValueError, OverflowError) as error:
            name = self.parameters[index].name
            raise TypeError(f"{self.label}: argument `{name}`: {error}") from None

    def argument_isolator(self, index: int) -> Callable[[object, object], object]:
        """`isolate_argument` of one parameter, as quick as can be."""
        return self.codecs[index].isolator(partial(self.isolate_argument, index))

    def result_isolator(self) -> Callable[[object, object], object]:
        """`isolate_result`, as quick as can be."""
        if self.is_internal:
            return self.isolate_result
        return self.result.isolator(self.isolate_result)

    def isolate(self, values: tuple[object, ...], host: object) -> tuple[object, ...]:
        """What the callee gets for all arguments."""
        return values if self.is_internal else self.arguments.isolate(values, host)

    def encode_result(self, value: object) -> bytes:
        """The result as it is sent; TypeError names the method."""
        try:
            return self.result.encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{self.label}: result: {error}") from None

    def isolate_result(self, value: object, host: object) -> object:
        """What the caller gets; TypeError names the method."""
        if self.is_internal:
            return value
        try:
            return self.result.isolate(value, host)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{self.label}: result: {error}") from None


def invoker(fn: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """`fn` called with a target and all its arguments in order, keyword-only ones included."""
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if not names:
        return fn
    count = len(parameters) - len(names)

    def invoke(target: Any, *args: Any) -> Any:
        return fn(target, *args[:count], **dict(zip(names, args[count:], strict=True)))

    return invoke


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
