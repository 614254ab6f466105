"""Messages of one iteration to frames. Pure.

Owns: what a message takes on the wire, at most, and where a batch is cut. Invariants: every part of
a message counts, names, keys and headers too; a message that cannot be encoded leaves its
neighbours in their frame.
"""

from __future__ import annotations

from collections.abc import Sequence

from .message import Call, Message, encode_messages

__all__ = ["SPARE_BYTES", "UNSENDABLE", "call_bytes", "cut", "encode_what_can_be"]

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


def cut(sizes: Sequence[int], messages_max: int, bytes_max: int) -> list[int]:
    """Where batches of messages of so many bytes end; one above `bytes_max` is a batch alone."""
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
