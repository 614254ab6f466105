"""Plug-ins by name: `sqlite:some/dir` becomes an object through an entry point.

Owns: the form `name[:argument]` and its errors. Groups: `millstream.membership`,
`millstream.stores`, `millstream.queues`, `millstream.balancers`.
"""

from __future__ import annotations

from typing import Any

from .errors import ConfigError

__all__ = ["load_plugin"]


def load_plugin(group: str, text: str) -> Any:
    """Make the plug-in `name:argument` of a group; raises ConfigError naming what there is."""
    from importlib.metadata import entry_points  # 13 ms, which most programs need not pay

    name, colon, argument = text.partition(":")
    found = {point.name: point for point in entry_points(group=group)}
    if name not in found:
        known = ", ".join(sorted(found)) or "nothing"
        raise ConfigError(f"{text!r}: no {group} plug-in is named {name!r}; installed: {known}")
    made = found[name].load()
    return made(argument) if colon else made()
