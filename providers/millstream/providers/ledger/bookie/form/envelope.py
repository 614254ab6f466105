"""The envelope of everything in a directory that is not a frame: its kind, its format, and a check.

Owns: wrapping and opening. Invariants: bytes that were cut, changed, or are of another kind are
never accepted. A newer format is distinguished from damage.

    0  magic, 8 bytes | format u32 | reserved u32 | size u64
    24 payload, then check u64: XXH3-64 of all before it
"""

from __future__ import annotations

from struct import Struct

from millstream.providers.ledger.protocol.entry import check_of

__all__ = ["FORMAT", "OVERHEAD_BYTES", "Newer", "NotWhole", "unwrap", "wrap"]

FORMAT = 1
"""The format that this version writes, and the highest that it reads."""

HEAD = Struct("<8sIIQ")
CHECK = Struct("<Q")
OVERHEAD_BYTES = HEAD.size + CHECK.size


class NotWhole(Exception):
    """The bytes are cut, changed, or of another kind. The text says what was found."""


class Newer(Exception):
    """The bytes have a format of a later version. The text names it."""


def wrap(magic: bytes, payload: bytes) -> bytes:
    """Return a payload in an envelope."""
    data = HEAD.pack(magic, FORMAT, 0, len(payload)) + payload
    return data + CHECK.pack(check_of(data))


def unwrap(magic: bytes, data: bytes) -> bytes:
    """Return the payload; ignore bytes after the check. Raises NotWhole, Newer."""
    if len(data) < OVERHEAD_BYTES:
        raise NotWhole(f"{len(data)} bytes are left of at least {OVERHEAD_BYTES}")
    found, form, _, size = HEAD.unpack_from(data)
    if found != magic:
        raise NotWhole(f"the first bytes are {found!r}, not {magic!r}")
    end = HEAD.size + size
    if end + CHECK.size > len(data):
        raise NotWhole(f"{len(data)} bytes are left of {end + CHECK.size}")
    if CHECK.unpack_from(data, end)[0] != check_of(memoryview(data)[:end]):
        raise NotWhole("the checksum is wrong")
    if form > FORMAT:
        raise Newer(f"format {form}; this version reads formats up to {FORMAT}")
    return data[HEAD.size : end]
