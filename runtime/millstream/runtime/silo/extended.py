"""A grain as one of its extensions sees it.

Owns: `ExtendedGrain`, and finding the extension of a grain. Invariant: an extension lives and ends
with the activation that it extends; what has ended has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.runtime.definition.grain import Grain
from millstream.runtime.definition.markers import Mark
from millstream.runtime.definition.state import State
from millstream.runtime.turns.activation import Activation

__all__ = ["ExtendedGrain", "activation_of", "extension_at", "extension_of", "is_grain"]


class ExtendedGrain:
    """The activation that an extension extends."""

    __slots__ = ("_activation",)

    def __init__(self, activation: Activation) -> None:
        self._activation = activation

    def __str__(self) -> str:
        return str(self._activation)

    @property
    def grain(self) -> Any:
        """The grain itself; None once it has ended."""
        return self._activation.grain

    @property
    def key(self) -> str:
        """Its key."""
        return self._activation.key

    @property
    def kind(self) -> str:
        """Name of its grain type."""
        return self._activation.kind.name

    @property
    def runtime(self) -> object:
        """What codecs decode references and streams for."""
        return self._activation.runtime

    def part(self, name: str, /) -> Any:
        """The silo's part of a name. Raises ConfigError."""
        opener: Any = self._activation.runtime  # the inside of the silo
        return opener.part(name)

    @property
    def is_gone(self) -> bool:
        """Has it ended?"""
        return self._activation.is_gone

    @property
    def states(self) -> list[State[Any]]:
        """Its states; none once it has ended."""
        hosted, grain = self._activation.kind.hosted, self._activation.grain
        if hosted is None or grain is None:
            return []
        return [getattr(grain, name) for name in hosted.states]

    def marks(self, method: str) -> Sequence[Mark]:
        """The marks of one of its methods."""
        hosted = self._activation.kind.hosted
        return () if hosted is None else hosted.marks.get(method, ())


def activation_of(grain: object) -> Activation | None:
    """The activation of a grain that has not ended, else None."""
    activation: Activation | None = getattr(grain, "_millstream", None)
    return None if activation is None or activation.is_gone else activation


def is_grain(obj: object, /) -> bool:
    """Is it a grain that a silo hosts: no reference, not made by hand, and not ended?"""
    return hasattr(obj, "_millstream")


def extension_of(grain: Grain, name: str, /) -> Any:
    """A grain's extension; None where the grain has ended, or its silo has no such extension."""
    return extension_at(activation_of(grain), name)


def extension_at(home: object, name: str, /) -> Any:
    """The extension of the grain that lives there (a `Home`); None as for `extension_of`."""
    if not isinstance(home, Activation) or home.is_gone:
        return None
    return home.owner.extension_of(home, name)
