"""One blocking connection to a gateway: sockets, frames and the opening `Hello`s.

Owns: the socket. Not: which calls are out (`window`), reconnecting (`link`). Invariants: a `Wire`
that exists has said and heard `Hello`; after any error from its methods it must be closed.
`BROKEN` lists the errors after which another connection may help.
"""

from __future__ import annotations

import os
import socket

import msgspec

from millstream.runtime.wire import (
    HEADER_BYTES,
    WIRE_VERSION,
    Failure,
    FrameError,
    FrameReader,
    Goodbye,
    Hello,
    Message,
    Ping,
    decode_messages,
    encode_messages,
    frame,
)

from .window import failure_text

__all__ = ["BROKEN", "HandshakeRefused", "Wire"]

BROKEN = (OSError, FrameError, msgspec.DecodeError)
FRAME_BYTES_MAX = 1 << 20  # of what a gateway sends: replies and error texts
READ_BYTES = 1 << 16
SIGN = frame(encode_messages([Ping(False)]))


class HandshakeRefused(Exception):
    """The gateway is of another cluster or version, or does not want us: trying again is no use."""


class Wire:
    """A connection that is ready for calls."""

    __slots__ = ("_frame_bytes_max", "_reader", "_socket", "address")

    def __init__(self, address: tuple[str, int], cluster: str, timeout_s: float) -> None:
        """Connect and exchange `Hello`. Raises one of BROKEN, or HandshakeRefused."""
        self.address = address
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._socket = socket.create_connection(address, timeout=timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._frame_bytes_max = self._greet(cluster, timeout_s)
        except BaseException:
            self._socket.close()
            raise

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send a whole frame. Raises ValueError if it is larger than the gateway takes."""
        if len(data) - HEADER_BYTES > self._frame_bytes_max:
            raise ValueError(
                f"a chunk has {len(data) - HEADER_BYTES} bytes, gateway {self.name} takes "
                f"{self._frame_bytes_max}: write a smaller option 'chunk_rows'"
            )
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)

    def receive(self, timeout_s: float) -> list[Message]:
        """What has come, waiting for the first bytes; [] if a frame is not whole yet."""
        self._socket.settimeout(timeout_s)
        data = self._socket.recv(READ_BYTES)
        if not data:
            raise ConnectionResetError(f"gateway {self.name} closed the connection")
        payloads = self._reader.feed(data)
        found = [message for payload in payloads for message in decode_messages(payload)]
        pings = [message for message in found if isinstance(message, Ping)]
        if any(ping.wants_answer for ping in pings):
            self._socket.sendall(SIGN)
        return [message for message in found if message not in pings] if pings else found

    def silent(self) -> bool:
        """Nothing has come, not even the end of the stream. Does not wait."""
        self._socket.settimeout(0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Drop the connection."""
        self._socket.close()

    @property
    def name(self) -> str:
        """host:port, for messages."""
        return f"{self.address[0]}:{self.address[1]}"

    def _greet(self, cluster: str, timeout_s: float) -> int:
        sender = f"spark/{socket.gethostname()}/{os.getpid()}"
        hello = Hello(WIRE_VERSION, cluster, sender, False, FRAME_BYTES_MAX)
        self._socket.sendall(frame(encode_messages([hello])))
        messages: list[Message] = []
        while not messages:
            messages = self.receive(timeout_s)
        match messages[0]:
            case Hello() as answer:
                self._compare(hello, answer)
                return answer.frame_bytes_max
            case Failure(body=body):
                raise HandshakeRefused(f"gateway {self.name} refused: {failure_text(body)}")
            case Goodbye(reason=reason):
                raise ConnectionRefusedError(f"gateway {self.name} said goodbye: {reason}")
            case other:
                raise HandshakeRefused(f"gateway {self.name} began with {type(other).__name__}")

    def _compare(self, ours: Hello, answer: Hello) -> None:
        if answer.version != ours.version:
            raise HandshakeRefused(
                f"gateway {self.name} speaks wire version {answer.version}, we speak {ours.version}"
            )
        if answer.cluster != ours.cluster:
            raise HandshakeRefused(
                f"gateway {self.name} is of cluster {answer.cluster!r}, option 'cluster' is "
                f"{ours.cluster!r}"
            )
