"""References as arguments, results and fields. They are sent by name and rebuilt at the receiver.

This module owns the codec hook for contracts. A received reference belongs to the silo or client
that decodes it. A grain that passes `self` passes a reference to itself. Any other value that is no
reference is refused at the caller, also an object of an Observer class.
"""

from __future__ import annotations

from typing import Any

from millstream.runtime.codec.hooks import register_hook
from millstream.runtime.text import show_text

from .checks import is_root
from .grain import Contract, Grain, Home
from .names import OBSERVER_SIGN, parse_grain_id
from .observer import Observer
from .reference import Reference

__all__ = ["register_reference_hook"]


def is_contract_or_reference(cls: type) -> bool:
    """Return whether a class is a grain class, a contract or a reference class."""
    return issubclass(cls, Contract | Reference)


def encode_reference(value: Any) -> object:
    """Encode a reference, or a grain itself, as `Type/key`, with the names of its bases if it has
    any.
    """
    kind = type(value)
    if issubclass(kind, Reference):
        text, own = str(value), kind._ms_type
    else:
        home: Home | None = getattr(value, "_millstream", None)
        if home is None:
            raise TypeError(f"{kind.__name__}() is not a reference: {how_to_refer(kind)}")
        text, own = home.grain_id, kind.__millstream_type__
    name = parse_grain_id(text)[0]
    others = [other for other in (own.name, *own.base_names) if other != name]
    return [text, *others] if others else text


def how_to_refer(cls: type[Any]) -> str:
    """Return the advice for a caller that passes an object in place of a reference to it."""
    if issubclass(cls, Observer):
        return "pass `ref` of `async with client.observe(...) as ref`"
    return "pass the result of `grain(...)`"


def decode_reference(annotation: Any, plain: object, runtime: Any) -> object:
    """Build a reference of the annotated class, for the silo or client that decodes.

    The grain has the annotated type or a type that derives from it. If the annotation is Grain or
    Contract, the grain has any type.
    """
    parts: list[Any] = plain if isinstance(plain, list) else [plain]
    if not parts or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"{show_text(repr(plain))} is not a reference, Type/key")
    if runtime is None:
        raise TypeError("a reference can only be decoded in a silo or client")
    name, key = parse_grain_id(parts[0])
    if is_root(annotation):
        base = root_of(annotation, name)
        if base is None:
            what = "an observer" if annotation is Observer else "a grain"
            raise TypeError(f"expected a reference to {what}, got {show_text(repr(parts[0]))}")
        return runtime.grain_of(name, base, key)
    wanted = annotation.__millstream_type__.name
    if name == wanted:
        return runtime.grain(annotation, key)
    if wanted not in parts[1:]:
        raise TypeError(f"expected a reference to {wanted}, got {show_text(repr(parts[0]))}")
    return runtime.grain_of(name, annotation, key)


def root_of(annotation: Any, name: str) -> type[Contract] | None:
    """Return the root class of a received reference: `Observer` or `Grain`.

    `name` is the type name in the reference; the name of an observer type begins with `~`.
    `annotation` is `Contract`, `Grain` or `Observer`. Returns None if the annotation excludes the
    reference, such as `Observer` and the name of a grain type.
    """
    found = Observer if name.startswith(OBSERVER_SIGN) else Grain
    return found if annotation in (Contract, found) else None


def register_reference_hook() -> None:
    """Let annotations name contracts. Called once, when the runtime is imported."""
    register_hook(is_contract_or_reference, encode_reference, decode_reference, needs_context=True)


register_reference_hook()
