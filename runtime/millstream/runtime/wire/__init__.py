"""The wire protocol: messages, frames and connections between two processes.

A program that speaks to a silo without the rest of Millstream uses the names exported here. It
encodes messages with `encode_messages`, puts them into a frame with `frame`, cuts received bytes
into payloads with `FrameReader`, and decodes these with `decode_messages`.

Owns frames, messages, the handshake, connections and links, and the secrets of a cluster. The
package knows nothing of `definition`. Reading starts at `connection.py`.

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
