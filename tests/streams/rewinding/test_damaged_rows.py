"""Damaged rows of outside readers are named, and never read as other values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.runtime import Corrupt, MemoryStateStore
from millstream.streams.rewinding.claims import ReaderClaims
from millstream.streams.rewinding.incarnation import Incarnation


def damaged(store: MemoryStateStore, key: str) -> Iterator[int]:
    """Flip each bit of the row, one after the other."""
    row = store.get(key)
    assert row is not None
    etag = row.etag
    for bit in range(8 * len(row.data)):
        data = bytearray(row.data)
        data[bit // 8] ^= 1 << bit % 8
        etag = store.put(key, bytes(data), etag, 0)
        yield bit


async def test_a_damaged_claim_gives_the_name_to_nobody() -> None:
    store = MemoryStateStore()
    claims = ReaderClaims(store, "p")
    await claims.claim("r", "run-1", None)
    for _ in damaged(store, "reader/p/r"):
        with pytest.raises(Corrupt, match="row reader/p/r "):
            await claims.claim("r", "run-2", None)
        with pytest.raises(Corrupt, match="row reader/p/r "):
            await claims.check("r", "run-1")


async def test_a_damaged_incarnation_is_not_another_one() -> None:
    store = MemoryStateStore()
    made = await Incarnation(store, "p", lambda: 7).text()
    assert await Incarnation(store, "p", lambda: 8).text() == made
    for _ in damaged(store, "incarnation/p"):
        with pytest.raises(Corrupt, match="row incarnation/p "):
            await Incarnation(store, "p", lambda: 8).text()
