"""The messages on a connection: MessagePack arrays with an integer tag. No I/O.

Owns: the wire form of calls, replies and control messages. Not: frames (`framing`), bodies
(`codec`): a body stays bytes until the callee's typed decoder sees it.
Invariants: a frame is one array of messages; `id` is unique per connection and direction, 0 for
one-way calls; the first frame of either side is exactly one `Hello`. A call that cannot be read is
told from bytes that are no message: the one fails alone, the other ends the connection.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millstream.runtime.role import Role

from .framing import FrameError

__all__ = [
    "WIRE_VERSION",
    "Call",
    "Cancel",
    "Failure",
    "GatewayView",
    "Goodbye",
    "Hello",
    "Message",
    "Ping",
    "Proof",
    "Redirect",
    "Reply",
    "Unreadable",
    "count_of",
    "decode_each",
    "decode_messages",
    "encode_messages",
]

WIRE_VERSION = 4


class Hello(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """Who speaks, in which cluster, and the largest frames that it takes.

    `nonce`: random bytes of a silo or an operator, over which both sides prove that they know the
    secret. `is_operator`: a client that proves the operator's secret.
    `table_id`: names the membership table that a silo follows, or a client was given; may be empty
    for a client.
    """

    version: int
    cluster: str
    sender: str
    is_silo: bool
    frame_bytes_max: int
    batch_messages_max: int = 64
    nonce: bytes = b""
    table_id: str = ""
    is_operator: bool = False


class Call(msgspec.Struct, tag=1, array_like=True, gc=False):
    """A request. `ttl_s` is the time left (0: none); `chain` the turn ids that wait for it;
    `depth` how many turns do.

    `kind` is a grain type, or `$name` for a system target; `method` may be `extension.method`.
    `role`: the `Role` of the process that made it; what a client writes here is written over.
    """

    id: int
    kind: str
    key: str
    method: str
    body: msgspec.Raw
    ttl_s: float
    caller: str
    chain: list[str]
    hops: int
    headers: dict[str, str] | None
    depth: int = 1
    role: int = Role.SILO


class Reply(msgspec.Struct, tag=2, array_like=True, gc=False):
    """The encoded result of a call."""

    id: int
    body: msgspec.Raw


class Failure(msgspec.Struct, tag=3, array_like=True, gc=False):
    """The error of a call: `body` is an encoded `failures.WireError`."""

    id: int
    body: msgspec.Raw


class Cancel(msgspec.Struct, tag=4, array_like=True, gc=False):
    """The caller gave the call up."""

    id: int


class Redirect(msgspec.Struct, tag=5, array_like=True, gc=False):
    """The call did not run here; `silo` is where the grain is, or empty: look it up again."""

    id: int
    silo: str


class Goodbye(msgspec.Struct, tag=6, array_like=True, gc=False):
    """The sender stops: send it no new calls."""

    reason: str


class Ping(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """The sender is there; `wants_answer`: and asks whether the other end is."""

    wants_answer: bool


class Proof(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """The sender knows the secret: a silo the cluster's, an operator the operator's."""

    digest: bytes


class GatewayView(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """The gateways of a cluster, `host:port@generation` each, in a version of the membership
    table. A silo sends it to its clients, unasked and as an answer."""

    version: int
    gateways: list[str]


Message = Hello | Call | Reply | Failure | Cancel | Redirect | Goodbye | Ping | Proof | GatewayView


class Unreadable(NamedTuple):
    """A call whose names, headers or numbers cannot be read; `id` is 0 for a one-way call."""

    id: int
    why: str


encode_messages = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[list[Message]] = msgspec.msgpack.Decoder(list[Message])
decode_messages = _decoder.decode

CALL_TAG = 1
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_message = msgspec.msgpack.Decoder(Message).decode
_head = msgspec.msgpack.Decoder(
    tuple[(int, int, *[msgspec.Raw] * (len(Call.__struct_fields__) - 1))]  # type: ignore[misc]
).decode


def count_of(payload: bytes) -> int:
    """How many messages a frame claims to hold, without reading them; 0 for what is no array."""
    first = payload[0] if payload else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F
    if first == 0xDC:
        return int.from_bytes(payload[1:3], "big")
    return int.from_bytes(payload[1:5], "big") if first == 0xDD else 0


def decode_each(payload: bytes) -> list[Message | Unreadable]:
    """The messages of a frame that holds a call which cannot be read.

    Raises FrameError or msgspec.DecodeError where it is not calls alone that are wrong.
    """
    return [_decode_one(raw) for raw in _raws(payload)]


def _decode_one(raw: msgspec.Raw) -> Message | Unreadable:
    try:
        message: Message = _message(raw)
        return message
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        tag, call_id, *_ = _head(raw)
        if tag != CALL_TAG:
            raise FrameError(f"a message of tag {tag} cannot be read: {error}") from None
        return Unreadable(call_id, str(error))
