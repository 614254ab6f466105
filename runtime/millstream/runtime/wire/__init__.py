"""Bytes between two processes: framing, messages, links, connections.

What a program without a silo needs to speak with one is public here: frames and messages.

Owns framing, messages, the handshake, connections and links, and the secrets of a cluster. It knows
nothing of `definition`. Reading starts at `connection.py`.
May import `codec` and `runtime`.
"""

from .framing import HEADER_BYTES, FrameError, FrameReader, frame
from .message import (
    WIRE_VERSION,
    Call,
    Failure,
    GatewayView,
    Goodbye,
    Hello,
    Message,
    Ping,
    Redirect,
    Reply,
    decode_messages,
    encode_messages,
)

__all__ = [
    "HEADER_BYTES",
    "WIRE_VERSION",
    "Call",
    "Failure",
    "FrameError",
    "FrameReader",
    "GatewayView",
    "Goodbye",
    "Hello",
    "Message",
    "Ping",
    "Redirect",
    "Reply",
    "decode_messages",
    "encode_messages",
    "frame",
]
