"""Hooks for types that msgspec does not know: conversion to plain values and back.

This module owns the hooks, and the one encoder of the process. Users add types with
`register_type`. The runtime adds references, and streams adds streams, with `register_hook`. Models
of pydantic are recognised by their attributes, so pydantic is never imported here.

Invariants:

- The newest hook that matches wins.
- A decoder that knows its `runtime` (a silo or client) serves one decode at a time. Silos, threads
  and nested decodes therefore never see each other's runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar, get_origin

import msgspec
import msgspec.inspect as mi

from millstream.runtime.errors import DefinitionError

__all__ = [
    "Hook",
    "RuntimeDecoder",
    "decode_hook",
    "encode_any",
    "find_hook",
    "plain_scalar",
    "register_hook",
    "register_type",
]

T = TypeVar("T")

LOOKUPS_MAX = 4096
"""Number of classes whose hook is cached."""


class Hook(msgspec.Struct, frozen=True):
    """One entry of the table of hooks.

    `only` is the one annotation that is admitted, or None to admit all matching classes. `exact`
    refuses instances of a subclass, because they would lose fields.
    """

    match: Callable[[type], bool]
    enc: Callable[[Any], object]
    dec: Callable[..., object]
    needs_context: bool
    only: type | None = None
    exact: bool = False

    def admits(self, annotation: type) -> bool:
        """Return True if the class may be written as an annotation."""
        return self.only is None or self.only is annotation


def register_hook(
    match: Callable[[type], bool],
    enc: Callable[[Any], object],
    dec: Callable[..., object],
    needs_context: bool = True,
) -> None:
    """Admit classes whose values belong to a silo or client, as streams do.

    Register the hook before the first codec of such a class is built. The newest hook that matches
    a class is used. The object that `dec` returns must be an instance of the annotated class, or
    decoding fails.

    Args:
        match: Returns whether the hook admits a class.
        enc: Called with a value. Returns a value that can be encoded, or raises TypeError with the
            reason.
        dec: Called with the whole annotation (`Stream[Flight]`), the result of `enc`, and the silo
            or client that decodes. Returns the value.
        needs_context: False calls `dec` without the silo or client.
    """
    _hooks.insert(0, Hook(match, enc, dec, needs_context))
    find_hook.cache_clear()


def register_type(cls: type[T], encode: Callable[[T], object], decode: Callable[[Any], T]) -> None:
    """Admit a class in arguments, results, state and stream items.

    ```python
    register_type(Path, str, Path)
    ```

    Register the class in every process, before it is used in an annotation. Without it, Millstream
    encodes these values: None, bool, int of 64 bits, float, str, bytes, `datetime`, `date`, `time`,
    `timedelta`, `Decimal`, `UUID`, enums, containers, dataclasses, `NamedTuple`, `TypedDict`, attrs
    classes, msgspec Structs, pydantic v2 models, unions, references and streams. It encodes them as
    MessagePack, by their annotations, and refuses other types when the class is defined.

    Instances of a subclass are encoded too, and arrive as `cls`. As an annotation, only `cls`
    itself is admitted. A subclass of dict, list, tuple or set is always encoded by its items,
    without a call of `encode`; `decode` gets the dict or list.

    Args:
        cls: The class.
        encode: Returns plain data for a value, or any other value that can be encoded.
        decode: Makes the value from the result of `encode`.

    Raises:
        DefinitionError: MessagePack carries the type without help.
    """
    if not isinstance(mi.type_info(cls), mi.CustomType):
        raise DefinitionError(f"`{cls.__qualname__}` already has an encoding; do not register it")
    hook = Hook(
        match=lambda candidate: issubclass(candidate, cls),
        enc=encode,
        dec=lambda _annotation, plain: decode(plain),
        needs_context=False,
        only=cls,
    )
    _hooks[:] = [hook, *(other for other in _hooks if other.only is not cls)]
    find_hook.cache_clear()


def _is_pydantic_model(cls: type) -> bool:
    return hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_validate")


def _dump_model(model: Any) -> object:
    # round_trip leaves out computed fields, which a strict model would refuse when decoding.
    return model.model_dump(mode="python", by_alias=False, round_trip=True)


def _load_model(annotation: Any, plain: object) -> object:
    return annotation.model_validate(plain, by_alias=False, by_name=True)


_hooks: list[Hook] = [
    Hook(_is_pydantic_model, _dump_model, _load_model, needs_context=False, exact=True)
]


@lru_cache(maxsize=LOOKUPS_MAX)
def find_hook(cls: type) -> Hook | None:
    """Return the newest hook that matches the class, or None. A hook for exactly this class has
    priority."""
    matching = [hook for hook in _hooks if hook.match(cls)]
    exact = [hook for hook in matching if hook.only is cls]
    return next(iter(exact or matching), None)


def plain_scalar(value: object) -> object:
    """Return the int, float, str or bytes in an enum member or an instance of a subclass of these.

    Raises TypeError for other values.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    raise TypeError(f"`{type(value).__qualname__}` has no encoding")


def _encode_hook(value: object) -> object:
    kind: Any = type(value)
    hook = find_hook(kind)
    return plain_scalar(value) if hook is None else hook.enc(value)


encode_any = msgspec.msgpack.Encoder(enc_hook=_encode_hook).encode
"""Encode any value that has an encoding as MessagePack, by its actual type."""


def _hook_of(annotation: Any) -> Hook:
    hook = find_hook(get_origin(annotation) or annotation)
    assert hook is not None, f"{annotation}: decoded without a hook"
    return hook


def decode_hook(annotation: Any, plain: object) -> object:
    """The `dec_hook` of msgspec for types whose hooks need no runtime."""
    return _hook_of(annotation).dec(annotation, plain)


class _Seat:
    """A decoder, and the runtime of the decode that uses it."""

    __slots__ = ("decode", "runtime")

    def __init__(self, hint: object) -> None:
        self.runtime: object = None
        decoder: msgspec.msgpack.Decoder[Any]
        decoder = msgspec.msgpack.Decoder(hint, dec_hook=self._decode_hook)
        self.decode = decoder.decode

    def _decode_hook(self, annotation: Any, plain: object) -> object:
        hook = _hook_of(annotation)
        if hook.needs_context:
            return hook.dec(annotation, plain, self.runtime)
        return hook.dec(annotation, plain)


class RuntimeDecoder:
    """A decoder whose hooks get the runtime for which they build values.

    msgspec fixes the hook when a decoder is built, so each running decode has a decoder of its own.
    There are as many decoders as decodes ever ran at the same time.
    """

    __slots__ = ("_hint", "_idle")

    def __init__(self, hint: object) -> None:
        self._hint = hint
        self._idle = [_Seat(hint)]

    def decode(self, data: Any, runtime: object) -> Any:
        """Decode for `runtime`. Raises the errors of msgspec."""
        try:
            seat = self._idle.pop()
        except IndexError:
            seat = _Seat(self._hint)
        seat.runtime = runtime
        try:
            return seat.decode(data)
        finally:
            seat.runtime = None
            self._idle.append(seat)
