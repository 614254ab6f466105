"""Arguments and attributes of exceptions as MessagePack that preserves their types.

These values have no annotations. Values for which MessagePack has no form (tuple, set, Decimal,
UUID, times) are therefore sent as extension 1: `[name, plain form]`. All other values are refused,
and the error is sent without them.

`unpack` turns the result of `pack` into an equal value of the same types, with two exceptions. An
enum member, or an instance of a subclass of int, float, str or bytes, arrives as the plain value.
Long texts are cut.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec

from millstream.runtime.text import is_text

from .hooks import plain_scalar

__all__ = ["NAMED_VALUE", "TEXT_CHARS_MAX", "VALUE_BYTES_MAX", "cut", "pack", "unpack"]

TEXT_CHARS_MAX = 16_384
"""The most characters of a message, note or traceback, and of a text inside an error.

For bytes it is the most bytes. The beginning of a longer value is cut.
"""
VALUE_BYTES_MAX = 131_072
"""The most bytes of an error's arguments together, and of each attribute.

Larger ones are not sent.
"""

NAMED_VALUE = 1
"""The MessagePack extension code of `[name, plain form]`."""


def _list(values: Any) -> list[object]:
    return [_plain(value) for value in values]


# name on the wire -> (type, conversion to the plain form, conversion back)
_KINDS: dict[str, tuple[type, Callable[[Any], object], Callable[[Any], object]]] = {
    "tuple": (tuple, _list, tuple),
    "set": (set, _list, set),
    "frozenset": (frozenset, _list, frozenset),
    "datetime": (dt.datetime, dt.datetime.isoformat, dt.datetime.fromisoformat),
    "date": (dt.date, dt.date.isoformat, dt.date.fromisoformat),
    "time": (dt.time, dt.time.isoformat, dt.time.fromisoformat),
    "timedelta": (
        dt.timedelta,
        lambda span: [span.days, span.seconds, span.microseconds],
        lambda parts: dt.timedelta(*parts),
    ),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
    "int": (int, str, int),
    "str": (
        str,
        lambda text: text.encode("utf-8", "surrogatepass"),
        lambda raw: raw.decode("utf-8", "surrogatepass"),
    ),
}
_NAMES = {kind: name for name, (kind, _to, _back) in _KINDS.items()}


def pack(value: object) -> bytes:
    """Return one value as MessagePack, with long texts and bytes cut.

    Raises ValueError beyond `VALUE_BYTES_MAX`, and TypeError or another error for a value that
    cannot be sent.
    """
    packed = msgspec.msgpack.encode(_plain(value))
    if len(packed) > VALUE_BYTES_MAX:
        raise ValueError(f"a value has {len(packed)} bytes: VALUE_BYTES_MAX is {VALUE_BYTES_MAX}")
    return packed


def cut(text: str) -> str:
    """Return a text, or `...` and its last `TEXT_CHARS_MAX` characters if it is longer."""
    return text if len(text) <= TEXT_CHARS_MAX else f"...{text[-TEXT_CHARS_MAX:]}"


def unpack(data: msgspec.Raw | bytes) -> Any:
    """Return the value that was packed. Raises DecodeError or ValueError for other bytes."""
    return _decoder.decode(data)


def _plain(value: Any) -> object:
    kind = type(value)
    if kind in (NoneType, bool, float):
        return value
    if kind is bytes:
        return value if len(value) <= TEXT_CHARS_MAX else b"..." + value[-TEXT_CHARS_MAX:]
    if kind is str:
        value = cut(value)
    if kind is list:
        return _list(value)
    if kind is dict:
        return {_key(key): _plain(item) for key, item in value.items()}
    if (kind is int and -(2**63) <= value < 2**64) or (kind is str and is_text(value)):
        return value
    name = _NAMES.get(kind)
    if name is None:
        return _plain(plain_scalar(value))
    return msgspec.msgpack.Ext(NAMED_VALUE, msgspec.msgpack.encode([name, _KINDS[name][1](value)]))


def _key(key: object) -> object:
    plain = _plain(key)
    if not isinstance(plain, (str, int, float, bytes, NoneType)):
        raise TypeError(f"`{type(key).__qualname__}` cannot be a key in an error")
    return plain


def _build_named(code: int, data: memoryview) -> object:
    if code != NAMED_VALUE:
        raise ValueError(f"unknown extension {code} in an error")
    name, plain = _decoder.decode(data)
    return _KINDS[name][2](plain)


_decoder = msgspec.msgpack.Decoder(ext_hook=_build_named)
