"""The versions of grain types. Pure.

Owns the range of a version, and the rule of compatibility: a call that was made through version `n`
of a class may run in a silo that hosts version `n` or a later one. `cluster/placement.py` applies
the rule to the silos of a view.

Source: `[Version]` of Orleans, with its backward compatible strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = [
    "FIRST_VERSION",
    "VERSION_MAX",
    "HostedVersions",
    "find_version",
    "select_serving",
    "serves",
    "show_versions",
]

HostedVersions = Sequence[tuple[str, int]]
"""The grain types of a silo whose version is above 1, with their versions."""

FIRST_VERSION = 1
"""The version of a class without `@grain(version=...)`, and of rows without a version."""
VERSION_MAX = 65_535
"""The highest version of a grain type."""


def serves(hosted: int, wanted: int) -> bool:
    """Return whether a silo that hosts a version may run a call that wants a version."""
    return hosted >= wanted


def find_version(versions: HostedVersions, name: str) -> int:
    """Return the version of a grain type that a silo hosts, by the versions in its row."""
    return dict(versions).get(name, FIRST_VERSION)


def select_serving(silos: Iterable[tuple[str, int]], wanted: int) -> list[str]:
    """Return the silos that may run a call that wants a version, in their order.

    Args:
        silos: the silos that host the type, each with the version that it hosts.
        wanted: the version.
    """
    return [silo for silo, hosted in silos if serves(hosted, wanted)]


def show_versions(versions: Iterable[int]) -> str:
    """Return versions as messages show them: `1, 2`."""
    return ", ".join(map(str, sorted(set(versions)))) or "none"
