"""Headers: texts by name. The caller sets those of a call, and the running turn reads them.

This module owns the rules for headers and their limits. The package `wire` sends them. A result of
`merge_headers` can be sent, and no other code refers to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.runtime.errors import ConfigError
from millstream.runtime.text import check_text, show_text, text_bytes

__all__ = ["HEADERS_BYTES_MAX", "HEADERS_MAX", "check_headers", "merge_headers"]

HEADERS_MAX = 100
"""Headers of one call."""
HEADERS_BYTES_MAX = 65_536
"""Bytes of the names and texts of all headers of one call, in UTF-8."""


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
    `HEADERS_BYTES_MAX`.
    """
    copied = {**old, **new} if isinstance(new, Mapping) else new
    size = check_headers(copied)
    if len(copied) > HEADERS_MAX:
        raise ConfigError(f"a call has {len(copied)} headers: HEADERS_MAX is {HEADERS_MAX}")
    if size > HEADERS_BYTES_MAX:
        raise ConfigError(
            f"the headers of a call have {size} bytes: HEADERS_BYTES_MAX is {HEADERS_BYTES_MAX}; "
            "send large values as arguments"
        )
    return copied


def _check(what: str, text: str) -> None:
    if type(text) is not str or not text.isascii():
        check_text(what, text)
