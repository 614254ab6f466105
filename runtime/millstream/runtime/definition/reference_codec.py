"""References as arguments, results and fields: sent as `Type/key`, rebuilt where they arrive.

Owns: the codec hook for contracts. Invariants: what arrives belongs to the silo or client that
decodes it; a grain that passes `self` passes a reference to itself; anything else that is not a
reference is refused at the caller.
"""

from __future__ import annotations

from typing import Any

from millstream.runtime.codec.hooks import register_hook

from .grain import Contract, Home
from .names import parse_grain_id
from .reference import Reference

__all__ = ["register_reference_hook"]


def is_contract_or_reference(cls: type) -> bool:
    """Classes of grains, contracts and references."""
    return issubclass(cls, Contract | Reference)


def encode_reference(value: Any) -> str:
    """`Type/key` of a reference, or of a grain itself."""
    if issubclass(type(value), Reference):
        return str(value)
    home: Home | None = getattr(value, "_millstream", None)
    if home is None:
        raise TypeError(f"{type(value).__name__}() is not a reference: pass what `grain(...)` gave")
    return home.grain_id


def decode_reference(annotation: Any, plain: object, host: Any) -> object:
    """A reference of the annotated class, at the host that decodes."""
    if not isinstance(plain, str):
        raise TypeError(f"{plain!r} is not a reference: Type/key")
    if host is None:
        raise TypeError("a reference can only be decoded in a silo or client")
    name, key = parse_grain_id(plain)
    wanted = annotation.__millstream_type__.name
    if name != wanted:
        raise TypeError(f"expected a reference to {wanted}, got {plain!r}")
    return host.grain(annotation, key)


def register_reference_hook() -> None:
    """Let annotations name contracts; called once, when the runtime is imported."""
    register_hook(is_contract_or_reference, encode_reference, decode_reference, needs_context=True)


register_reference_hook()
