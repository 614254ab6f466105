"""The network seam: byte links between addresses, and the asyncio implementation.

Owns: sockets. Not: frames, handshakes, calls (`connection`). The simulator implements the same
three Protocols (`testing.world.transport`). Invariants: a link calls its receiver only after
`start`, in order, on the loop's thread; `on_closed` is called exactly once and is the last call.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from millstream.runtime.errors import ClusterError, SiloUnavailable

from .address import Address

__all__ = [
    "Link",
    "LinkReceiver",
    "Listener",
    "TcpTransport",
    "Transport",
    "links_closed",
]

log = logging.getLogger("millstream.transport")

PROBE_REPLY_BYTES_MAX = 64
PROBE_LOOK_S = 0.5
PROBE_RETRY_S = 0.02
KEEPALIVE_IDLE_S = 15
KEEPALIVE_EVERY_S = 5
KEEPALIVE_PROBES_MAX = 4
BACKLOG = 128
REST_S = 1.0
CLOSING_ITERATIONS = 6  # accepted, made, given to us, aborted, told, closed


class LinkReceiver(Protocol):
    """What a link tells its user; all calls on the loop's thread, none may block."""

    def on_received(self, data: bytes, /) -> None: ...
    def writable(self, is_writable: bool, /) -> None: ...
    def on_closed(self, reason: str, /) -> None: ...


class Link(Protocol):
    """A duplex, ordered byte channel to one peer.

    `waiting_bytes`: written, and not taken by the system yet.
    """

    @property
    def peer(self) -> str: ...
    @property
    def waiting_bytes(self) -> int: ...
    def start(self, receiver: LinkReceiver, /) -> None: ...
    def write(self, data: bytes, /) -> None: ...
    def reading(self, is_on: bool, /) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class Listener(Protocol):
    """Something that listens, until closed."""

    @property
    def address(self) -> Address: ...
    def close(self) -> None: ...


class Transport(Protocol):
    """How links are made. One implementation for sockets, one for the simulator."""

    async def connect(self, address: Address, /) -> Link: ...
    async def listen(self, address: Address, accept: Callable[[Link], None], /) -> Listener: ...
    def listen_probe(self, address: Address, answer: Callable[[], bytes], /) -> Listener: ...
    async def probe(self, address: Address, timeout_s: float, /) -> bytes: ...


class TcpLink(asyncio.Protocol):
    """A TCP connection as a `Link`."""

    __slots__ = (
        "_accept",
        "_early",
        "_is_writable",
        "_lost",
        "_receiver",
        "_transport",
        "peer",
        "write",
    )

    def __init__(self, accept: Callable[[Link], None] | None = None) -> None:
        self._accept = accept
        self._receiver: LinkReceiver | None = None
        self._transport: Any = None
        self._early: list[bytes] = []
        self._is_writable = True
        self._lost = ""
        self.peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.write: Any = self._transport.write  # as a function, pyright takes it for a method
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
        name = transport.get_extra_info("peername")
        self.peer = str(Address(name[0], name[1])) if isinstance(name, tuple) else str(name)
        if self._accept is not None:
            self._accept(self)

    def start(self, receiver: LinkReceiver, /) -> None:
        self._receiver = receiver
        for data in self._early:
            receiver.on_received(data)
        self._early = []
        if not self._is_writable:
            receiver.writable(False)
        if self._lost:
            self._receiver = None
            receiver.on_closed(self._lost)

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:
            self._early.append(data)
        else:
            self._receiver.on_received(data)

    def pause_writing(self) -> None:
        self._is_writable = False
        if self._receiver is not None:
            self._receiver.writable(False)

    def resume_writing(self) -> None:
        self._is_writable = True
        if self._receiver is not None:
            self._receiver.writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        receiver, self._receiver = self._receiver, None
        self._lost = "closed by peer" if exc is None else f"{type(exc).__name__}: {exc}"
        if receiver is not None:
            receiver.on_closed(self._lost)

    @property
    def waiting_bytes(self) -> int:
        size: int = self._transport.get_write_buffer_size()
        return size

    def reading(self, is_on: bool, /) -> None:
        with suppress(RuntimeError):  # the transport may be closing
            self._transport.resume_reading() if is_on else self._transport.pause_reading()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


def keep_alive(sock: socket.socket) -> None:
    """Let the system find out that the other machine is gone, where it knows how."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_EVERY_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES_MAX),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class TcpListener:
    """Listening sockets, and the links of those who connect.

    It accepts by itself: an `asyncio.Server` that is closed while it makes a link of what it has
    accepted forgets it, open, until the collector finds it (seen with CPython 3.11).
    """

    def __init__(self, sockets: list[socket.socket], accept: Callable[[Link], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._accept = accept
        self._making: dict[asyncio.Task[Any], None] = {}
        host, port = sockets[0].getsockname()[:2]
        self.address = Address(host, port)
        for sock in sockets:
            self._listen(sock)

    def _listen(self, sock: socket.socket) -> None:
        if sock in self._sockets:
            self._loop.add_reader(sock, self._take, sock)

    def _take(self, sock: socket.socket) -> None:
        """Accept who waits there."""
        for _ in range(BACKLOG):
            try:
                peer, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # above all, no descriptors: they may come back
                log.warning("nobody can connect to %s for %g s: %s", self.address, REST_S, error)
                self._loop.remove_reader(sock)
                self._loop.call_later(REST_S, self._listen, sock)
                return
            peer.setblocking(False)
            task = self._loop.create_task(self._make(peer))
            self._making[task] = None
            task.add_done_callback(self._on_made)

    async def _make(self, peer: socket.socket) -> None:
        """Give a connection its link, which is shown to whoever accepts."""
        try:
            await self._loop.connect_accepted_socket(lambda: TcpLink(self._accept), peer)
        except (OSError, ValueError) as error:  # it went as soon as it came
            peer.close()
            log.debug("a connection to %s was lost at once: %s", self.address, error)

    def _on_made(self, task: asyncio.Task[Any]) -> None:
        del self._making[task]

    def close(self) -> None:
        """Listen no more. What was accepted before becomes a link in the next iterations."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            self._loop.remove_reader(sock)
            sock.close()


