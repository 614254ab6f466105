"""The messages on a connection: MessagePack arrays with an integer tag. No I/O.

This module owns the wire form of calls, answers and control messages. `framing` owns frames, and
`codec` owns bodies: a body stays bytes until the typed decoder of its receiver reads it.

Invariants:

- A frame contains one array of messages.
- The id of a call is unique on its connection and in its direction. One-way calls have id 0.
- The first frame of each side contains exactly one `Hello`.
- A call that cannot be read fails alone. Bytes that are no message end the connection.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

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
    "VersionedCall",
    "count_of",
    "decode_each",
    "decode_messages",
    "encode_messages",
]

WIRE_VERSION = 4
"""Version of the messages. Processes with different versions refuse each other."""


class Hello(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """The first message of each side: the identity of the sender, and the limits of its frames.

    Attributes:
        version: the wire version, `WIRE_VERSION`.
        cluster: the name of the cluster.
        sender: the address of a silo, or the id of a client: 1 to 200 printable characters.
        is_silo: True for a silo, False for a client.
        frame_bytes_max: bytes of the largest payload that the sender accepts.
        batch_messages_max: the most messages that the sender accepts in one frame.
        nonce: 32 random bytes of a silo or an operator. Both sides compute their proofs over them.
            Empty for other clients.
        table_id: the id of the membership table that a silo follows or a client was given; empty
            for a client without one.
        is_operator: True for a client that proves the operator's secret.
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
    """A request to run a method of a grain or a system target.

    Attributes:
        id: the number of the call on this connection; 0 for a one-way call, which has no answer.
        kind: the name of a grain type, or `$name` for a system target.
        key: the key of the grain, or the instance of a system target.
        method: the name of the method, or `extension.method` for a method of an extension.
        body: the encoded arguments.
        ttl_s: seconds until the deadline; 0 means no deadline.
        caller: the grain whose turn makes the call, as `Type/key`; empty if there is none.
        chain: the ids of the turns that wait for this call.
        hops: how often the call was sent on to another silo.
        headers: the headers of the call, or None.
        depth: the number of turns in the chain of calls, this one included.
        role: the `Role` of the process that made the call. A silo overwrites this value in the
            calls of clients.
        flowing: the headers that the calls of the callee carry on, or None.
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
    flowing: dict[str, str] | None = None
    version: ClassVar[int] = 1


class VersionedCall(Call, tag=10, array_like=True, gc=False):
    """A call that was made through a class or contract whose version is above 1.

    It is a message of its own, so that an ordinary call has no field for the version.

    Attributes:
        version: the version of the class or contract. The call runs only in a silo that hosts this
            version of the grain type or a later one.
    """

    version: int = 1  # type: ignore[misc]  # a field in place of the constant of `Call`


class Reply(msgspec.Struct, tag=2, array_like=True, gc=False):
    """The result of a call.

    Attributes:
        id: the id of the call.
        body: the encoded result.
    """

    id: int
    body: msgspec.Raw


class Failure(msgspec.Struct, tag=3, array_like=True, gc=False):
    """The error of a call.

    Attributes:
        id: the id of the call.
        body: the encoded error, a `WireError` of the module `codec.failures`.
    """

    id: int
    body: msgspec.Raw


class Cancel(msgspec.Struct, tag=4, array_like=True, gc=False):
    """The caller gave up the call.

    Attributes:
        id: the id of the call.
    """

    id: int


class Redirect(msgspec.Struct, tag=5, array_like=True, gc=False):
    """The call did not run here.

    Attributes:
        id: the id of the call.
        silo: the address of the silo that has the grain. If it is empty, the caller must look up
            the grain again.
    """

    id: int
    silo: str


class Goodbye(msgspec.Struct, tag=6, array_like=True, gc=False):
    """The sender shuts down. The receiver must send it no new calls.

    In a handshake the message is a refusal.

    Attributes:
        reason: the reason, as text for a log.
    """

    reason: str


class Ping(msgspec.Struct, tag=7, array_like=True, frozen=True):
    """A sign of life.

    Attributes:
        wants_answer: True if the receiver should answer with a `Ping` of its own.
    """

    wants_answer: bool


class Proof(msgspec.Struct, tag=8, array_like=True, frozen=True):
    """A proof that the sender knows a secret.

    A silo proves the cluster's secret, an operator the operator's secret.

    Attributes:
        digest: the HMAC-SHA256, keyed with the secret, of the sender's side and both `Hello`
            messages.
    """

    digest: bytes


class GatewayView(msgspec.Struct, tag=9, array_like=True, frozen=True):
    """The gateways of a cluster, as a version of the membership table lists them.

    A silo sends this message to its clients, unasked or as an answer.

    Attributes:
        version: the version of the membership table.
        gateways: the gateways, each as `host:port@generation`.
    """

    version: int
    gateways: list[str]


Message = (
    Hello
    | Call
    | VersionedCall
    | Reply
    | Failure
    | Cancel
    | Redirect
    | Goodbye
    | Ping
    | Proof
    | GatewayView
)
"""Any message of the wire protocol."""


class Unreadable(NamedTuple):
    """A call whose names, headers or numbers cannot be read. `id` is 0 for a one-way call."""

    id: int
    why: str


encode_messages = msgspec.msgpack.Encoder().encode
"""Encode a list of messages as the payload of one frame."""
_decoder: msgspec.msgpack.Decoder[list[Message]] = msgspec.msgpack.Decoder(list[Message])
decode_messages = _decoder.decode
"""Decode the payload of a frame to a list of messages. Raises msgspec.DecodeError."""

CALL_TAG, VERSIONED_TAG = 1, 10
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_message = msgspec.msgpack.Decoder(Message).decode
_head = msgspec.msgpack.Decoder(
    tuple[(int, int, *[msgspec.Raw] * (len(Call.__struct_fields__) - 1))]  # type: ignore[misc]
).decode
_versioned_head = msgspec.msgpack.Decoder(
    tuple[(int, int, *[msgspec.Raw] * len(Call.__struct_fields__))]  # type: ignore[misc]
).decode


def count_of(payload: bytes) -> int:
    """Return the number of messages that a frame claims to contain, or 0 if it is no array.

    The messages themselves are not read.
    """
    first = payload[0] if payload else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F
    if first == 0xDC:
        return int.from_bytes(payload[1:3], "big")
    return int.from_bytes(payload[1:5], "big") if first == 0xDD else 0


def decode_each(payload: bytes) -> list[Message | Unreadable]:
    """Decode a frame that contains a call which cannot be read.

    Raises FrameError or msgspec.DecodeError if anything besides calls cannot be read.
    """
    return [_decode_one(raw) for raw in _raws(payload)]


def _decode_one(raw: msgspec.Raw) -> Message | Unreadable:
    try:
        message: Message = _message(raw)
        return message
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        has_version = len(_raws(raw)) > 1 + len(Call.__struct_fields__)
        tag, call_id, *_ = (_versioned_head if has_version else _head)(raw)
        if tag != (VERSIONED_TAG if has_version else CALL_TAG):
            raise FrameError(f"a message with tag {tag} cannot be read: {error}") from None
        return Unreadable(call_id, str(error))
