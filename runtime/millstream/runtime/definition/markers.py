"""The marks that an author puts on methods, and the options of a class: plain data.

Invariants: a decorator returns the very function it was given (signature, completion and
overrides survive); marks of a method name are merged over the MRO, the most derived first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from millstream.runtime.errors import ConfigError, DefinitionError
from millstream.runtime.role import Role
from millstream.runtime.text import show_text

from .placement import RANDOM, Placement

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
OW = TypeVar("OW", bound=Callable[..., Coroutine[Any, Any, None]])

MARKS = "__millstream__"


class Declaration(msgspec.Struct, frozen=True, array_like=True):
    """What a mark on a grain's method tells every silo; only its `kind`'s owner reads the body."""

    kind: str
    body: bytes


class Mark:
    """A mark on a method. Other parts derive their own; runtime only asks four questions."""

    makes_local = False
    """True: the method is not callable through a reference (handlers, timers)."""

    @property
    def part(self) -> str:
        """Name of the part that a silo needs to host the method's class; empty: none."""
        return ""

    def define(self, owner: type, name: str, fn: Callable[..., Any]) -> None:
        """Check the marked method when `owner` is defined; raises DefinitionError."""

    def declare(self, grain_type: str, method: str) -> Declaration | None:
        """What the silos that do not host the grain type should know of the method, if anything."""
        return None


@dataclass(frozen=True, slots=True)
class Flag(Mark):
    """A mark without more to say: read_only, always_interleave, one_way, shielded."""

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
    """The role that a caller of a method needs; higher roles may call it, too."""

    role: Role

    def __str__(self) -> str:
        return f"`@open_to(Role.{self.role.name})`"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrainOptions:
    """What `@grain(...)` says of a class; `None` name: the class name."""

    name: str | None = None
    reentrant: bool = False
    placement: Placement = RANDOM
    idle_after: float | None = None
    direct: bool = True


def add_mark(fn: Any, mark: Mark) -> Any:
    """Put a mark on a function and return the function. Raises DefinitionError: it is none."""
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
    """Marks of the most derived definition of `name` that has any."""
    for base in cls.__mro__:
        raw = base.__dict__.get(name)
        # the marks may be on the function that a static or class method hides
        for fn in (raw, getattr(raw, "__func__", None)):
            found: list[Mark] | None = getattr(fn, MARKS, None)
            if found:
                return found
    return []


def role_of(cls: type, name: str) -> Role | None:
    """To whom a method is open, as the most derived definition that says so; None: none says so.

    An override that has other marks does not open what its base has closed.
    """
    for base in cls.__mro__:
        for mark in getattr(base.__dict__.get(name), MARKS, ()):
            if isinstance(mark, OpenTo):
                return mark.role
    return None


def read_only(method: AF, /) -> AF:
    """The method changes nothing: it may run beside other read-only methods of its grain."""
    add_mark(method, Flag("read_only"))
    return method


def always_interleave(method: AF, /) -> AF:
    """The method may start at any await point of any other turn of its grain."""
    add_mark(method, Flag("always_interleave"))
    return method


def one_way(method: OW, /) -> OW:
    """The caller continues once the request is on its way; errors are logged at the callee."""
    add_mark(method, Flag("one_way"))
    return method


def shielded(method: AF, /) -> AF:
    """Once started, the method runs to its end, whatever its caller does."""
    add_mark(method, Flag("shielded"))
    return method


def open_to(role: Role, /) -> Callable[[AF], AF]:
    """Open the method to callers outside of its silo that have this role or a higher one.

    Without this mark a method of a grain is open to every client; a method of a system target, or
    of a grain that a part of the silo brings, is open to silos only. Raises ConfigError.
    """
    if not isinstance(role, Role):
        raise ConfigError(f"open_to({show_text(repr(role))}): give a Role, such as Role.OPERATOR")

    def mark(method: AF) -> AF:
        add_mark(method, OpenTo(role))
        return method

    return mark


def isolated(method: AF, /) -> AF:
    """For Millstream's own grains: callers never keep what they pass, so it is not copied."""
    add_mark(method, Flag("isolated"))
    return method


def stopping(fn: SF, /) -> SF:
    """For parts' own grains: the method is called when the activation's end is asked for, so that
    turns which only wait can end. It is plain, private, and must not fail."""
    add_mark(fn, Flag("stopping"))
    return fn


def timeout(seconds: float, /) -> Callable[[AF], AF]:
    """Deadline of a method, in seconds, in place of `call_timeout_s`."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < math.inf:
        text = f"timeout({show_text(repr(seconds))}): write a positive, finite number of seconds"
        raise ConfigError(text)

    def mark(method: AF) -> AF:
        add_mark(method, Timeout(float(seconds)))
        return method

    return mark
