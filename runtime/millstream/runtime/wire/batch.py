"""Messages of one iteration to frames. Pure.

Owns: what a message takes on the wire, at most, and where a batch is cut. Invariants: every part of
a message counts, names, keys and headers too; a message that cannot be encoded leaves its
neighbours in their frame.
"""

from __future__ import annotations

from collections.abc import Sequence

from .message import Call, Failure, Message, Reply, encode_messages

__all__ = ["SPARE_BYTES", "UNSENDABLE", "call_bytes", "cut", "encode_what_can_be", "size_of"]

SPARE_BYTES = 256  # what the small parts of a message may take beside body and names
LETTER_BYTES = 4  # of UTF-8, at most
TEXT_HEAD_BYTES = 5  # before each text

UNSENDABLE = (ValueError, TypeError, OverflowError)
"""What encoding a message may raise: a lone surrogate, a number that is too large."""


def call_bytes(call: Call, body_bytes: int | None = None) -> int:
    """Bytes of body, names and headers, at most. Raises TypeError: a header that is not text.

    `body_bytes`: of the body, where they are known: a `Raw` tells them at some cost.
    """
    letters = len(call.kind) + len(call.key) + len(call.method) + len(call.caller)
    size = len(memoryview(call.body)) if body_bytes is None else body_bytes
    if call.chain:
        letters += sum(map(len, call.chain))
        size += TEXT_HEAD_BYTES * len(call.chain)
    if call.headers:
        for name, text in call.headers.items():
            if type(name) is not str or type(text) is not str:
                raise TypeError(f"header {name!r}: {type(text).__name__}, not str to str")
            letters += len(name) + len(text)
        size += 2 * TEXT_HEAD_BYTES * len(call.headers)
    return size + LETTER_BYTES * letters


def size_of(message: Message) -> int:
    """Bytes that a message takes in a frame, at most."""
    if isinstance(message, Call):
        return SPARE_BYTES + call_bytes(message)
    if isinstance(message, Reply | Failure):
        return SPARE_BYTES + len(memoryview(message.body))
    return SPARE_BYTES


def cut(
    messages: Sequence[Message], messages_max: int, bytes_max: int
) -> list[tuple[list[Message], int]]:
    """Batches in order, each with its bytes; a message above `bytes_max` is alone in its batch."""
    batches: list[tuple[list[Message], int]] = []
    batch: list[Message] = []
    size = 0
    for message in messages:
        grows_by = size_of(message)
        if batch and (len(batch) >= messages_max or size + grows_by > bytes_max):
            batches.append((batch, size))
            batch, size = [], 0
        batch.append(message)
        size += grows_by
    if batch:
        batches.append((batch, size))
    return batches


def encode_what_can_be(
    batch: Sequence[Message],
) -> tuple[bytes, list[tuple[Message, Exception]]]:
    """The payload of those that can be encoded (empty: of none), and the others with the reason."""
    good: list[Message] = []
    bad: list[tuple[Message, Exception]] = []
    for message in batch:
        try:
            encode_messages([message])
            good.append(message)
        except UNSENDABLE as error:
            bad.append((message, error))
    return (encode_messages(good) if good else b""), bad
