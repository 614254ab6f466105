"""The messages on a connection: MessagePack arrays with an integer tag. No I/O.

Owns: the wire form of calls, replies and control messages. Not: frames (`framing`), bodies
(`codec`): a body stays bytes until the callee's typed decoder sees it.
Invariants: a frame is one array of messages; `id` is unique per connection and direction, 0 for
one-way calls; the first frame of either side is exactly one `Hello`.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "WIRE_VERSION",
    "Call",
    "Cancel",
    "Failure",
    "Goodbye",
    "Hello",
    "Message",
    "Redirect",
    "Reply",
    "decode_messages",
    "encode_messages",
]

WIRE_VERSION = 1


class Hello(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """Who speaks, in which cluster, and the largest frame that it takes."""

    version: int
    cluster: str
    sender: str
    is_silo: bool
    frame_bytes_max: int


class Call(msgspec.Struct, tag=1, array_like=True, gc=False):
    """A request. `ttl_s` is the time left (0: none); `chain` the turn ids that wait for it;
    `depth` how many turns do.

    `kind` is a grain type, or `$name` for a system target; `method` may be `extension.method`.
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


Message = Hello | Call | Reply | Failure | Cancel | Redirect | Goodbye

encode_messages = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[list[Message]] = msgspec.msgpack.Decoder(list[Message])
decode_messages = _decoder.decode
