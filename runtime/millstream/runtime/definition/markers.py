"""The marks that an author puts on methods, and the options of a grain class, as plain data.

A decorator returns the function that it was given, so signature, completion and overrides work as
usual. The marks of a method are those of the most derived definition that has any.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from millstream.runtime.errors import ConfigError, DefinitionError
from millstream.runtime.role import Role
from millstream.runtime.text import show_text

from .filters import NO_FILTERS, CallFilters, GrainCall
from .labels import Requirements
from .placement import RANDOM, PlacementStrategy
from .versions import FIRST_VERSION, VERSION_MAX

__all__ = [
    "Declaration",
    "GrainOptions",
    "Mark",
    "always_interleave",
    "isolated",
    "marks_of",
    "one_way",
    "open_to",
    "read_only",
    "role_of",
    "shielded",
    "stopping",
    "timeout",
]

SF = TypeVar("SF", bound=Callable[[Any], None])
AF = TypeVar("AF", bound=Callable[..., Coroutine[Any, Any, Any]])
CF = TypeVar("CF", bound=Callable[..., Coroutine[Any, Any, Any] | AsyncGenerator[Any, None]])
OW = TypeVar("OW", bound=Callable[..., Coroutine[Any, Any, None]])

MARKS = "__millstream__"


class Declaration(msgspec.Struct, frozen=True, array_like=True):
    """The data of a mark for the silos that do not host its class.

    A silo sends its declarations in its row of the membership table.

    Attributes:
        kind: The kind of mark. Only the part that defines this kind reads the body.
        body: The data, in the form of that part.
    """

    kind: str
    body: bytes


class Mark:
    """Data that a decorator leaves on a method, and that is checked when the class is defined.

    Parts derive their own marks. Put one on a method by `add_mark`, and read it by `marks_of`.
    """

    makes_local = False
    """True: the method cannot be called through a reference, such as a handler or timer."""
    needs_one_activation = False
    """True: the mark presumes that a grain has one activation, so stateless workers cannot have
    it."""

    @property
    def part(self) -> str:
        """The name of the part that a silo needs to host the method's class; empty if it needs
        none.
        """
        return ""

    def define(self, owner: type, name: str, fn: Callable[..., Any]) -> None:
        """Check the marked method when its class is defined.

        Args:
            owner: The class.
            name: The name of the method.
            fn: The function.

        Raises:
            DefinitionError: The mark cannot be on this method.
        """

    def declare(self, grain_type: str, method: str) -> Declaration | None:
        """Return the data for the silos that do not host the grain type.

        Args:
            grain_type: The name of the grain type.
            method: The name of the method.

        Returns:
            The declaration, or None if these silos need no data.
        """
        return None


@dataclass(frozen=True, slots=True)
class Flag(Mark):
    """A mark without arguments, such as `read_only` or `one_way`."""

    name: str

    def __str__(self) -> str:
        return f"`@{self.name}`"


@dataclass(frozen=True, slots=True)
class Timeout(Mark):
    """The deadline of a method, in seconds."""

    seconds: float

    def __str__(self) -> str:
        return f"`@timeout({self.seconds:g})`"


@dataclass(frozen=True, slots=True)
class OpenTo(Mark):
    """The role that the caller of a method needs. Higher roles may call it as well."""

    role: Role

    def __str__(self) -> str:
        return f"`@open_to(Role.{self.role.name})`"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrainOptions:
    """The options of `@grain(...)`. If `name` is None, the type has the name of the class."""

    name: str | None = None
    reentrant: bool = False
    placement: PlacementStrategy = RANDOM
    idle_after: float | None = None
    direct: bool = True
    filters: CallFilters = NO_FILTERS
    may_interleave: Callable[[GrainCall], bool] | None = None
    requires: Requirements = ()
    version: int = field(default=FIRST_VERSION, metadata={"min": FIRST_VERSION, "max": VERSION_MAX})
    immovable: bool = False


def add_mark(fn: Any, mark: Mark) -> Any:
    """Put a mark on a function.

    Call it in a decorator of methods.

    Args:
        fn: The function.
        mark: The mark.

    Returns:
        The function itself.

    Raises:
        DefinitionError: `fn` is no function.
    """
    if isinstance(fn, type) or not callable(fn) or not hasattr(fn, "__dict__"):
        where = getattr(fn, "__module__", "")
        raise DefinitionError(
            f"{where}{': ' if where else ''}{mark} marks a method of a grain, not "
            f"{show_text(repr(fn))}: write it above `async def`"
        )
    marks: list[Mark] = fn.__dict__.setdefault(MARKS, [])
    marks.append(mark)
    return fn


def marks_of(cls: type, name: str) -> list[Mark]:
    """Return the marks of a method.

    Args:
        cls: The class.
        name: The name of the method.

    Returns:
        The marks of the most derived definition that has any. Marks of overridden methods are not
            added.
    """
    for base in cls.__mro__:
        raw = base.__dict__.get(name)
        # A static or class method hides the function that has the marks.
        for fn in (raw, getattr(raw, "__func__", None)):
            found: list[Mark] | None = getattr(fn, MARKS, None)
            if found:
                return found
    return []


def role_of(cls: type, name: str) -> Role | None:
    """Return the role to which a method is open, by its most derived definition with `@open_to`.

    None if no definition has the mark. An override with other marks does not open a method that its
    base has closed.
    """
    for base in cls.__mro__:
        for mark in getattr(base.__dict__.get(name), MARKS, ()):
            if isinstance(mark, OpenTo):
                return mark.role
    return None


def read_only(method: AF, /) -> AF:
    """Mark a method that changes nothing.

    It may run while other read-only methods of the same activation run.
    """
    add_mark(method, Flag("read_only"))
    return method


def always_interleave(method: AF, /) -> AF:
    """Mark a method that may start at any await point of every other turn of its activation."""
    add_mark(method, Flag("always_interleave"))
    return method


def one_way(method: OW, /) -> OW:
    """Mark a method whose caller does not wait for it.

    The call returns when the request is on its way. An error of the method is logged at the callee.
    The method must be annotated `-> None`.
    """
    add_mark(method, Flag("one_way"))
    return method


def shielded(method: AF, /) -> AF:
    """Mark a method that is never cancelled once it has started.

    It runs to its end, even if its caller is gone or its deadline has passed.
    """
    add_mark(method, Flag("shielded"))
    return method


def open_to(role: Role, /) -> Callable[[CF], CF]:
    """Open a method to callers of a role, and of higher roles.

    Without this mark, a method of a grain is open to every client. A method of a system target, or
    of a grain that a part brings, is open to silos only.

    Args:
        role: The lowest role that may call the method. `Role.CLIENT`: every client.
            `Role.OPERATOR`: clients that know the operator's secret, and silos. `Role.SILO`: silos
            and their grains only.

    Raises:
        ConfigError: `role` is no Role.
    """
    if not isinstance(role, Role):
        raise ConfigError(f"open_to({show_text(repr(role))}): pass a Role, such as Role.OPERATOR")

    def mark(method: CF) -> CF:
        add_mark(method, OpenTo(role))
        return method

    return mark


def isolated(method: AF, /) -> AF:
    """Mark a method of a part's grain whose arguments need not be copied.

    Use it only if callers keep no reference to the arguments that they pass.
    """
    add_mark(method, Flag("isolated"))
    return method


def stopping(fn: SF, /) -> SF:
    """Mark a plain private method of a part's grain that is called when the end of the activation
    is requested.

    The method lets turns that only wait end. It must not raise.
    """
    add_mark(fn, Flag("stopping"))
    return fn


def timeout(seconds: float, /) -> Callable[[CF], CF]:
    """Set the deadline of a method, in place of `RuntimeOptions.call_timeout_s`.

    Args:
        seconds: The deadline in seconds, positive and finite.

    Raises:
        ConfigError: The deadline is not a positive, finite number.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < math.inf:
        text = f"timeout({show_text(repr(seconds))}): pass a positive, finite number of seconds"
        raise ConfigError(text)

    def mark(method: CF) -> CF:
        add_mark(method, Timeout(float(seconds)))
        return method

    return mark
