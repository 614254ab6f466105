"""Stored rows with a checksum, so that damage is found when they are read.

This module owns the form of such rows, and does no I/O. The owner of the rows decides which rows
are sealed, and compares their versions. The checksum is XXH3 (docs/decisions/0013). It covers the
key and every byte. So a row that was damaged, cut off, or stored under another key is never opened.

    0  magic "MSrw" | generation u64 | birth u64 | check u64, XXH3-64 of the key's length u32, the
       key, the 20 bytes before the check, and the content
    28 content

All integers are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple, TypeVar

from msgspec import MsgspecError
from xxhash import xxh3_64

from .errors import Corrupt
from .text import show_text

__all__ = ["SEAL_BYTES", "Sealed", "open_row", "seal", "seal_content", "unseal"]

C = TypeVar("C")

MAGIC = b"MSrw"
FRONT = Struct("<4sQQ")
CHECK = Struct("<Q")
LENGTH = Struct("<I")
SEAL_BYTES = FRONT.size + CHECK.size
"""Bytes that sealing adds to the content of a row."""


class Sealed(NamedTuple):
    """The content of a row in one version.

    Attributes:
        generation: How many times the row was written since its creation. The first version is 1.
        birth: A number that distinguishes this creation of the row from all others of the same key.
        content: The content, in the form of the row's owner.
    """

    generation: int
    birth: int
    content: bytes


def seal(key: str, row: Sealed) -> bytes:
    """Seal one version of a row.

    Args:
        key: The key of the row. `unseal` accepts the bytes under this key only.
        row: The content and its version.

    Returns:
        The bytes to store: the content and 28 bytes more.
    """
    front = FRONT.pack(MAGIC, row.generation, row.birth)
    return b"".join((front, CHECK.pack(check_of(key, front, row.content)), row.content))


def seal_content(key: str, content: bytes) -> bytes:
    """Seal the content of a row whose owner does not compare its generation or birth.

    The seal is a checksum: it does not encrypt. `seal` also stores a generation and a birth.

    Args:
        key: The key of the row. `open_row` accepts the bytes under this key only.
        content: The content.

    Returns:
        The bytes to store: the content and 28 bytes more.
    """
    return seal(key, Sealed(1, 0, content))


def unseal(key: str, data: bytes) -> Sealed:
    """Check the bytes of a sealed row, and return its content and version.

    Args:
        key: The key under which the bytes were found.
        data: The stored bytes.

    Raises:
        Corrupt: The bytes are damaged, cut off, not sealed, or were sealed under another key. The
            text names the row.
    """
    front, content = data[: FRONT.size], data[SEAL_BYTES:]
    if len(data) < SEAL_BYTES or not front.startswith(MAGIC):
        raise Corrupt(f"row {show_text(key)} is not a sealed row: {ADVICE}")
    (check,) = CHECK.unpack_from(data, FRONT.size)
    if check != check_of(key, front, content):
        text = f"row {show_text(key)} is damaged, or was written under another key: the checksum of"
        raise Corrupt(f"{text} its {len(data)} bytes does not match; {ADVICE}")
    _, generation, birth = FRONT.unpack(front)
    return Sealed(generation, birth, content)


def open_row(key: str, data: bytes, decode: Callable[[bytes], C]) -> C:
    """Check and decode the content of a row that `seal_content` made.

    Rows that version 0.1 wrote without a seal are decoded as well.

    Args:
        key: The key under which the bytes were found.
        data: The stored bytes.
        decode: Decodes a struct or a list from MessagePack. The first byte of a sealed row is an
            integer in MessagePack, so such a decoder cannot mistake a damaged sealed row for a row
            without a seal.

    Raises:
        Corrupt: The row is damaged, or a newer version of Millstream wrote it. The text names the
            row.
    """
    is_sealed = data.startswith(MAGIC)
    content = unseal(key, data).content if is_sealed else data
    try:
        return decode(content)
    except (MsgspecError, ValueError) as error:
        if is_sealed:
            text = f"row {show_text(key)} is not damaged, but this version cannot read it: {error}"
            raise Corrupt(f"{text}; read it with the newer version, or restore the row") from error
        raise Corrupt(f"row {show_text(key)} is damaged: {error}; {ADVICE}") from error


ADVICE = "stop the processes that use the store, and restore all of the store from one backup"


def check_of(key: str, front: bytes, content: bytes) -> int:
    """Return the checksum of a row."""
    name = key.encode()
    found = xxh3_64(LENGTH.pack(len(name)))
    for part in (name, front, content):
        found.update(part)
    return found.intdigest()
