"""Rows of PostgreSQL: keys, etags and ranges."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

pytest.importorskip("psycopg", reason="psycopg is not installed (extra `postgres`)")

from millstream.providers.postgres.rows import encode_member, reminder_of, view_of
from millstream.runtime import MemberRow, ReminderRow, Status, StorageError, TableView
from millstream.runtime.postgres.keys import KEY_BYTES_MAX, check_key, etag_number, key_range

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@given(TEXTS, TEXTS, TEXTS)
def test_a_range_has_the_keys_of_a_prefix_after_a_key(prefix: str, after: str, key: str) -> None:
    low, above, high = key_range(prefix, after)
    stored = key.encode()
    is_inside = low <= stored and above < stored and (high is None or stored < high)
    assert is_inside is (key.startswith(prefix) and key > after)


@pytest.mark.parametrize(
    ("etag", "number"),
    [
        ("1", 1),
        ("999999999999999999", 999_999_999_999_999_999),
        ("9" * 19, -1),
        ("", -1),
        ("-1", -1),
        ("01", -1),
        ("x", -1),
        ("²", -1),
        ("٣", -1),
    ],
)
def test_a_text_that_is_no_etag_has_a_number_that_is_never_stored(etag: str, number: int) -> None:
    assert etag_number(etag) == number


def test_a_key_has_a_limit_in_bytes() -> None:
    assert check_key("the key", "é" * (KEY_BYTES_MAX // 2)) == (b"\xc3\xa9" * 1250,)
    with pytest.raises(StorageError, match=f"the key has {KEY_BYTES_MAX + 1} bytes"):
        check_key("the key", "é" * (KEY_BYTES_MAX // 2), "a")


def test_a_view_has_the_heartbeats_of_the_column() -> None:
    row = MemberRow("h:1@2", Status.ACTIVE, "a", alive_s=1.5)
    assert view_of([(7, None, None)]) == TableView(7)
    found = view_of([(7, encode_member(row), 9.25)])
    assert found.version == 7 and found.rows[0].alive_s == 9.25 and found.rows[0].name == "a"


def test_a_reminder_has_texts_again() -> None:
    row = ReminderRow("T/é\x00", "n", 3, None, b"d", "12")
    assert reminder_of(("T/é\x00".encode(), b"n", 3, None, b"d", 12)) == row
