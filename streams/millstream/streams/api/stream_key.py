"""Keys of grains that belong to streams: several texts in one.

Owns: joining and splitting. Invariant: different texts give different keys.
"""

from __future__ import annotations

__all__ = ["SEPARATOR", "join_key", "split_key"]

SEPARATOR, ESCAPE = "\x1f", "\x1b"


def join_key(*parts: str) -> str:
    """One key for several texts."""
    key = SEPARATOR.join(parts)
    if ESCAPE not in key and key.count(SEPARATOR) == len(parts) - 1:
        return key  # the usual case
    return SEPARATOR.join(map(_escape, parts))


def split_key(key: str) -> list[str]:
    """The texts that `join_key` was given."""
    return list(map(_unescape, key.split(SEPARATOR)))


def _escape(text: str) -> str:
    """Return a text in which separators are escaped."""
    return text.replace(ESCAPE, f"{ESCAPE}0").replace(SEPARATOR, f"{ESCAPE}1")


def _unescape(text: str) -> str:
    """The text that `_escape` was given."""
    return text.replace(f"{ESCAPE}1", SEPARATOR).replace(f"{ESCAPE}0", ESCAPE)
