"""The checks of a silo's arguments, before anything is opened.

This module checks single arguments. The module `agreement` checks arguments that must fit together,
and `part` checks the form of a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from millstream.runtime.cluster.table import is_table
from millstream.runtime.definition.grain import Grain
from millstream.runtime.definition.storage import MemoryStateStore
from millstream.runtime.errors import ConfigError
from millstream.runtime.options import (
    MembershipOptions,
    PlacementOptions,
    Rebalancing,
    RuntimeOptions,
)
from millstream.runtime.text import is_text, show_text
from millstream.runtime.wire.address import Address

from .part import SiloPart, check_part

__all__ = [
    "check_grains",
    "check_kinds",
    "check_seams",
    "check_stores_of_grains",
    "check_table",
    "fill_options",
    "makers_of",
    "parts_of",
    "read_address",
    "stores_of",
]

DISK_METHODS = ("open", "create", "rename", "lock", "start_thread")
STORE_METHODS = ("read", "write", "clear", "scan")
TRANSPORT_METHODS = ("connect", "listen", "listen_probe", "probe")


def _refuse(name: str, value: object, wanted: str, of: str = "Silo") -> ConfigError:
    return ConfigError(f"{of}({name}=...) is {show_text(repr(value))}; it must be {wanted}")


def check_kinds(**arguments: tuple[object, type]) -> None:
    """Raise ConfigError for an argument of a wrong type, or text that is no UTF-8."""
    for name, (value, kind) in arguments.items():
        if not isinstance(value, kind):
            raise _refuse(name, value, f"a {kind.__name__}")
        if isinstance(value, str) and not is_text(value):
            raise _refuse(name, value, "text without a lone surrogate")


def check_stores_of_grains(grains: Iterable[type[Grain]], stores: Mapping[str, object]) -> None:
    """Raise ConfigError for a state whose store the silo does not have."""
    for cls in grains:
        grain_type = cls.__millstream_type__
        for name, field in grain_type.states.items():
            if field.store not in stores:
                raise ConfigError(
                    f"state {grain_type.name}.{name} needs store {field.store!r}; this silo has "
                    f"{', '.join(map(repr, stores)) or 'none'}: pass "
                    f"Silo(stores={{{field.store!r}: ...}}), or name another in state(store=...)"
                )


def check_table(table: object) -> None:
    """Raise ConfigError for an object that is no membership table."""
    if not is_table(table):
        raise _refuse("membership", table, "a MembershipTable, or name:argument")


class AllOptions(NamedTuple):
    """The options of a silo."""

    calls: RuntimeOptions
    membership: MembershipOptions
    placement: PlacementOptions
    rebalancing: Rebalancing | None


def fill_options(
    calls: RuntimeOptions | None,
    membership: MembershipOptions | None,
    placement: PlacementOptions | None,
    rebalancing: Rebalancing | None,
) -> AllOptions:
    """Return the options with defaults for those that are None. Raises ConfigError."""
    found = AllOptions(
        RuntimeOptions() if calls is None else calls,
        MembershipOptions() if membership is None else membership,
        PlacementOptions() if placement is None else placement,
        rebalancing,
    )
    check_kinds(
        options=(found.calls, RuntimeOptions),
        membership_options=(found.membership, MembershipOptions),
        placement_options=(found.placement, PlacementOptions),
    )
    if rebalancing is not None:
        check_kinds(rebalancing=(rebalancing, Rebalancing))
    return found


def check_seams(transport: object, disk: object) -> None:
    """Raise ConfigError for an object that is no transport, or no disk."""
    if not _has(transport, TRANSPORT_METHODS):
        raise _refuse("transport", transport, "a Transport")
    if not _has(disk, DISK_METHODS):
        raise _refuse("disk", disk, "a Disk")


def _has(value: object, methods: Iterable[str]) -> bool:
    """Return whether a value is an object, not a class, with all these methods."""
    return not isinstance(value, type) and all(
        callable(getattr(value, method, None)) for method in methods
    )


def check_grains(grains: Any, of: str = "Silo") -> list[type[Grain]]:
    """Return the classes that a silo hosts. ConfigError names the class that got them (`of`)."""
    if isinstance(grains, str | Mapping) or not hasattr(grains, "__iter__"):
        raise _refuse("grains", grains, "a list of Grain classes", of)
    found = list(grains)
    for cls in found:
        if not (isinstance(cls, type) and issubclass(cls, Grain)) or cls is Grain:
            raise ConfigError(f"{of}(grains=...): {cls!r} is not a Grain class")
    return found


def makers_of(of: str, **given: object) -> dict[str, Mapping[str, Any]]:
    """Return, for each argument, the functions that make a part for each silo, by name.

    `of` is the caller, for error texts. Raises ConfigError for a value that is not a function.
    """
    found = {option: _by_name(option, makers, of) for option, makers in given.items()}
    for makers in found.values():
        for name, make in makers.items():
            if not callable(make):
                raise ConfigError(
                    f"{of}: {name!r} must be a function that makes an object for each silo, and "
                    f"is a {type(make).__name__}: write a function that returns such an object"
                )
    return found


def read_address(option: str, text: object, of: str = "Silo") -> Address:
    """Return the address that an option gives. Raises ConfigError if it is not an address."""
    if not isinstance(text, str):
        raise _refuse(option, text, "host:port or [IPv6]:port", of)
    try:
        return Address.parse(text)
    except ValueError as error:
        raise ConfigError(f"{of}({option}=...): {error}") from None


def stores_of(stores: object, of: str = "Silo") -> Mapping[str, Any]:
    """Return the stores by name. A value is a store, or a text that names a plug-in.

    None stands for one store in memory. `of` is the caller, for error texts. Raises ConfigError for
    any other value.
    """
    if stores is None:
        return {"default": MemoryStateStore()}
    found = _by_name("stores", stores, of)
    for name, store in found.items():
        if not (isinstance(store, str) or _has(store, STORE_METHODS)):
            raise _refuse(
                "stores", {name: store}, "a StateStore, or name:argument, for each name", of
            )
    return found


def parts_of(streams: object, others: object) -> dict[str, SiloPart]:
    """Return all parts by name. ConfigError: two parts have one name, or an object is no part."""
    streams, others = _by_name("streams", streams), _by_name("parts", others)
    for name in streams.keys() & others.keys():
        raise ConfigError(f"Silo(streams=..., parts=...): both have a part named {name!r}")
    found = {**streams, **others}
    for name, part in found.items():
        check_part(name, part)
    return found


def _by_name(option: str, given: object, of: str = "Silo") -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _refuse(option, given, 'a dict by name, such as {"default": ...}', of)
    for name in given:
        if not isinstance(name, str) or not name or "/" in name or not is_text(name):
            text = "a dict by name; a name is a str without `/`, and not empty"
            raise _refuse(option, name, text, of)
    return given
