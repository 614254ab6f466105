"""The versions of grain types. Pure.

Owns the range of a version, and the rule of compatibility: a call that was made through version `n`
of a class may run in a silo that hosts version `n` or a later one. `cluster/placement.py` applies
the rule to the silos of a view.

Source: `[Version]` of Orleans, with its backward compatible strategy.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["FIRST_VERSION", "VERSION_MAX", "serves", "show_versions"]

FIRST_VERSION = 1
"""The version of a class without `@grain(version=...)`, and of rows without a version."""
VERSION_MAX = 65_535
"""The highest version of a grain type."""


def serves(hosted: int, wanted: int) -> bool:
    """Return whether a silo that hosts a version may run a call that wants a version."""
    return hosted >= wanted


def show_versions(versions: Iterable[int]) -> str:
    """Return versions as messages show them: `1, 2`."""
    return ", ".join(map(str, sorted(set(versions)))) or "none"
