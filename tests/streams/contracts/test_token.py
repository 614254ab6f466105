"""Tokens: their order, and their text and wire forms."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.streams import Token

tokens = st.builds(
    Token, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
)


def test_token_compares_era_then_sequence_then_index() -> None:
    ordered = [Token(0, 0), Token(0, 0, 1), Token(0, 2**40), Token(0, 2**64 - 1), Token(1, 0)]
    assert sorted(reversed(ordered)) == ordered


def test_token_has_a_fixed_text() -> None:
    assert str(Token(1, 255, 16)) == "00000001-00000000000000ff-00000010"


@given(tokens)
def test_token_comes_back_from_its_text(token: Token) -> None:
    assert Token.parse(str(token)) == token


@given(tokens, tokens)
def test_token_texts_sort_as_the_tokens_do(one: Token, other: Token) -> None:
    assert (str(one) < str(other)) == (one < other)


@given(tokens)
def test_token_is_an_array_of_three_on_the_wire(token: Token) -> None:
    data = msgspec.msgpack.encode(token)
    assert msgspec.msgpack.decode(data) == list(token)
    assert msgspec.msgpack.decode(data, type=Token) == token


@pytest.mark.parametrize(
    "text", ["", "1-2-3", "00000001-00000000000000ff", "0000000g-0000000000000000-00000000"]
)
def test_token_refuses_another_text(text: str) -> None:
    with pytest.raises(ValueError):
        Token.parse(text)
