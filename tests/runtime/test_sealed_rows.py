"""Sealed rows: only the written bytes under their own key can be opened."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from millstream.runtime import Corrupt
from millstream.runtime.extending import Sealed, open_row, seal, seal_content, unseal
from millstream.runtime.sealed_rows import SEAL_BYTES

NUMBERS = st.integers(0, 2**64 - 1)
ROWS = st.builds(Sealed, NUMBERS, NUMBERS, st.binary(max_size=40))
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(KEYS, ROWS)
def test_what_was_sealed_is_opened_under_its_key(key: str, row: Sealed) -> None:
    data = seal(key, row)
    assert unseal(key, data) == row and len(data) == SEAL_BYTES + len(row.content)


@given(KEYS, ROWS, st.data())
def test_any_flipped_bit_is_seen(key: str, row: Sealed, data: st.DataObject) -> None:
    sealed = bytearray(seal(key, row))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corrupt, match="^row "):
        unseal(key, bytes(sealed))


@given(KEYS, ROWS, st.data())
def test_any_cut_is_seen_and_so_is_what_was_added(
    key: str, row: Sealed, data: st.DataObject
) -> None:
    sealed = seal(key, row)
    kept = data.draw(st.integers(0, len(sealed) - 1))
    for other in (sealed[:kept], sealed + b"\0"):
        with pytest.raises(Corrupt, match="^row "):
            unseal(key, other)


@given(KEYS, KEYS, ROWS)
def test_a_row_of_another_key_is_refused(key: str, other: str, row: Sealed) -> None:
    if key == other:
        return
    with pytest.raises(Corrupt, match="damaged, or was written under another key"):
        unseal(other, seal(key, row))


def test_the_form_is_as_the_module_says() -> None:
    front, content = b"MSrw" + (3).to_bytes(8, "little") + (4).to_bytes(8, "little"), b"xyz"
    check = xxh3_64_intdigest((1).to_bytes(4, "little") + b"k" + front + content)
    assert seal("k", Sealed(3, 4, content)) == front + check.to_bytes(8, "little") + content


def test_content_whose_versions_nobody_compares_is_the_first_version_of_birth_0() -> None:
    front = b"MSrw" + (1).to_bytes(8, "little") + bytes(8)
    check = xxh3_64_intdigest((1).to_bytes(4, "little") + b"k" + front + b"xyz")
    assert seal_content("k", b"xyz") == front + check.to_bytes(8, "little") + b"xyz"
    assert unseal("k", seal_content("k", b"xyz")) == Sealed(1, 0, b"xyz")


class Place(msgspec.Struct):
    """The content of a test's row."""

    number: int
    names: list[str] = []


class Short(msgspec.Struct, array_like=True):
    """The same content as an array."""

    number: int
    names: list[str] = []


STRUCTS = [Place(70_000, ["a", "b"]), Short(70_000, ["a", "b"])]


@pytest.mark.parametrize("value", STRUCTS)
def test_a_row_is_opened_whether_it_is_sealed_or_bare(value: Place | Short) -> None:
    decode, content = msgspec.msgpack.Decoder(type(value)).decode, msgspec.msgpack.encode(value)
    assert open_row("k", seal_content("k", content), decode) == value
    assert open_row("k", content, decode) == value


@pytest.mark.parametrize("value", STRUCTS)
def test_a_damaged_sealed_row_is_never_taken_for_a_bare_one(value: Place | Short) -> None:
    decode = msgspec.msgpack.Decoder(type(value)).decode
    sealed = seal_content("k", msgspec.msgpack.encode(value))
    flips = [bytearray(sealed) for _ in range(8 * len(sealed))]
    for bit, data in enumerate(flips):
        data[bit // 8] ^= 1 << bit % 8
    for other in [*map(bytes, flips), *(sealed[:size] for size in range(len(sealed)))]:
        with pytest.raises(Corrupt, match="^row k is .*restore all of the store"):
            open_row("k", other, decode)
    with pytest.raises(Corrupt, match="^row j is damaged, or was written under another key"):
        open_row("j", sealed, decode)


def test_a_whole_row_of_another_version_says_so() -> None:
    newer = seal_content("k", msgspec.msgpack.encode([1, 2, 3]))
    with pytest.raises(
        Corrupt, match="row k is not damaged, but this version cannot read it.*newer"
    ):
        open_row("k", newer, msgspec.msgpack.Decoder(Place).decode)
    no_text = seal_content(
        "k", msgspec.msgpack.encode({"number": 1, "names": ["x"]})[:-1] + b"\xff"
    )
    with pytest.raises(Corrupt, match="row k is not damaged, but this version cannot read it"):
        open_row("k", no_text, msgspec.msgpack.Decoder(Place).decode)
