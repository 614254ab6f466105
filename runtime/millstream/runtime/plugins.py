"""Plug-ins by name: `sqlite:some/dir` becomes an object through an entry point.

Owns: the form `name[:argument]` and its errors. Groups: `millstream.membership`,
`millstream.stores`, `millstream.queues`, `millstream.balancers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

from .errors import ConfigError

__all__ = ["find_plugin", "load_plugin", "maker_of"]


def find_plugin(group: str, text: str) -> Callable[..., Any]:
    """What makes the plug-in `name:argument` of a group; ConfigError names what there is."""
    from importlib.metadata import entry_points  # 13 ms, which most programs need not pay

    name = text.partition(":")[0]
    found = {point.name: point for point in entry_points(group=group)}
    if name not in found:
        known = ", ".join(sorted(found)) or "nothing"
        raise ConfigError(f"{text!r}: no {group} plug-in is named {name!r}; installed: {known}")
    made: Callable[..., Any] = found[name].load()
    return made


def maker_of(group: str, text: str) -> Callable[[], Any]:
    """A function that makes the plug-in `name:argument` of a group. Raises ConfigError."""
    make = find_plugin(group, text)
    name, colon, argument = text.partition(":")
    if not colon and _needs_argument(make):
        raise ConfigError(f"{text!r}: {name!r} needs an argument: write {name}:argument")
    return partial(make, argument) if colon else make


def load_plugin(group: str, text: str) -> Any:
    """Make the plug-in `name:argument` of a group. Raises ConfigError, and what it raises."""
    return maker_of(group, text)()


def _needs_argument(make: Callable[..., Any]) -> bool:
    try:
        signature(make).bind()
    except TypeError:
        return True
    except ValueError:  # it tells nothing of its arguments
        return False
    return False
