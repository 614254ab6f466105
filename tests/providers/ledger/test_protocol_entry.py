"""Entries as bytes: written entries are read back, and damaged ones are refused."""

from __future__ import annotations

from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64

from millstream.providers.ledger.inspection import EntryDamaged
from millstream.providers.ledger.protocol.entry import (
    HEAD_BYTES,
    EntryHeader,
    head_of,
    is_whole,
    pack,
    unpack,
)

HEADS = st.builds(
    EntryHeader,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.just(0),
)


@given(HEADS, st.binary(max_size=200))
def test_an_entry_comes_back_as_it_was_packed(head: EntryHeader, payload: bytes) -> None:
    head = head._replace(size_bytes=len(payload))
    packed = pack(head, payload)
    assert head_of(packed) == head and is_whole(memoryview(packed))
    assert unpack(packed, head.ledger, head.entry) == (head, payload)


@given(st.binary(max_size=40), st.data())
def test_a_changed_byte_is_found_wherever_it_is(payload: bytes, data: st.DataObject) -> None:
    packed = bytearray(pack(EntryHeader(7, 3, 2, 1, 99, len(payload)), payload))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(EntryDamaged):
        unpack(bytes(packed), 7, 3)


@pytest.mark.parametrize("cut", [0, 1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 2])
def test_an_entry_that_was_cut_is_none(cut: int) -> None:
    packed = pack(EntryHeader(1, 2, 1, 0, 3, 3), b"abc")
    with pytest.raises(EntryDamaged):
        unpack(packed[:cut], 1, 2)


@pytest.mark.parametrize(("ledger", "entry"), [(1, 3), (2, 2)])
def test_another_entry_than_was_asked_for_is_refused(ledger: int, entry: int) -> None:
    packed = pack(EntryHeader(1, 2, 1, 0, 3, 3), b"abc")
    with pytest.raises(EntryDamaged, match="expected entry . of ledger"):
        unpack(packed, ledger, entry)


def test_an_entry_has_the_form_that_is_written_down() -> None:
    packed = pack(EntryHeader(7, 3, 2, 1, 40, 5), b"hello")
    front = Struct("<QqqqQII").pack(7, 3, 2, 1, 40, 5, 0)
    assert packed == front + xxh3_64(front + b"hello").digest()[::-1] + b"hello"
