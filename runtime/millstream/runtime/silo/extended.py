"""A grain as one of its extensions sees it.

This module owns `ExtendedGrain`, and finds the extension of a grain. An extension lives and ends
with the activation that it extends.
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
    """The activation that an extension extends. The class of an extension is called with it.

    `str()` of it is `kind/key`.
    """

    __slots__ = ("_activation",)

    def __init__(self, activation: Activation) -> None:
        self._activation = activation

    def __str__(self) -> str:
        return str(self._activation)

    @property
    def grain(self) -> Any:
        """The grain itself; None once the activation has ended."""
        return self._activation.grain

    @property
    def key(self) -> str:
        """The key of the grain."""
        return self._activation.key

    @property
    def kind(self) -> str:
        """The name of the grain type."""
        return self._activation.kind.name

    @property
    def runtime(self) -> object:
        """The silo for codecs: pass it to `Codec.decode` and `Codec.isolate`."""
        return self._activation.runtime

    def part(self, name: str, /) -> Any:
        """Return a part of the silo.

        Args:
            name: The name, as in `Silo(streams=..., parts=...)`.

        Raises:
            ConfigError: There is no such part.
        """
        opener: Any = self._activation.runtime  # the inside of the silo
        return opener.part(name)

    @property
    def is_gone(self) -> bool:
        """Whether the activation has ended."""
        return self._activation.is_gone

    @property
    def states(self) -> list[State[Any]]:
        """The states of the grain; empty once the activation has ended."""
        hosted, grain = self._activation.kind.hosted, self._activation.grain
        if hosted is None or grain is None:
            return []
        return [getattr(grain, name) for name in hosted.states]

    def marks(self, method: str) -> Sequence[Mark]:
        """Return the marks of a method of the grain.

        Args:
            method: The name of the method.
        """
        hosted = self._activation.kind.hosted
        return () if hosted is None else hosted.marks.get(method, ())


def activation_of(grain: object) -> Activation | None:
    """Return the activation of a grain that has not ended, else None."""
    activation: Activation | None = getattr(grain, "_millstream", None)
    return None if activation is None or activation.is_gone else activation


def is_grain(obj: object, /) -> bool:
    """Return whether an object is a grain that a silo hosts.

    False for a reference and for an object that a program made by calling the class.

    Args:
        obj: Any object.
    """
    return hasattr(obj, "_millstream")


def extension_of(grain: Grain, name: str, /) -> Any:
    """Return an extension of a grain.

    Args:
        grain: The grain itself, not a reference.
        name: The name of the extension.

    Returns:
        The extension. None if the activation has ended, or its silo has no such extension.
    """
    return extension_at(activation_of(grain), name)


def extension_at(home: object, name: str, /) -> Any:
    """Return an extension of the grain that lives at a home.

    Args:
        home: The home of the grain, as `Acknowledgeable.acknowledge_at` gets it.
        name: The name of the extension.

    Returns:
        The extension. None if the activation has ended, or its silo has no such extension.
    """
    if not isinstance(home, Activation) or home.is_gone:
        return None
    return home.owner.extension_of(home, name)
