"""Headers: texts by name. The caller sets those of a call, and the running turn reads them.

This module owns the rules for headers and their limits. The package `wire` sends them. A result of
`merge_headers` can be sent, and no other code refers to it.

A call has headers of its own, which end at its callee, and flowing headers, which the callee's own
calls carry on. Names that begin with `millstream.` are the runtime's own; grains do not see them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.runtime.errors import ConfigError
from millstream.runtime.text import check_text, show_text, text_bytes

__all__ = [
    "CLIENT",
    "HEADERS_BYTES_MAX",
    "HEADERS_MAX",
    "SECTIONS",
    "HeaderSet",
    "check_headers",
    "check_size",
    "merge_headers",
    "show_headers",
    "stamp_client",
]

HEADERS_MAX = 100
"""Headers of one call, flowing ones included."""
HEADERS_BYTES_MAX = 65_536
"""Bytes of the names and texts of all headers of one call, in UTF-8."""
RESERVED = "millstream."
CLIENT = "millstream.client"
"""The flowing header with the name in the certificate of the client that began a chain of calls."""
SECTIONS = "millstream.sections"
"""The flowing header with the ids of the open sections of call-chain reentrancy."""


class HeaderSet(msgspec.Struct, frozen=True):
    """The headers of one call.

    Attributes:
        own: The headers that only the callee sees.
        flowing: The headers that the callee's calls carry on. None: those of the calling turn.
    """

    own: dict[str, str]
    flowing: dict[str, str] | None = None


def check_headers(headers: Mapping[str, str]) -> int:
    """Check that headers can be sent.

    Args:
        headers: Texts by name.

    Returns:
        The size of names and texts in UTF-8, in bytes.

    Raises:
        TypeError: `headers` is no mapping, or a name or text is no `str` or cannot be encoded as
            UTF-8.
    """
    if not isinstance(headers, Mapping):
        raise TypeError(
            f"headers={show_text(repr(headers))} is not a mapping: pass {{'name': 'text'}}"
        )
    for name, text in headers.items():
        _check("the name of a header", name)
        _check("the text of a header", text)
    return text_bytes(headers) + text_bytes(headers.values())


def merge_headers(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of `old`, updated with `new`, that can be sent.

    Raises TypeError like `check_headers`, and ConfigError above `HEADERS_MAX` or
    `HEADERS_BYTES_MAX`, and for a new name that is reserved.
    """
    if isinstance(new, Mapping):
        for name in new:
            if isinstance(name, str) and name.startswith(RESERVED):
                raise ConfigError(
                    f"the header {show_text(name)} has a reserved name: choose a name that does "
                    f"not begin with {RESERVED!r}"
                )
    copied = {**old, **new} if isinstance(new, Mapping) else new
    check_headers(copied)
    check_size(copied)
    return copied


def check_size(*parts: Mapping[str, str] | None) -> None:
    """Raise ConfigError if the headers of a call exceed a limit."""
    given = [part for part in parts if part]
    count = sum(map(len, given))
    if count > HEADERS_MAX:
        raise ConfigError(f"a call has {count} headers: HEADERS_MAX is {HEADERS_MAX}")
    size = sum(text_bytes(part) + text_bytes(part.values()) for part in given)
    if size > HEADERS_BYTES_MAX:
        raise ConfigError(
            f"the headers of a call have {size} bytes: HEADERS_BYTES_MAX is {HEADERS_BYTES_MAX}; "
            "send large values as arguments"
        )


def stamp_client(flowing: dict[str, str] | None, name: str) -> dict[str, str] | None:
    """Return the flowing headers of a client's call, with the name of the client.

    Args:
        flowing: The headers as they were received. A name in them is replaced or removed.
        name: The name in the client's certificate. Empty: it has none.
    """
    if name:
        return {**(flowing or {}), CLIENT: name}
    if flowing and CLIENT in flowing:
        return {header: text for header, text in flowing.items() if header != CLIENT}
    return flowing


def show_headers(headers: HeaderSet) -> dict[str, str]:
    """Return the headers that grains and filters see. Of two with one name, `own` counts."""
    all_of_them = {**(headers.flowing or {}), **headers.own}
    return {name: text for name, text in all_of_them.items() if not name.startswith(RESERVED)}


def _check(what: str, text: str) -> None:
    if type(text) is not str or not text.isascii():
        check_text(what, text)
