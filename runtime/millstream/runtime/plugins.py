"""Plug-ins by name: a text such as `sqlite:some/dir` becomes an object through an entry point.

This module owns the form `name[:argument]` and its errors. The groups of entry points are
`millstream.membership`, `millstream.stores`, `millstream.reminders`, `millstream.queues` and
`millstream.balancers`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

from .errors import ConfigError

__all__ = ["find_plugin", "load_plugin", "maker_of"]


def find_plugin(group: str, text: str) -> Callable[..., Any]:
    """Return the factory of the plug-in that a text names. ConfigError lists the installed ones."""
    from importlib.metadata import entry_points  # takes 13 ms; most programs need no plug-in

    name = text.partition(":")[0]
    found = {point.name: point for point in entry_points(group=group)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigError(
            f"{text!r}: no plug-in of the group {group} is named {name!r}; installed: {known}"
        )
    made: Callable[..., Any] = found[name].load()
    return made


def maker_of(group: str, text: str) -> Callable[[], Any]:
    """Return a function that makes the plug-in `name:argument` of a group.

    Raises ConfigError if there is no such plug-in, or if its argument is missing.
    """
    make = find_plugin(group, text)
    name, colon, argument = text.partition(":")
    if not colon and _needs_argument(make):
        raise ConfigError(f"{text!r}: {name!r} needs an argument: write {name}:argument")
    return partial(make, argument) if colon else make


def load_plugin(group: str, text: str) -> Any:
    """Make the plug-in that a text names. Errors of the plug-in itself reach the caller.

    Args:
        group: The group of entry points, such as `millstream.queues`.
        text: `name` or `name:argument`. The entry point `name` is called with the argument, or
            without arguments if the text has no colon.

    Returns:
        The object that the entry point made.

    Raises:
        ConfigError: No installed plug-in of the group has this name, or it needs an argument. The
            text lists the installed ones.
    """
    return maker_of(group, text)()


def _needs_argument(make: Callable[..., Any]) -> bool:
    try:
        signature(make).bind()
    except TypeError:
        return True
    except ValueError:  # the callable has no signature
        return False
    return False
