"""The exception types that a process may rebuild from the wire, by name (`type_name`).

`KnownErrors` collects the types once per silo or client. It knows builtins, Millstream's own
errors, and the errors that the modules of the registered grains define or import: directly, inside
a class, or in a module that they import.

Invariants:

- Only subclasses of Exception are known.
- Nothing is imported here.
- An unknown name from the wire never leads to code.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from types import ModuleType

from millstream.runtime.errors import MillstreamError
from millstream.runtime.public_names import OWN, type_name

__all__ = ["KnownErrors"]


class KnownErrors:
    """A table of exception types. Build it after all modules of the grains are imported."""

    __slots__ = ("_types",)

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._types: dict[str, type[Exception]] = {}
        for cls in (*_in_module(builtins), *_millstream_errors(MillstreamError)):
            self._add(cls)
        self.add(modules)

    def add(self, modules: Iterable[ModuleType]) -> None:
        """Add the errors of more modules."""
        for module in modules:
            for part in (module, *_find_imported(module)):
                for cls in _in_module(part):
                    self._add(cls)

    def _add(self, cls: type[Exception]) -> None:
        self._types.setdefault(type_name(cls), cls)

    def find(self, name: str) -> type[Exception] | None:
        """Return the type with this name, or None."""
        return self._types.get(name)

    def __len__(self) -> int:
        return len(self._types)

    def check(self) -> None:
        """Assert the invariants."""
        for name, cls in self._types.items():
            assert issubclass(cls, Exception), name
            assert type_name(cls) == name, name


def _find_imported(module: ModuleType) -> list[ModuleType]:
    return [value for value in vars(module).values() if isinstance(value, ModuleType)]


def _in_module(module: ModuleType) -> Iterator[type[Exception]]:
    for value in tuple(vars(module).values()):
        if not isinstance(value, type):
            continue
        if issubclass(value, Exception):
            yield value
        for inner in tuple(vars(value).values()):
            if isinstance(inner, type) and issubclass(inner, Exception):
                yield inner


def _millstream_errors(base: type[MillstreamError]) -> Iterator[type[Exception]]:
    yield base
    for cls in base.__subclasses__():
        if cls.__module__.startswith(OWN):
            yield from _millstream_errors(cls)