class ProbeListener:
    """Answers probes from a thread of its own, so that a busy loop is told from a dead process.

    When the process has no descriptors left, a spare one is given up for each answer. `answer` is
    called now and then though nobody asks: it may look at what it tells of.
    """

    def __init__(self, address: Address, answer: Callable[[], bytes]) -> None:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=64)
        self._socket.settimeout(PROBE_LOOK_S)
        host, port = self._socket.getsockname()[:2]
        self.address = Address(host, port)
        self._answer = answer
        self._spare = self._open_spare()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="millstream-probe", daemon=True)
        self._thread.start()

    def _open_spare(self) -> int | None:
        try:
            return os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return None

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                self._serve_one()
            except TimeoutError:
                with suppress(Exception):
                    self._answer()
            except OSError:  # above all, no descriptors: they may come back
                self._give_spare()
        if self._spare is not None:
            os.close(self._spare)

    def _serve_one(self) -> None:
        peer, _ = self._socket.accept()
        with peer, suppress(Exception):  # whatever goes wrong, the next probe is answered
            peer.sendall(self._answer())

    def _give_spare(self) -> None:
        """Answer one probe with the descriptor that was kept for that."""
        if self._spare is None:
            self._closed.wait(PROBE_RETRY_S)
        else:
            os.close(self._spare)
            with suppress(OSError):
                self._serve_one()
        self._spare = self._open_spare()

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class TcpTransport:
    """Links over TCP with TCP_NODELAY."""

    def __init__(self, connect_timeout_s: float = 5.0) -> None:
        self._connect_timeout_s = connect_timeout_s

    async def connect(self, address: Address, /) -> Link:
        """Open a link. Raises SiloUnavailable naming the address and the reason."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, link = await loop.create_connection(TcpLink, address.host, address.port)
        except (OSError, TimeoutError) as error:
            raise SiloUnavailable(cannot_connect(address, error), may_have_run=False) from None
        return link

    async def listen(self, address: Address, accept: Callable[[Link], None], /) -> Listener:
        """Listen on an address. Raises ClusterError naming the address and the reason."""
        loop = asyncio.get_running_loop()
        try:
            infos = await loop.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            return TcpListener(bound(infos), accept)
        except OSError as error:
            raise cannot_listen(address, error) from error

    def listen_probe(self, address: Address, answer: Callable[[], bytes], /) -> Listener:
        """Answer probes in a thread. Raises ClusterError naming the address and the reason."""
        try:
            return ProbeListener(address, answer)
        except OSError as error:
            raise cannot_listen(address, error) from error

    async def probe(self, address: Address, timeout_s: float, /) -> bytes:
        """Ask a probe port; raises OSError or TimeoutError when no answer came."""
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                return await reader.read(PROBE_REPLY_BYTES_MAX)
            finally:
                writer.close()


def bound(infos: list[tuple[Any, ...]]) -> list[socket.socket]:
    """Listening sockets at all addresses that a name has here, but those of a family that this
    machine does not speak. Raises OSError."""
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    try:
        for family, _, _, _, name in dict.fromkeys(infos):
            try:
                sockets.append(socket.create_server(name, family=family, backlog=BACKLOG))
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:
                    raise
                refused = error
            else:
                sockets[-1].setblocking(False)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    if refused is not None and not sockets:
        raise refused
    return sockets


def cannot_connect(address: Address, error: Exception) -> str:
    """Why nobody was reached at an address."""
    if isinstance(error, socket.gaierror):
        text = f"no host {address.host!r} is known here"
    elif isinstance(error, ConnectionRefusedError):
        text = "nobody listens there"
    else:
        text = str(error) or "timed out"
    return f"cannot connect to {address}: {text}"


def cannot_listen(address: Address, error: OSError) -> ClusterError:
    """What is wrong with an address to listen on, and what to do."""
    if isinstance(error, socket.gaierror):
        text = f"no host {address.host!r} is known here: name one of this machine"
    elif error.errno == errno.EADDRINUSE:
        text = "the port is taken: end the program that has it, or take another (0: a free one)"
    elif error.errno == errno.EADDRNOTAVAIL:
        text = f"{address.host} is no address of this machine: name one that is"
    elif error.errno in (errno.EACCES, errno.EPERM):
        text = "this user may not listen there: take a port above 1023"
    else:
        text = error.strerror or str(error)
    return ClusterError(f"cannot listen on {address}: {text}")


async def links_closed() -> None:
    """Let the loop end what was closed, and what it was just accepting."""
    for _ in range(CLOSING_ITERATIONS):
        await asyncio.sleep(0)
