"""Text from others: which text can be sent, how large it is, and how it is shown."""

from __future__ import annotations

import pytest

from millstream.runtime.extending import check_text, show_text, show_value, text_bytes
from millstream.runtime.text import is_text

LONE = "a\ud800"


@pytest.mark.parametrize(("text", "is_sendable"), [("", True), ("é\n", True), (LONE, False)])
def test_a_lone_surrogate_cannot_be_sent(text: str, is_sendable: bool) -> None:
    assert is_text(text) is is_sendable


def test_what_cannot_be_sent_is_refused_with_the_place_that_is_wrong() -> None:
    check_text("key", "é")
    with pytest.raises(TypeError, match=r"key, 'a\\ud800', has a lone surrogate at position 1"):
        check_text("key", LONE)
    with pytest.raises(TypeError, match="key must be a str, not 7"):
        check_text("key", 7)


def test_a_text_has_as_many_bytes_as_it_takes_to_send_it() -> None:
    assert text_bytes(["ab", "é", ""]) == 4
    assert text_bytes([LONE]) == 4
    assert text_bytes([]) == 0


def test_a_long_text_is_cut_and_its_length_told() -> None:
    assert show_text("abc", 3) == "abc"
    assert show_text("abcd", 3) == "abc... (4 characters)"


def test_what_is_shown_is_one_line() -> None:
    assert show_text("a é") == "a é"
    assert show_text("a\n\x1bé\ud800") == r"a\n\x1bé\ud800"


def test_any_value_is_shown_in_one_short_line() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    assert show_value("a\n\ud800") == r"'a\n\ud800'"
    assert show_value([1] * 100, 4) == "[1, ... (300 characters)"
    assert show_value(10**5_000) == "a number of 16610 bits"
    assert show_value(Odd()) == "a value that cannot be shown (Odd)"
    with pytest.raises(TypeError, match="key must be a str, not a number of 16610 bits"):
        check_text("key", 10**5_000)
