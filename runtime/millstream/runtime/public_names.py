"""The names of Millstream's own classes for peers, stores and people. They contain no module.

This module owns `type_name`, under which an exception type is sent and stored, and `public_name`,
under which a class is shown. It also gives exported classes their `repr`. A class that moves to
another module keeps both names. Classes of other packages are named by module and qualified name.
`__module__` never changes, because `inspect.getsource` and `typing.get_type_hints` need it.
"""

from __future__ import annotations

import re
import sys

__all__ = ["OWN", "public_name", "publish", "type_name", "with_public_names"]

OWN = "millstream."
HEADING = re.compile(rf"^([ |]*)({re.escape(OWN)}[\w.]+\.)([A-Z]\w*)(?=:|$)", re.M)

_exported: dict[str, str] = {}
"""The public name of each exported class, by module and qualified name."""


def type_name(cls: type) -> str:
    """Return the name of an exception type on the wire and in stores.

    Args:
        cls: The exception type.

    Returns:
        `millstream.Overloaded` for a type of Millstream, whatever module defines it. Module and
            qualified name for any other type, such as `shop.orders.SoldOut`.
    """
    if cls.__module__.startswith(OWN):
        return OWN + cls.__qualname__
    return _full_name(cls)


def public_name(cls: type) -> str:
    """Return the name of a class for people, such as `millstream.runtime.Silo`."""
    name = _full_name(cls)
    return _exported.get(name, name)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def with_public_names(report: str) -> str:
    """Return a traceback whose headings use the public names of Millstream's exceptions.

    The result does not depend on which other modules are imported, because the text is sent to
    peers and stored with dead letters.
    """
    return HEADING.sub(_public_heading, report)


def _public_heading(found: re.Match[str]) -> str:
    margin, module, name = found.groups()
    known = _exported.get(module + name, OWN + name)
    package = known.removesuffix(name)
    return margin + (known if module.startswith(package) else OWN + name)


def publish(module: str) -> None:
    """Show the classes in a package's `__all__` under the package's name.

    Call it at the end of the package's `__init__`: `publish(__name__)`. Instances of these classes
    get a `repr` with the public name, unless their class has a `repr` of its own. If two packages
    export one class, the shorter name is shown.

    Args:
        module: The name of the package. It must be imported, and must have `__all__`.
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
