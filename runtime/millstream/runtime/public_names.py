"""The names of Millstream's own classes for peers, stores and people: no module is part of them.

Owns: `type_name`, by which an exception type is sent and stored; `public_name`, by which a class is
shown; the repr of exported classes. Invariants: a class that moves to another module keeps both
names; classes of others are named by module and qualified name; `__module__` is never changed,
since `inspect.getsource` and `typing.get_type_hints` need it.
"""

from __future__ import annotations

import re
import sys

__all__ = ["OWN", "public_name", "publish", "type_name", "with_public_names"]

OWN = "millstream."
HEADING = re.compile(rf"^([ |]*)({re.escape(OWN)}[\w.]+\.)([A-Z]\w*)(?=:|$)", re.M)

_exported: dict[str, str] = {}
"""Public name by module and qualified name."""


def type_name(cls: type) -> str:
    """The name on the wire and in stores: `millstream.Overloaded`, or `shop.orders.SoldOut`."""
    if cls.__module__.startswith(OWN):
        return OWN + cls.__qualname__
    return _full_name(cls)


def public_name(cls: type) -> str:
    """The name for people: `millstream.runtime.Silo`, whatever module defines it."""
    name = _full_name(cls)
    return _exported.get(name, name)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def with_public_names(report: str) -> str:
    """A traceback whose headings name our exceptions as their packages export them, or as peers do.

    Other modules that are imported change nothing: the text is sent, and stored with dead letters.
    """
    return HEADING.sub(_public_heading, report)


def _public_heading(found: re.Match[str]) -> str:
    margin, module, name = found.groups()
    known = _exported.get(module + name, OWN + name)
    package = known.removesuffix(name)
    return margin + (known if module.startswith(package) else OWN + name)


def publish(module: str) -> None:
    """Show the classes of a module's `__all__` under its name; of two such names the shorter wins.

    Their instances have the public name in their repr if they have no repr of their own.
    """
    root = module.partition(".")[0] + "."
    for name in sys.modules[module].__all__:
        cls = getattr(sys.modules[module], name)
        if not isinstance(cls, type) or not cls.__module__.startswith(root):
            continue
        known, new = _full_name(cls), f"{module}.{name}"
        _exported[known] = min(_exported.get(known, new), new, key=len)
        shown: object = cls.__repr__
        if shown is object.__repr__ and not getattr(cls, "_is_protocol", False):
            cls.__repr__ = _repr  # type: ignore[method-assign, assignment]


def _repr(self: object) -> str:
    return f"<{public_name(type(self))} object at {id(self):#x}>"
