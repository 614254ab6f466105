"""Detection of programs that start silos when they are imported.

This module knows whether this process is importing the module of its factory. A child imports the
module that its parent names. If that module is a program without `if __name__ == "__main__":`, the
child would run the program, which would start children, and so on without end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.runtime.errors import ConfigError

__all__ = ["importing", "refuse_while_importing"]

_importing: list[str] = []


@contextmanager
def importing(factory: str) -> Iterator[None]:
    """While open, no silo and no cluster can be started in this process."""
    _importing.append(factory)
    try:
        yield
    finally:
        _importing.pop()


def refuse_while_importing(what: str) -> None:
    """Raise ConfigError if a module is being imported for its factory."""
    if _importing:
        module = _importing[-1].partition(":")[0]
        raise ConfigError(
            f"importing {module!r} starts {what}, but this process imports it only to call"
            f" {_importing[-1]}: in that module, move the code of the program under"
            ' `if __name__ == "__main__":`'
        )
