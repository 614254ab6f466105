"""Comparison of a plug-in object with its Protocol when a silo starts.

Owns: `require_shape`, `capabilities_of`. Invariant: one error names everything that is wrong, so
that an author without a type checker can correct it in one pass. Cost: only at start.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, Protocol

from millstream.runtime import ConfigError

from .capability import Capability, contradiction

__all__ = ["capabilities_of", "require_shape"]


class Declares(Protocol):
    """An object that declares capabilities."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...


def require_shape(obj: object, protocol: type[Any], what: str) -> None:
    """Raise ConfigError that names every member of `protocol` that is missing or wrong in `obj`."""
    wrong = [
        text
        for name, wanted in vars(protocol).items()
        if not name.startswith("_") and (text := _compare(obj, name, wanted))
    ]
    if wrong:
        raise ConfigError(
            f"{what}: {type(obj).__name__} is not a {protocol.__name__}: {'; '.join(wrong)}"
        )


def _compare(obj: object, name: str, wanted: Any) -> str:
    found = getattr(obj, name, None)
    if isinstance(wanted, property):
        return "" if hasattr(obj, name) else f"no `{name}`"
    if not inspect.isfunction(wanted):
        return ""
    if found is None:
        return f"no `{name}`"
    if not callable(found):
        return f"`{name}` is not a method"
    if inspect.iscoroutinefunction(wanted) is not inspect.iscoroutinefunction(found):
        return f"`{name}` is {'not ' if inspect.iscoroutinefunction(wanted) else ''}async"
    return _compare_arguments(name, found, wanted)


def _compare_arguments(name: str, found: Any, wanted: Any) -> str:
    parameters = list(inspect.signature(wanted).parameters.values())[1:]
    given = [None for p in parameters if p.kind is not p.KEYWORD_ONLY]
    required = [None for p in parameters if p.default is p.empty]
    try:
        signature = inspect.signature(found)
        signature.bind(*given)
        signature.bind(*required)
    except TypeError as error:
        return f"`{name}`: {error}"
    except ValueError:
        return ""  # a builtin without a signature
    return ""


def capabilities_of(queues: Declares, what: str) -> frozenset[Capability]:
    """The capabilities that a factory declares, or an adapter that a function opened.

    Raises ConfigError: the value is no set of capabilities, or they cannot go together.
    """
    declared: Any = queues.capabilities
    if isinstance(declared, Collection) and not isinstance(declared, str):
        found = [one for one in declared if isinstance(one, Capability)]
        if len(found) == len(declared):
            if text := contradiction(found):
                raise ConfigError(f"{what}: {type(queues).__name__}.capabilities: {text}")
            return frozenset(found)
    raise ConfigError(
        f"{what}: {type(queues).__name__}.capabilities is {declared!r}: "
        "write frozenset({Capability.ORDERED, ...})"
    )
