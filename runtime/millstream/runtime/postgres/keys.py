"""Keys and etags as PostgreSQL stores them. Pure.

Invariant: the order of keys as bytes is the order of their texts in Python.
"""

from __future__ import annotations

from millstream.runtime.errors import StorageError

__all__ = ["KEY_BYTES_MAX", "check_key", "etag_number", "key_range"]

KEY_BYTES_MAX = 2_500
"""The most bytes of a key. An entry of an index of PostgreSQL has at most 2,704."""
ETAG_DIGITS_MAX = 18


def check_key(what: str, *texts: str) -> tuple[bytes, ...]:
    """Return the parts of a key as bytes.

    Args:
        what: The key in the error, such as `the key`.
        texts: The parts.

    Raises:
        StorageError: The parts have more than KEY_BYTES_MAX bytes together.
    """
    parts = tuple(text.encode() for text in texts)
    size = sum(map(len, parts))
    if size > KEY_BYTES_MAX:
        raise StorageError(
            f"{what} has {size} bytes, and PostgreSQL indexes {KEY_BYTES_MAX}: use a shorter key"
        )
    return parts


def etag_number(etag: str) -> int:
    """Return the stored form of an etag; -1, which is never stored, for other text.

    Args:
        etag: The etag, as callers have it.
    """
    is_number = etag.isdecimal() and len(etag) <= ETAG_DIGITS_MAX
    number = int(etag) if is_number else -1
    return number if str(number) == etag else -1


def key_range(prefix: str, after: str) -> tuple[bytes, bytes, bytes | None]:
    """Return the bounds of a scan: keys from the first on, above the second, below the third.

    No byte of UTF-8 is 255, so a prefix with its last byte raised by one is above all its keys.
    The third bound is None for the empty prefix.

    Args:
        prefix: The beginning of the keys.
        after: Only keys after this one.
    """
    low = prefix.encode()
    high = low[:-1] + bytes([low[-1] + 1]) if low else None
    return low, after.encode(), high
