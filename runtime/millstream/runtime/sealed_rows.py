"""Stored rows as bytes that can be checked: what is written, under which key, and in which version.

Owns: `Sealed`, `seal`, `unseal`, `open_row`. Pure. Not: which rows are sealed, and what is compared
with a version (the owner of the rows). The check is XXH3 (docs/decisions/0013). Invariant: the
check covers the key and every byte, so a row that was damaged, cut off, or stored under another key
is never opened.

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
"""Bytes that a sealed row has beside its content."""


class Sealed(NamedTuple):
    """A row's content in one version.

    `generation`: how many times the row was written since its creation, 1 at first. `birth`: a
    number that tells this creation of the row from all others of the same key.
    """

    generation: int
    birth: int
    content: bytes


def seal(key: str, row: Sealed) -> bytes:
    """The row as bytes that `unseal` accepts under this key only."""
    front = FRONT.pack(MAGIC, row.generation, row.birth)
    return b"".join((front, CHECK.pack(check_of(key, front, row.content)), row.content))


def seal_content(key: str, content: bytes) -> bytes:
    """The content of a row whose versions nobody compares, sealed."""
    return seal(key, Sealed(1, 0, content))


def unseal(key: str, data: bytes) -> Sealed:
    """The row that was sealed under this key. Raises Corrupt: these are not the bytes of it."""
    front, content = data[: FRONT.size], data[SEAL_BYTES:]
    if len(data) < SEAL_BYTES or not front.startswith(MAGIC):
        raise Corrupt(f"row {show_text(key)} is no sealed row: {ADVICE}")
    (check,) = CHECK.unpack_from(data, FRONT.size)
    if check != check_of(key, front, content):
        text = f"row {show_text(key)} is damaged, or was written under another key: its check over"
        raise Corrupt(f"{text} {len(data)} bytes does not fit; {ADVICE}")
    _, generation, birth = FRONT.unpack(front)
    return Sealed(generation, birth, content)


def open_row(key: str, data: bytes, decode: Callable[[bytes], C]) -> C:
    """The content of a row that `seal_content` has sealed, or that version 0.1 has written bare.

    Args:
        decode: decodes a struct or a list from MessagePack. A sealed row begins with an integer, so
            no decoder of these takes a sealed row whose first bytes are damaged for a bare one.

    Raises Corrupt: the row is damaged, or of a newer version.
    """
    is_sealed = data.startswith(MAGIC)
    content = unseal(key, data).content if is_sealed else data
    try:
        return decode(content)
    except (MsgspecError, ValueError) as error:
        if is_sealed:
            text = (
                f"row {show_text(key)} is whole, and not what this version writes: {error}; read it"
            )
            raise Corrupt(f"{text} with the newer version, or restore the row") from error
        raise Corrupt(f"row {show_text(key)} is damaged: {error}; {ADVICE}") from error


ADVICE = "stop the processes that use the store, and restore all of the store from one backup"


def check_of(key: str, front: bytes, content: bytes) -> int:
    """The check of a row."""
    name = key.encode()
    found = xxh3_64(LENGTH.pack(len(name)))
    for part in (name, front, content):
        found.update(part)
    return found.intdigest()
