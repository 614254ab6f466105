"""Checks of the answers that a plug-in gives, before the runtime trusts them. Pure.

Owns: the checks, and `AdapterFault`. Invariants: an accepted answer has the types and the order
that the contract promises. An error names the adapter, the method and the wrong part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from millstream.runtime import EnqueueFailed, QueueUnavailable, StreamError
from millstream.runtime.extending import show_text

from .identity import StreamId
from .message import QueueMessage
from .token import Token

__all__ = [
    "AdapterFault",
    "check_lost",
    "check_messages",
    "check_prefix",
    "check_tokens",
    "fault_of",
    "text_of",
]

TOKEN_LIMITS = ERA_END, SEQ_END, INDEX_END = (1 << 32, 1 << 64, 1 << 32)  # as they are stored
EMPTY_TYPES = frozenset({dict, MappingProxyType})
BYTES = frozenset({bytes})
TOKENS = frozenset({Token})


class AdapterFault(QueueUnavailable):
    """An adapter broke its contract: a wrong answer, an unexpected exception, or no answer in
    time."""


def fault_of(where: str, error: BaseException) -> StreamError:
    """Turn an adapter's exception into a stream error; stream errors are returned unchanged."""
    if isinstance(error, StreamError):
        return error
    return AdapterFault(f"{where} raised {type(error).__name__}: {show_text(text_of(error))}")


def text_of(error: BaseException) -> str:
    """The text of an error; a foreign error may fail to make its text."""
    try:
        return str(error)
    except Exception as another:
        return f"(the text of the error could not be made: {type(another).__name__})"


def check_tokens(answer: Any, count: int, where: str) -> list[Token | None]:
    """Check the answer of `enqueue` for `count` messages. Raises AdapterFault."""
    if type(answer) is not list:
        _check_list(answer, "tokens", f"{where} returned")
    if len(answer) != count:
        raise AdapterFault(f"{where} returned {len(answer)} tokens for {count} messages")
    if type(answer) is list and TOKENS.issuperset(map(type, answer)):  # the usual case
        return answer
    return [_token(one, where) for one in answer]


def check_prefix(error: EnqueueFailed, count: int, where: str) -> list[Token | None]:
    """The tokens of the stored prefix of `count` messages. Raises AdapterFault."""
    accepted = error.accepted
    _check_list(accepted, "tokens", f"{where} raised EnqueueFailed whose `accepted` is")
    if len(accepted) >= count:
        raise AdapterFault(
            f"{where} raised EnqueueFailed, although it accepted all of {count} messages"
        )
    return [_token(one, where) for one in accepted]


def _check_list(answer: Any, what: str, where: str) -> None:
    if not isinstance(answer, Sequence) or isinstance(answer, str | bytes):
        raise AdapterFault(f"{where} {_kind(answer)}, not a list of {what}")


def _token(one: Any, where: str) -> Token | None:
    if one is None or isinstance(one, Token):
        return one
    raise AdapterFault(f"{where} gave {_kind(one)} as a token")


def check_lost(answer: Any, where: str) -> list[Token]:
    """Check the answer of `extend`. Raises AdapterFault."""
    _check_list(answer, "tokens", f"{where} returned")
    tokens = [_token(one, where) for one in answer]
    return [one for one in tokens if one is not None]


def check_messages(
    answer: Any,
    last: Token | None,
    is_ordered: bool,
    where: str,
    *,
    given: Token | None = None,
) -> list[QueueMessage]:
    """Check the answer of `read`; if tokens are ordered, drop messages at or below `last`.

    Args:
        given: the last token that this receiver has returned. None: it has returned nothing, so its
            first messages may be known already.

    Raises AdapterFault: the answer is no list of messages, or the tokens do not rise.
    """
    if type(answer) is not list:
        _check_list(answer, "messages", f"{where} returned")
    found: list[QueueMessage] = []
    newest = given
    for message in answer:
        if type(message) is not QueueMessage or not _is_plain(message):
            _check_message(message, where)
        if is_ordered and newest is not None and message.token <= newest:
            raise AdapterFault(
                f"{where} returned {message.token} after {newest}: the tokens of a queue with "
                "ORDERED must rise, also from read to read; raise the era when numbers start again"
            )
        newest = message.token
        if not is_ordered or last is None or message.token > last:
            found.append(message)
    return found


def _is_plain(message: QueueMessage) -> bool:
    """Whether every part has exactly the expected type and range.

    This fast check nearly always passes.
    """
    stream, token, headers = message.stream, message.token, message.headers
    if type(stream) is not StreamId or type(token) is not Token or type(message.items) is not list:
        return False
    if (
        headers
        or type(headers) not in EMPTY_TYPES
        or not BYTES.issuperset(map(type, message.items))
    ):
        return False
    era, seq, index = token
    return (
        type(stream[0]) is type(stream[1]) is str
        and type(era) is type(seq) is type(index) is int
        and 0 <= era < ERA_END
        and 0 <= seq < SEQ_END
        and 0 <= index < INDEX_END
    )


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, QueueMessage):
        raise AdapterFault(f"{where} returned {_kind(message)} among its messages")
    for name, is_right in (
        ("token", isinstance(message.token, Token)),
        ("stream", isinstance(message.stream, StreamId)),
        ("items", isinstance(message.items, list | tuple)),
        ("headers", isinstance(message.headers, Mapping)),
    ):
        if not is_right:
            kind = _kind(getattr(message, name))
            raise AdapterFault(f"{where} returned a message whose {name} is {kind}")
    if wrong := _wrong_part(message):
        raise AdapterFault(f"{where} returned a message with {wrong}")


def _wrong_part(message: QueueMessage) -> str:
    """The first wrong part of a message whose fields have the right types, or "" if all parts are
    right."""
    for value, limit, name in zip(message.token, TOKEN_LIMITS, Token._fields, strict=True):
        if type(value) is not int or not 0 <= value < limit:
            return f"a token whose {name} is {show_text(repr(value))}"
    for name, part in zip(StreamId._fields, message.stream, strict=True):
        if not isinstance(part, str):
            return f"a stream whose {name} is {_kind(part)}"
    for item in message.items:
        if not isinstance(item, bytes | bytearray | memoryview):
            return f"an item that is {_kind(item)}, not bytes"
    for header in message.headers.items():
        if not (isinstance(header[0], str) and isinstance(header[1], str)):
            return f"the header {show_text(repr(header))}: its name and value must be str"
    return ""


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
