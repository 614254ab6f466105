"""Upgrades of stored states: the steps from the value of an earlier version to the present one.

Owns the mark of a step, the checks of a class's steps, and the chain of the steps of one state.
`state` applies a chain to the rows that it reads.

Invariants:

- A step takes the values of its version, and of the versions since the step before it.
- The result of each step has the type that the next step takes, and the last one that of the state.
- A value of a later version than that of the class is never decoded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from millstream.runtime.codec.codec import Codec, build_codec
from millstream.runtime.codec.types import resolve_hints, show_hint
from millstream.runtime.errors import DefinitionError, StateTooNew, StorageError
from millstream.runtime.text import show_text, show_value

from .markers import Mark
from .method import source_of
from .versions import FIRST_VERSION, VERSION_MAX

__all__ = ["NO_UPGRADES", "StateUpgrades", "UpgradeMark", "chain_of", "check_steps"]

WANTED = "@staticmethod above @upgrade(...) and `def {name}(old: Old) -> New`"


@dataclass(frozen=True, slots=True)
class UpgradeMark(Mark):
    """A step: a function that takes the value of a state as an earlier version stored it.

    Attributes:
        field: the `StateField`.
        from_version: the last version whose values the function takes.
    """

    field: Any
    from_version: int
    makes_local = True

    def __str__(self) -> str:
        return f"`@upgrade(from_version={self.from_version})`"

    def define(self, owner: type, name: str, fn: Callable[..., Any]) -> None:
        """Check the function. Raises DefinitionError."""
        raw: Any = fn
        inner: Any = raw.__func__ if isinstance(raw, staticmethod) else None
        is_plain = inspect.isfunction(inner) and not (
            inspect.iscoroutinefunction(inner)
            or inspect.isgeneratorfunction(inner)
            or inspect.isasyncgenfunction(inner)
        )
        if not is_plain or len(inspect.signature(inner).parameters) != 1:
            raise DefinitionError(
                f"{source_of(inner or raw)}: {owner.__name__}.{name}: {self} is for a plain "
                f"function of one value: write {WANTED.format(name=name)}"
            )


def check_from_version(where: str, given: object) -> None:
    """Raise DefinitionError if the number of a step is no version that a later one may follow."""
    is_number = isinstance(given, int) and not isinstance(given, bool)
    if not is_number or not FIRST_VERSION <= given < VERSION_MAX:  # type: ignore[operator]
        raise DefinitionError(
            f"{where}(from_version={show_value(given)}): write a whole number from "
            f"{FIRST_VERSION} to {VERSION_MAX - 1}"
        )


class UpgradeStep(NamedTuple):
    """A step whose annotations are resolved."""

    from_version: int
    label: str
    fn: Callable[[Any], Any]
    old: Codec[Any]


class StateUpgrades:
    """The version of a class, and the steps of one of its states.

    Args:
        version: the version of the class.
        steps: the steps, with rising versions.
    """

    __slots__ = ("_steps", "version")

    def __init__(self, version: int, steps: Sequence[UpgradeStep] = ()) -> None:
        self.version = version
        self._steps = steps

    def check(self, key: str, stored: int) -> None:
        """Raise StateTooNew if a later version has stored a value. `key` is that of the row."""
        if stored > self.version:
            raise StateTooNew(
                f"{show_text(key)} was stored by version {stored} of the grain type, and this silo "
                f"hosts version {self.version}: start silos with version {stored} or a later one",
                stored=stored,
                hosted=self.version,
            )

    def is_present(self, stored: int) -> bool:
        """Return whether a value of a version needs no step."""
        return not self._steps or stored > self._steps[-1].from_version

    def upgrade(self, key: str, data: bytes, stored: int, codec: Codec[Any], runtime: Any) -> Any:
        """Return the value of a state that an earlier version has stored.

        Args:
            key: the key of the row, for error texts.
            data: the encoded value.
            stored: the version that has stored it.
            codec: the codec of the state.
            runtime: the owner of references in the value.

        Raises:
            StorageError: A step failed, or its result is not of the state's type.
            TypeError: The value is not of the type that the first step takes.
            ValueError: As TypeError.
        """
        steps = [step for step in self._steps if step.from_version >= stored]
        if not steps:
            return codec.decode(data, runtime)
        step = steps[0]
        value = step.old.decode(data, runtime)
        try:
            for step in steps:
                value = step.fn(value)
            return codec.decode(codec.encode(value), runtime)  # nothing else refers to this object
        except (Exception, SystemExit) as error:
            raise StorageError(
                f"{show_text(key)}: {step.label} failed for a value of version {stored}: "
                f"{type(error).__name__}: {show_text(str(error))}; correct the function. The row "
                "is unchanged"
            ) from error


NO_UPGRADES = StateUpgrades(FIRST_VERSION)
"""The upgrades of a class of version 1."""


def check_steps(
    cls: type[Any],
    version: int,
    states: Mapping[str, Any],
    marks: Mapping[str, Sequence[Mark]],
) -> dict[str, list[tuple[UpgradeMark, str]]]:
    """Return the steps of each state, with rising versions, each with the name of its function.

    Raises DefinitionError for a step that is of another class's state, is there twice, or is not
    below the version of the class.
    """
    found: dict[str, list[tuple[UpgradeMark, str]]] = {name: [] for name in states}
    for name, of_name in marks.items():
        for mark in of_name:
            if isinstance(mark, UpgradeMark):
                where = f"{_where(cls, name)}: {mark}"
                attribute = next((one for one in states if states[one] is mark.field), "")
                if not attribute:
                    raise DefinitionError(
                        f"{where} is for a state that {cls.__name__} does not have: pass a state "
                        "of this class, such as `@upgrade(tally, from_version=1)`"
                    )
                if mark.from_version >= version:
                    raise DefinitionError(
                        f"{where}: the class has version {version}: write "
                        f"@grain(version={mark.from_version + 1}) or a higher version, or correct "
                        "from_version"
                    )
                found[attribute].append((mark, name))
    for attribute, steps in found.items():
        steps.sort(key=lambda one: one[0].from_version)
        for (mark, first), (other, second) in pairwise(steps):
            if mark.from_version == other.from_version:
                raise DefinitionError(
                    f"{_where(cls, second)}: {mark} of state `{attribute}` is there twice, as "
                    f"{first} and as {second}: remove one, or correct from_version"
                )
    return found


def chain_of(
    cls: type[Any],
    version: int,
    state: str,
    codec: Codec[Any],
    steps: Sequence[tuple[UpgradeMark, str]],
    localns: Mapping[str, Any],
) -> StateUpgrades:
    """Return the upgrades of one state.

    Raises DefinitionError if the types of the steps do not fit each other, and NameError if a name
    in an annotation is not defined yet.
    """
    made: list[UpgradeStep] = []
    wanted, needs = codec.hint, f"the type of state `{state}`"
    for mark, name in reversed(steps):
        fn = inspect.getattr_static(cls, name).__func__
        hints, where = resolve_hints(fn, localns, cls), _where(cls, name)
        parameter = next(iter(inspect.signature(fn).parameters))
        for needed in (parameter, "return"):
            if needed not in hints:
                raise DefinitionError(
                    f"{where}: {mark}: `{needed}` needs an annotation: write "
                    f"`def {name}(old: Old) -> New`"
                )
        result = build_codec(hints["return"], f"{where}: result").hint
        if result != wanted:
            raise DefinitionError(
                f"{where}: {mark} returns `{show_hint(result)}`, and {needs} is "
                f"`{show_hint(wanted)}`: annotate both with the same type, or add the step between "
                "them"
            )
        old = build_codec(hints[parameter], f"{where}: argument `{parameter}`")
        made.append(UpgradeStep(mark.from_version, f"{cls.__name__}.{name}", fn, old))
        wanted, needs = old.hint, f"the argument of {name}"
    return StateUpgrades(version, made[::-1])


def _where(cls: type[Any], name: str) -> str:
    raw: Any = inspect.getattr_static(cls, name)
    return f"{source_of(getattr(raw, '__func__', raw))}: {cls.__name__}.{name}"
