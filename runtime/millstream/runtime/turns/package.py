"""The package of an activation that moves to another silo.

This module makes the package at the old silo and opens it at the new one. `catalog` decides when,
and `cluster/migrations` sends it.

Invariants:

- A package has all states of the grain, with their etags and positions of streams, or it is not
  made. The new activation therefore reads nothing from the store.
- A package goes only to a version of its grain type that is not earlier. A later one upgrades the
  states, and reads those that the earlier one did not have.
- A package that cannot be opened changes nothing that remains: the grain is made again, and starts
  from its store.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from millstream.runtime.definition.grain import states_of
from millstream.runtime.definition.state import MovedState
from millstream.runtime.definition.versions import FIRST_VERSION

from .activation import Activation
from .run import Turns

__all__ = ["Package", "open_package", "pack"]


class Package(msgspec.Struct, array_like=True, frozen=True):
    """The content of a package.

    Attributes:
        states: The states of the grain, by attribute.
        value: The encoded value of `on_dehydrate`; None if the class has no such hook.
        extensions: The encoded content of extensions, by name.
        version: The version of the grain type that made the package.
    """

    states: dict[str, MovedState]
    value: bytes | None
    extensions: dict[str, bytes]
    version: int = FIRST_VERSION


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Package).decode


def pack(activation: Activation) -> bytes:
    """Return the package of an activation in which no turn runs. Raises any error of its hooks."""
    hosted, grain = activation.kind.hosted, activation.grain
    assert hosted is not None
    states = {name: state.dehydrate() for name, state in states_of(grain).items()}
    extensions: dict[str, bytes] = {}
    for name, extension in activation.ensure_mailbox().extensions.items():
        if hasattr(extension, "dehydrate"):
            extensions[name] = extension.dehydrate()
    value = None if hosted.move_hooks is None else hosted.move_hooks.dehydrate(grain)
    return encode(Package(states, value, extensions, hosted.version))


def open_package(activation: Activation, turns: Turns, data: bytes) -> Collection[str]:
    """Give the content of a package to a new grain. Returns the states that came along.

    Raises any error of its hooks.
    """
    hosted, grain = activation.kind.hosted, activation.grain
    assert hosted is not None
    package = decode(data)
    states = states_of(grain)
    if package.version > hosted.version:
        raise ValueError(f"it is of version {package.version}, and the class of {hosted.version}")
    if package.version == hosted.version and states.keys() != package.states.keys():
        raise ValueError(f"it has the states {[*package.states]}, and the class {[*states]}")
    known = states.keys() & package.states.keys()
    for name in sorted(known):
        states[name].rehydrate(package.states[name])
    for name, content in package.extensions.items():
        if name in turns.extensions:
            extension: Any = turns.extension_of(activation, name)
            extension.rehydrate(content)
    if package.value is not None and hosted.move_hooks is not None:
        hosted.move_hooks.rehydrate(grain, package.value, activation.runtime)
    return known
