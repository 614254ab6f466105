"""What `Silo(...)` is given, checked before anything is opened.

Owns: the checks of single arguments, and their errors. Not: what goes together (`agreement`), the
form of a part (`part`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.runtime.definition.grain import Grain
from millstream.runtime.errors import ConfigError
from millstream.runtime.text import is_text, shown
from millstream.runtime.wire.address import Address

from .part import SiloPart, check_part

__all__ = ["check_grains", "check_kinds", "parts_of", "read_address", "stores_of"]

STORE_METHODS = ("read", "write", "clear", "scan")


def _refuse(name: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"Silo({name}=...) is {shown(repr(value))}; it must be {wanted}")


def check_kinds(**arguments: tuple[object, type]) -> None:
    """Raise ConfigError for an argument that is not of its type, or is text that is no UTF-8."""
    for name, (value, kind) in arguments.items():
        if not isinstance(value, kind):
            raise _refuse(name, value, f"a {kind.__name__}")
        if isinstance(value, str) and not is_text(value):
            raise _refuse(name, value, "text without a lone surrogate")


def check_grains(grains: object) -> list[type[Grain]]:
    """The classes that a silo hosts. Raises ConfigError."""
    if isinstance(grains, str | Mapping) or not hasattr(grains, "__iter__"):
        raise _refuse("grains", grains, "a list of Grain classes")
    found = list(grains)
    for cls in found:
        if not (isinstance(cls, type) and issubclass(cls, Grain)) or cls is Grain:
            raise ConfigError(f"Silo(grains=...): {cls!r} is not a Grain class")
    return found


def read_address(option: str, text: object) -> Address:
    """The address that an option gives. Raises ConfigError."""
    if not isinstance(text, str):
        raise _refuse(option, text, "host:port or [IPv6]:port")
    try:
        return Address.parse(text)
    except ValueError as error:
        raise ConfigError(f"Silo({option}=...): {error}") from None


def stores_of(stores: object) -> Mapping[str, Any]:
    """The stores by name, or texts that name plug-ins. Raises ConfigError."""
    found = _by_name("stores", stores)
    for name, store in found.items():
        is_store = all(callable(getattr(store, method, None)) for method in STORE_METHODS)
        if isinstance(store, type) or not (is_store or isinstance(store, str)):
            raise _refuse("stores", {name: store}, "a StateStore each, or name:argument")
    return found


def parts_of(streams: object, others: object) -> dict[str, SiloPart]:
    """All parts by name. Raises ConfigError: a name given twice, or what is no part."""
    streams, others = _by_name("streams", streams), _by_name("parts", others)
    for name in streams.keys() & others.keys():
        raise ConfigError(f"Silo(streams=..., parts=...): both have a part named {name!r}")
    found = {**streams, **others}
    for name, part in found.items():
        check_part(name, part)
    return found


def _by_name(option: str, given: object) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise _refuse(option, given, 'a dict by name, such as {"default": ...}')
    for name in given:
        if not isinstance(name, str) or not name or "/" in name or not is_text(name):
            raise _refuse(option, name, "a dict by name; a name is text without `/`, not empty")
    return given
