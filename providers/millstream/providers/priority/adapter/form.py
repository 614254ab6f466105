"""Conversion between messages of streams and messages of a priority queue. Pure functions.

Invariants: later versions can read what is stored. Messages of one stream have one exclusivity
value, and messages of different streams have different values.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import xxhash

from millstream.providers.priority.core.settings import TEXT_BYTES_MAX
from millstream.providers.priority.surface.given import NewMessage
from millstream.providers.priority.surface.lease import Lease
from millstream.runtime import StreamError
from millstream.streams import OutMessage, QueueMessage, StreamId, Token

from .options import STREAM_KEY

__all__ = ["PRIORITY_HEADER", "new_message", "queue_message", "token_of"]

PRIORITY_HEADER = "priority"
"""The header of an event that gives its priority in `DeadlineQueues`.

Its value is a whole number from -2**53 to 2**53, as text; lower is more urgent. A deadline in Unix
milliseconds is a good choice, because an event without the header gets the time of its publishing.
"""
PRIORITY_MAX = 2**53
LONG = "xxh3:"


class Stored(msgspec.Struct, array_like=True, frozen=True):
    """The form of the payload."""

    namespace: str
    key: str
    items: list[bytes]
    headers: dict[str, str]
    enqueued_s: float


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Stored).decode


def new_message(out: OutMessage, wall_s: float, payload_bytes_max: int) -> NewMessage:
    """The message to enqueue. Raises StreamError if the event can never be stored."""
    items = [bytes(item) for item in out.items]
    payload = _encode(Stored(*out.stream, items, dict(out.headers), wall_s))
    if len(payload) > payload_bytes_max:
        raise StreamError(
            f"{out.stream}: an event has {len(payload)} bytes, with headers and the name of its "
            f"stream; DeadlineOptions.payload_bytes_max is {payload_bytes_max}"
        )
    metadata = {STREAM_KEY: exclusivity_of(out.stream)}
    return NewMessage(payload, priority_of(out.stream, out.headers), metadata=metadata)


def exclusivity_of(stream: StreamId) -> str:
    """The exclusivity value of a stream: its name, or a hash of a long name.

    A name cannot look like a hash, because it has a `/` after its namespace.
    """
    name = str(stream)
    data = name.encode(errors="surrogatepass")
    return name if len(data) <= TEXT_BYTES_MAX else f"{LONG}{xxhash.xxh3_128_hexdigest(data)}"


def priority_of(stream: StreamId, headers: Mapping[str, str]) -> int | None:
    """The priority in the header; None means the time of the enqueue. Raises StreamError."""
    text = headers.get(PRIORITY_HEADER)
    if text is None:
        return None
    try:
        priority = int(text)
    except ValueError:
        priority = PRIORITY_MAX + 1
    if not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        raise StreamError(
            f"{stream}: the header {PRIORITY_HEADER!r} is {text[:80]!r}, not a whole number from "
            "-2**53 to 2**53"
        )
    return priority


def token_of(lease: Lease) -> Token:
    """The token of a lease; the next lease of the same message has another one."""
    return Token(0, lease.token.epoch)


def queue_message(lease: Lease) -> QueueMessage:
    """The message of a lease as the runtime reads it.

    Raises StreamError if another program enqueued it.
    """
    try:
        stored = _decode(lease.payload)
    except msgspec.MsgspecError as error:
        raise StreamError(f"message {lease.id!r} is not an event of a stream: {error}") from None
    return QueueMessage(
        StreamId(stored.namespace, stored.key),
        token_of(lease),
        stored.items,
        stored.headers,
        stored.enqueued_s,
        lease.attempt,
        lease.left_s,
        lease.attempts_left == 0,
    )
