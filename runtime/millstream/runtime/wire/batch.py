"""Batches: how many messages go into one frame. Pure.

This module computes an upper bound for the bytes of a message on the wire, and the places at which
a batch is cut.

Invariants:

- The bound covers every part of a message, including names, keys and headers.
- A message that cannot be encoded does not affect the other messages of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from .message import Call, Message, encode_messages

__all__ = ["SPARE_BYTES", "UNSENDABLE", "call_bytes", "cut", "encode_what_can_be"]

SPARE_BYTES = 256  # for the small parts of a message, besides body, names and headers
LETTER_BYTES = 4  # the most bytes of one character in UTF-8
TEXT_HEAD_BYTES = 5  # the longest MessagePack prefix of a text

UNSENDABLE = (ValueError, TypeError, OverflowError)
"""Errors of encoding a message, for example a lone surrogate or a number that is too large."""


def call_bytes(call: Call, body_bytes: int | None = None) -> int:
    """Return an upper bound for the bytes of a call's body, names and headers.

    Pass `body_bytes` if the caller knows the size of the body, because reading it from a `Raw`
    costs time. Raises TypeError if a header is not text.
    """
    letters = len(call.kind) + len(call.key) + len(call.method) + len(call.caller)
    size = len(memoryview(call.body)) if body_bytes is None else body_bytes
    if call.chain:
        letters += sum(map(len, call.chain))
        size += TEXT_HEAD_BYTES * len(call.chain)
    if call.headers:
        for name, text in call.headers.items():
            if type(name) is not str or type(text) is not str:
                kind = type(text).__name__
                raise TypeError(f"header {name!r}: {kind}, but name and text must be str")
            letters += len(name) + len(text)
        size += 2 * TEXT_HEAD_BYTES * len(call.headers)
    return size + LETTER_BYTES * letters


def cut(sizes: Sequence[int], messages_max: int, bytes_max: int) -> list[int]:
    """Return the end index of each batch of messages with these sizes.

    A message larger than `bytes_max` is a batch of its own.
    """
    ends: list[int] = []
    begin = size = 0
    for at, grows_by in enumerate(sizes):
        size += grows_by
        if at > begin and (at - begin >= messages_max or size > bytes_max):
            ends.append(at)
            begin, size = at, grows_by
    if sizes:
        ends.append(len(sizes))
    return ends


def encode_what_can_be(
    batch: Sequence[Message],
) -> tuple[bytes, list[tuple[Message, Exception]]]:
    """Encode the messages that can be encoded, and return the others with their errors.

    The payload is empty if no message can be encoded.
    """
    good: list[Message] = []
    bad: list[tuple[Message, Exception]] = []
    for message in batch:
        try:
            encode_messages([message])
            good.append(message)
        except UNSENDABLE as error:
            bad.append((message, error))
    return (encode_messages(good) if good else b""), bad
