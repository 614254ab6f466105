"""The form of an entry on the wire and on disk, which is checked from end to end.

Owns: `Entry`, `EntryHeader`, packing and checking. The writer packs an entry once. Bookies store
and send these bytes unchanged, and every reader checks them. Invariant: the check covers head and
payload, so a damaged entry, or an entry other than the requested one, never passes. As in
BookKeeper, an entry names the last confirmed entry. The check is XXH3 (docs/decisions/0013).

    0  ledger u64 | entry i64 | confirmed i64 | complete i64 | length u64 | payload size u32 |
       reserved u32 | check u64, XXH3-64 of the 48 bytes before it and the payload
    56 payload
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from .errors import EntryDamaged

__all__ = ["HEAD_BYTES", "NOTHING", "Entry", "EntryHeader", "head_of", "pack", "unpack"]

NOTHING = -1
"""The number of the last entry of a ledger without entries."""

HEAD = Struct("<QqqqQII")
CHECK = Struct("<Q")
HEAD_BYTES = HEAD.size + CHECK.size


class EntryHeader(NamedTuple):
    """The fields that are stored before a payload.

    `confirmed`: the last entry that the writer knew to be on an ack quorum when it sent this one.
    `complete`: the last entry that the writer knew to be on every bookie of its write set, with all
    entries before it. `length`: the bytes of all payloads up to and including this one.
    """

    ledger: int
    entry: int
    confirmed: int
    complete: int
    length: int
    size_bytes: int


class Entry(NamedTuple):
    """An entry that passed its check."""

    head: EntryHeader
    payload: bytes


def pack(head: EntryHeader, payload: bytes) -> bytes:
    """Return an entry as bytes. Costs a check and a copy of the payload."""
    front = HEAD.pack(*head, 0)
    seal = xxh3_64(front)
    seal.update(payload)
    return b"".join((front, CHECK.pack(seal.intdigest()), payload))


def head_of(packed: bytes | memoryview) -> EntryHeader:
    """Return the head without a check. Raises EntryDamaged if the sizes cannot be right."""
    if len(packed) < HEAD_BYTES:
        raise EntryDamaged(f"an entry has {len(packed)} bytes; the header alone has {HEAD_BYTES}")
    head = EntryHeader(*HEAD.unpack_from(packed)[:6])
    if HEAD_BYTES + head.size_bytes != len(packed):
        text = (
            f"entry {head.entry} of ledger {head.ledger} has {len(packed) - HEAD_BYTES} bytes of "
        )
        raise EntryDamaged(f"{text}payload, but its header says {head.size_bytes}")
    return head


def unpack(packed: bytes | memoryview, ledger: int, entry: int) -> Entry:
    """Check and return the entry that was asked for. Raises EntryDamaged."""
    head = head_of(packed)
    if (head.ledger, head.entry) != (ledger, entry):
        text = f"expected entry {entry} of ledger {ledger}"
        raise EntryDamaged(f"{text}, but found entry {head.entry} of ledger {head.ledger}")
    if not is_whole(packed):
        raise EntryDamaged(f"entry {entry} of ledger {ledger} fails its checksum")
    return Entry(head, bytes(packed[HEAD_BYTES:]))


def is_whole(packed: bytes | memoryview) -> bool:
    """Whether the check matches the bytes."""
    view = memoryview(packed)
    seal = xxh3_64(view[: HEAD.size])
    seal.update(view[HEAD_BYTES:])
    return bool(CHECK.unpack_from(packed, HEAD.size)[0] == seal.intdigest())


def check_of(data: bytes | memoryview) -> int:
    """Return the check of bytes that are not an entry, such as the heads of files and frames."""
    return xxh3_64_intdigest(data)
