"""The analysis of a grain class: its methods, states and marks.

This module owns `GrainType` and makes one when a class is defined. The checks are in `checks`.
Every error names file and line.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from millstream.runtime.errors import DefinitionError

from .checks import (
    HOOKS,
    OWN_NAMES,
    check_hooks,
    check_init,
    check_method,
    check_name_is_free,
    check_observer,
    check_states,
    check_workers,
    is_root,
)
from .markers import Declaration, GrainOptions, Mark, marks_of, role_of
from .method import MethodSpec, source_of
from .migration import MOVE_HOOKS, MoveHooks, find_move_hooks
from .names import OBSERVER_SIGN, check_kind
from .placement import StatelessWorker
from .state import StateField
from .streamed_method import StreamedMethod
from .upgrades import StateUpgrades, chain_of, check_steps
from .versions import FIRST_VERSION

__all__ = ["GrainType", "define"]


class GrainType:
    """A grain class as the runtime sees it: its names, methods, states and marks.

    `SiloServices.grain_types()` gives the types that a silo hosts.

    Args:
        cls: The grain class.
        source: `file:line` of the class.

    Attributes:
        cls: The grain class.
        source: `file:line` of the class.
        specs: The methods that can be called, by name.
        marks: The marks of each marked method.
        local_names: The other names of the class, with the reason why they cannot be called.
        states: The states by attribute.
        upgrades: The upgrades of each state, once the type is resolved.
        move_hooks: Its `on_dehydrate` and `on_rehydrate`, or None.
    """

    def __init__(self, cls: type[Any], source: str) -> None:
        self.cls = cls
        self.source = source
        self.specs: dict[str, MethodSpec] = {}
        self.marks: dict[str, list[Mark]] = {}
        self.local_names: dict[str, str] = {}
        self.states: dict[str, StateField[Any]] = {}
        self.upgrades: dict[str, StateUpgrades] = {}
        self.move_hooks: MoveHooks | None = None
        self.localns: Mapping[str, Any] = {}  # of the function that defines the class
        self.stub_code: dict[str, Any] = {}  # compiled by `stubs`, by source text

    @property
    def options(self) -> GrainOptions:
        """The options of `@grain`, which runs after the class is defined."""
        options: GrainOptions = self.cls.__millstream_options__
        return options

    @property
    def name(self) -> str:
        """The type name on the wire and in stores. That of an observer begins with `~`."""
        name = self.options.name or self.cls.__name__
        return f"{OBSERVER_SIGN}{name}" if self.is_observer else name

    @property
    def is_observer(self) -> bool:
        """True for a class whose objects live in clients, and that grains call.

        False for a grain class, even if it derives from such a class.
        """
        is_hosted: bool = self.cls.__millstream_hosted__
        return bool(self.cls.__millstream_observer__) and not is_hosted

    @property
    def base_names(self) -> list[str]:
        """The names of the grain types from which this one derives."""
        types = [base.__dict__.get("__millstream_type__") for base in self.cls.__mro__[1:]]
        return [base.name for base in types if base is not None and not is_root(base.cls)]

    @property
    def version(self) -> int:
        """The version of the class, as `@grain(version=...)` gives it."""
        return self.options.version

    @property
    def is_worker(self) -> bool:
        """True for a class of stateless workers, of which a grain has several activations."""
        return isinstance(self.options.placement, StatelessWorker)

    def check_placement(self) -> None:
        """Check that the class fits its placement.

        Raises:
            DefinitionError: A class of stateless workers has a member that presumes one activation.
        """
        if self.is_worker:
            check_workers(self.cls, self.states, self.marks, self.source)

    def apply_options(self, subject: str) -> None:
        """Check the class against its options, and give its methods the version.

        Raises:
            DefinitionError: An option does not fit the class. `subject` begins the text.
        """
        if self.is_observer and self.version != FIRST_VERSION:
            raise DefinitionError(
                f"{subject}(version={self.version}): {self.cls.__name__} is an observer, whose "
                "object is in one client and has no versions: remove `version`"
            )
        self.check_placement()
        check_steps(self.cls, self.version, self.states, self.marks)
        for spec in self.specs.values():
            spec.version = self.version
        with suppress(NameError):  # a name is defined later in the module: see `resolve`
            self._resolve_upgrades()

    def _resolve_upgrades(self) -> None:
        """Build the upgrades of the states. Raises DefinitionError, NameError."""
        for name, steps in check_steps(self.cls, self.version, self.states, self.marks).items():
            field = self.states[name]
            if steps:
                field.resolve(f"{field.source}: {self.cls.__name__}.{name}")
                self.upgrades[name] = chain_of(
                    self.cls, self.version, name, field.codec, steps, self.localns
                )
            else:
                self.upgrades[name] = StateUpgrades(self.version)

    def spec_of(self, wire_name: str) -> MethodSpec | None:
        """Return the method of a name, or None."""
        return self.specs.get(wire_name)

    def declarations(self) -> list[Declaration]:
        """Return the declarations of its marks, for the silos that do not host the type."""
        marked = [(method, mark) for method, marks in self.marks.items() for mark in marks]
        found = [mark.declare(self.name, method) for method, mark in marked]
        return [one for one in found if one is not None]

    def resolve(self) -> None:
        """Build every codec that is still pending. A silo calls it when it is built.

        Raises:
            DefinitionError: An annotation cannot be encoded, or the class was changed after its
                definition so that it cannot be a grain.
        """
        cls = self.cls
        name = self.options.name or cls.__name__
        check_kind(f"{self.source}: the name of {cls.__qualname__}", name)
        check_init(cls, self.source)
        for spec in self.specs.values():
            with _names_known(f"{source_of(spec.fn)}: {spec.label}"):
                spec.resolve()
        if self.move_hooks is not None:
            with _names_known(f"{self.source}: the hooks of a move"):
                self.move_hooks.resolve()
        for name, field in self.states.items():
            with _names_known(f"{field.source}: {cls.__name__}.{name}"):
                field.resolve(f"{field.source}: {cls.__name__}.{name}")
        with _names_known(f"{self.source}: the upgrades of states"):
            self._resolve_upgrades()


@contextmanager
def _names_known(subject: str) -> Iterator[None]:
    try:
        yield
    except NameError as error:
        raise DefinitionError(
            f"{subject}: {error}; annotations must be importable at run time (not only under "
            "TYPE_CHECKING)"
        ) from None


def define(cls: type[Any], frame: FrameType) -> None:
    """Check a Contract subclass and give it its `GrainType`. Raises DefinitionError."""
    grain_type = GrainType(cls, f"{frame.f_code.co_filename}:{frame.f_lineno}")
    localns = {**frame.f_locals, cls.__name__: cls} if frame.f_code.co_flags & 0x2 else {}
    grain_type.localns = localns
    for name in dir(cls):
        if not (name.startswith("__") or name in HOOKS or name in OWN_NAMES or name in MOVE_HOOKS):
            _define_name(grain_type, cls, name, localns)
    check_hooks(cls, grain_type.source)
    grain_type.move_hooks = find_move_hooks(cls, localns)
    check_init(cls, grain_type.source)
    check_states(grain_type.states, cls, grain_type.source)
    handlers = [name for name in grain_type.marks if name in grain_type.local_names]
    check_observer(cls, grain_type.states, handlers, grain_type.source)
    grain_type.check_placement()
    cls.__millstream_type__ = grain_type


def _define_name(
    grain_type: GrainType, cls: type[Any], name: str, localns: Mapping[str, Any]
) -> None:
    raw = inspect.getattr_static(cls, name)
    check_name_is_free(name, f"{grain_type.source}: {cls.__name__}.{name}")
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
    check_method(cls, name, raw, marks)
    made = MethodSpec if inspect.iscoroutinefunction(raw) else StreamedMethod
    spec = made(cls.__name__, name, raw, marks)
    spec.localns, spec.owner_class = localns, cls
    spec.version = grain_type.version
    spec.open_to = role_of(cls, name)
    try:
        if not getattr(cls, "__parameters__", ()):  # an open generic is checked when it is used
            spec.resolve()
    except NameError:
        pass  # a name is defined later in the module: resolve on first use or in a silo
    grain_type.specs[name] = spec


def _why_local(raw: Any, name: str, marks: list[Mark]) -> str:
    if any(mark.makes_local for mark in marks):
        return "a handler that only the runtime calls"
    if name.startswith("_"):
        return "private"
    if not inspect.isfunction(raw):
        return "not a method"
    return ""
