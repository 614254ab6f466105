"""A minimal NATS client for the benchmarks, and the check for a usable server.

The client can publish, subscribe and request. It uses the text protocol itself, so that the peer
pays for no library. It does not request messages with headers.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

__all__ = ["Nats", "NatsRefused", "connected", "nats_lacks"]

SYNCS_SINCE = (2, 10)
"""The first version that can sync each message."""

ANSWER_S = 30.0
Heard = Callable[[str, bytes], None]
"""A function that gets a message: the subject for answers, and the payload."""


class NatsRefused(Exception):
    """The server answered with an error."""


class Nats(asyncio.Protocol):
    """One connection. `publish` is a request, which JetStream answers once it has stored it."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._rest = b""
        self._heard: dict[bytes, Heard] = {}
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._last = 0

    # --- called by the program ---

    def publish(self, subject: str, payload: bytes) -> asyncio.Future[bytes]:
        """Send a message; the future is its answer."""
        self._last += 1
        inbox = f"_INBOX.{id(self)}.{self._last}".encode()
        future = self._waiting[inbox] = asyncio.get_running_loop().create_future()
        self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(payload), payload))
        return future

    async def ask(self, subject: str, **values: object) -> dict[str, Any]:
        """Call JetStream's interface. Raises NatsRefused, TimeoutError."""
        async with asyncio.timeout(ANSWER_S):
            answer: dict[str, Any] = json.loads(
                await self.publish(f"$JS.API.{subject}", json.dumps(values).encode())
            )
        if "error" in answer:
            raise NatsRefused(f"{subject}: {answer['error']}")
        return answer

    def subscribe(self, subject: str, heard: Heard) -> None:
        """Call `heard` for messages from now on."""
        number = str(len(self._heard)).encode()
        self._heard[number] = heard
        self.send(b"SUB %b %b\r\n" % (subject.encode(), number))

    def send(self, data: bytes) -> None:
        """Write bytes in the server's format."""
        self._transport.write(data)

    # --- called by the loop ---

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\n')
        self.subscribe(f"_INBOX.{id(self)}.*", lambda reply, payload: None)

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            if not line.startswith(b"MSG "):
                self._line(line)
                at = end + 2
                continue
            _, subject, number, *reply, size = line.split(b" ")
            begin, end = end + 2, end + 2 + int(size)
            if len(data) < end + 2:
                break
            self._message(subject, number, reply, data[begin:end])
            at = end + 2
        self._rest = data[at:]

    def _line(self, line: bytes) -> None:
        if line == b"PING":
            self.send(b"PONG\r\n")
        assert not line.startswith(b"-ERR"), line

    def _message(self, subject: bytes, number: bytes, reply: list[bytes], payload: bytes) -> None:
        future = self._waiting.pop(subject, None)
        if future is None:
            self._heard[number](b"".join(reply).decode(), payload)
        elif not future.done():
            future.set_result(payload)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


async def connected(port: int) -> Nats:
    """Connect to a server of this machine. Raises OSError."""
    _, found = await asyncio.get_running_loop().create_connection(Nats, "127.0.0.1", port)
    return found


def nats_lacks() -> str:
    """Return the reason why the server cannot run; "" if it can run."""
    path = shutil.which("nats-server")
    if path is None:
        return "no nats-server here"
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    if found is None or tuple(map(int, found.groups())) < SYNCS_SINCE:
        return f"{said.strip()} cannot sync each message, v2.10 and later can"
    return ""
