"""Answers of plug-ins are checked before use, and each wrong answer is named."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from millstream.runtime import EnqueueFailed, QueueFull
from millstream.streams import QueueMessage, StreamId, Token
from millstream.streams.contracts import answers
from millstream.streams.contracts.answers import (
    AdapterFault,
    check_lost,
    check_messages,
    check_prefix,
    check_tokens,
    fault_of,
)

FULL = QueueFull("full")
ONE, TWO, THREE = (Token(1, number) for number in (1, 2, 3))


def message_at(token: Token) -> QueueMessage:
    return QueueMessage(StreamId("n", "k"), token, [b"x"])


def refused(check: Callable[[], object]) -> str:
    with pytest.raises(AdapterFault) as caught:
        check()
    return str(caught.value)


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


# --- exceptions ----------------------------------------------------------------------------------


def test_an_error_of_ours_is_left_as_it_is_and_any_other_is_named() -> None:
    assert fault_of("q: enqueue", FULL) is FULL
    fault = fault_of("q: enqueue", OSError("no\nroute"))
    assert isinstance(fault, AdapterFault)
    assert str(fault) == "q: enqueue raised OSError: no\\nroute"


def test_an_error_whose_text_cannot_be_made_is_named_all_the_same() -> None:
    text = str(fault_of("q: ack", Textless()))
    assert text == "q: ack raised Textless: (the text of the error could not be made: RuntimeError)"


# --- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [[ONE, None], (ONE, None)])
def test_a_token_or_none_for_each_message_is_an_answer(answer: Any) -> None:
    assert check_tokens(answer, 2, "q") == [ONE, None]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "q returned None, not a list of tokens"),
        ("ab", "q returned a str, not a list of tokens"),
        (b"ab", "q returned a bytes, not a list of tokens"),
        (iter([ONE, TWO]), "q returned a list_iterator, not a list of tokens"),
        ([ONE], "q returned 1 tokens for 2 messages"),
        ([ONE, TWO, THREE], "q returned 3 tokens for 2 messages"),
        ([ONE, 2], "q gave a int as a token"),
    ],
)
def test_any_other_answer_to_an_enqueue_is_a_fault(answer: Any, text: str) -> None:
    assert refused(lambda: check_tokens(answer, 2, "q")) == text


def test_a_stored_prefix_is_shorter_than_the_list() -> None:
    assert check_prefix(EnqueueFailed([ONE, None], FULL), 3, "q") == [ONE, None]
    assert check_prefix(EnqueueFailed([], FULL), 1, "q") == []
    whole = EnqueueFailed([ONE, TWO], FULL)
    assert "accepted all of 2 messages" in refused(lambda: check_prefix(whole, 2, "q"))


@pytest.mark.parametrize(
    ("accepted", "text"),
    [
        (2, "q raised EnqueueFailed whose `accepted` is a int, not a list of tokens"),
        ("", "q raised EnqueueFailed whose `accepted` is a str, not a list of tokens"),
        (b"a", "q raised EnqueueFailed whose `accepted` is a bytes, not a list of tokens"),
        (["x"], "q gave a str as a token"),
    ],
)
def test_a_prefix_that_is_no_list_of_tokens_is_a_fault(accepted: Any, text: str) -> None:
    error = EnqueueFailed([], FULL)
    error.accepted = accepted
    assert refused(lambda: check_prefix(error, 3, "q")) == text


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [list, tuple])
def test_messages_at_or_below_the_last_are_left_out_where_tokens_are_in_order(
    build: Callable[[Any], Any],
) -> None:
    answer = build(map(message_at, (ONE, TWO, THREE)))
    assert check_messages(answer, None, True, "q") == list(answer)
    assert check_messages(answer, TWO, True, "q") == [answer[2]]
    assert check_messages(answer, TWO, False, "q") == list(answer)


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ((ONE, THREE, TWO), f"q returned {TWO} after {THREE}"),
        ((ONE, ONE), f"q returned {ONE} after {ONE}"),
    ],
)
def test_messages_out_of_order_are_a_fault_only_where_order_is_promised(
    tokens: tuple[Token, ...], text: str
) -> None:
    answer = [message_at(token) for token in tokens]
    assert refused(lambda: check_messages(answer, None, True, "q")).startswith(text)
    assert check_messages(answer, None, False, "q") == answer


def test_messages_behind_what_was_given_before_are_a_fault_where_order_is_promised() -> None:
    answer = [message_at(TWO), message_at(THREE)]
    text = f"q returned {TWO} after {TWO}: the tokens of a queue with ORDERED must rise"
    assert refused(lambda: check_messages(answer, TWO, True, "q", given=TWO)).startswith(text)
    assert check_messages(answer, TWO, True, "q", given=ONE) == answer[1:]
    assert check_messages(answer, TWO, False, "q", given=THREE) == answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "q returned None, not a list of messages"),
        ("ab", "q returned a str, not a list of messages"),
        (b"ab", "q returned a bytes, not a list of messages"),
        (iter([message_at(ONE)]), "q returned a list_iterator, not a list of messages"),
        ([message_at(ONE), 2], "q returned a int among its messages"),
    ],
)
def test_any_other_answer_to_a_read_is_a_fault(answer: Any, text: str) -> None:
    assert refused(lambda: check_messages(answer, None, True, "q")) == text


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("token", (1, 1), "a tuple"),
        ("stream", "n/k", "a str"),
        ("items", b"x", "a bytes"),
        ("headers", None, "None"),
    ],
)
def test_a_part_of_a_message_that_has_another_type_is_named(
    name: str, value: Any, kind: str
) -> None:
    odd = replace(message_at(ONE), **{name: value})
    text = refused(lambda: check_messages([odd], None, True, "q"))
    assert text == f"q returned a message whose {name} is {kind}"


def test_items_may_be_a_tuple_and_headers_any_mapping() -> None:
    message = replace(message_at(ONE), items=(b"x",), headers={"a": "b"})
    assert check_messages([message], None, True, "q") == [message]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"token": Token("1", 2)}, "a token whose era is '1'"),  # type: ignore[arg-type]
        ({"token": Token(1, None)}, "a token whose seq is None"),  # type: ignore[arg-type]
        ({"token": Token(1, 1 << 70)}, "a token whose seq is 11805916207"),
        ({"token": Token(1 << 32, 1)}, "a token whose era is 4294967296"),
        ({"token": Token(1, 1, -1)}, "a token whose index is -1"),
        ({"token": Token(True, 1)}, "a token whose era is True"),
        ({"stream": StreamId("n", 5)}, "a stream whose key is a int"),  # type: ignore[arg-type]
        ({"stream": StreamId(b"n", "k")}, "a stream whose namespace is a bytes"),  # type: ignore[arg-type]
        ({"items": [b"x", 5]}, "an item that is a int, not bytes"),
        ({"items": ["x"]}, "an item that is a str, not bytes"),
        ({"items": [None]}, "an item that is None, not bytes"),
        ({"headers": {"n": 1}}, "the header ('n', 1): its name and value must be str"),
        ({"headers": {b"n": "x"}}, "the header (b'n', 'x')"),
    ],
)
def test_a_message_with_a_wrong_part_is_refused_whole(changes: dict[str, Any], text: str) -> None:
    wrong = replace(message_at(ONE), **changes)
    assert text in refused(lambda: check_messages([wrong], None, True, "q: read"))


def test_the_largest_token_and_any_kind_of_bytes_pass() -> None:
    top = Token((1 << 32) - 1, (1 << 64) - 1, (1 << 32) - 1)
    items: list[Any] = [b"x", bytearray(b"y"), memoryview(b"z")]
    right = replace(message_at(top), items=items, headers={})
    assert check_messages([right], None, True, "q: read") == [right]


# --- quick checks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token",
    [Token(0, 0, 0), Token(1, 0, 0), Token(2**32 - 1, 2**64 - 1, 2**32 - 1)],
)
def test_tokens_at_the_ends_of_their_ranges_are_taken(token: Token) -> None:
    message = replace(message_at(token), headers=MappingProxyType({}))
    assert check_messages([message], None, True, "r") == [message]
    assert answers._is_plain(message)


@pytest.mark.parametrize(
    "changes",
    [
        {"token": Token(-1, 0)},
        {"token": Token(2**32, 0)},
        {"token": Token(0, -1)},
        {"token": Token(0, 2**64)},
        {"token": Token(0, 0, -1)},
        {"token": Token(0, 0, 2**32)},
        {"token": Token(True, 0)},
        {"token": (1, 2, 3)},
        {"stream": ("n", "k")},
        {"stream": StreamId("n", 7)},  # type: ignore[arg-type]
        {"items": [b"x", "y"]},
        {"items": None},
        {"headers": None},
        {"headers": {"x": 1}},
    ],
    ids=repr,
)
def test_what_is_not_plain_is_refused_by_the_slow_look(changes: dict[str, Any]) -> None:
    message = replace(message_at(ONE), **changes)
    assert not answers._is_plain(message)
    refused(lambda: check_messages([message], None, True, "r"))


@pytest.mark.parametrize(
    "changes",
    [{"items": (b"x",)}, {"headers": {"x": "y"}}, {"items": [bytearray(b"x")]}, {"items": []}],
    ids=repr,
)
def test_what_the_quick_look_does_not_know_is_taken_all_the_same(changes: dict[str, Any]) -> None:
    message = replace(message_at(ONE), **changes)
    assert check_messages([message], None, True, "r") == [message]


def test_lost_tokens_are_told_as_a_list_of_tokens() -> None:
    assert check_lost((ONE, None, TWO), "R.extend") == [ONE, TWO]
    assert "R.extend returned None" in refused(lambda: check_lost(None, "R.extend"))
    assert "gave a str as a token" in refused(lambda: check_lost([ONE, "x"], "R.extend"))


def test_no_messages_have_no_tokens() -> None:
    assert check_tokens([], 0, "A.enqueue") == []
    assert "1 tokens for 0 messages" in refused(lambda: check_tokens([ONE], 0, "A.enqueue"))
