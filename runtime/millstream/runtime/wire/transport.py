"""The network seam: byte links between addresses, and their implementation with asyncio.

This module owns sockets. `connection` owns frames, handshakes and calls. The simulator implements
the same Protocols in `testing.world.transport`.

Invariants:

- A link calls its receiver only after `start`, in order, on the thread of the event loop.
- A link calls `on_closed` exactly once, as its last call.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from millstream.runtime.errors import ClusterError, ConfigError, SiloUnavailable
from millstream.runtime.options import check_kind
from millstream.runtime.repeated import Repeated
from millstream.runtime.role import Role

from .address import Address
from .certified_name import CertifiedName, name_in, uri_of
from .tls import Tls, TlsFiles, explain

__all__ = [
    "Link",
    "LinkReceiver",
    "Listener",
    "TcpTransport",
    "Transport",
    "links_closed",
    "make_transport",
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
WARNED_EVERY_S = 10.0
HANDSHAKES_MAX = 256
"""Accepted connections whose link is not made yet. One more replaces the oldest of them."""
HANDSHAKE_S = 5.0
"""Longest time of a handshake of TLS, in seconds."""
SHUTDOWN_S = 2.0
"""How long a link that closes waits for the other process to confirm the end of TLS, in seconds."""
# loop iterations to close a link: accept, create, hand over, abort, notify, close
CLOSING_ITERATIONS = 6


class LinkReceiver(Protocol):
    """Receiver of the events of a link.

    The link calls every method on the thread of the event loop. No method may block.
    """

    def on_received(self, data: bytes, /) -> None:
        """Bytes have arrived, in order and in any portions."""
        ...

    def writable(self, is_writable: bool, /) -> None:
        """The link is full (False), or accepts more bytes again (True)."""
        ...

    def on_closed(self, reason: str, /) -> None:
        """The link has closed, for the given reason. The link calls no method after this one."""
        ...


class Link(Protocol):
    """A channel for bytes to one other process, in both directions and in order.

    A `Transport` creates links. A link holds back received bytes until `start`.
    """

    @property
    def peer(self) -> str:
        """The address of the other process as text, for messages and logs."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were written but that the operating system has not taken yet."""
        ...

    @property
    def certified(self) -> CertifiedName | None:
        """The name in the certificate of the other process. None: the link has no certificates."""
        ...

    def start(self, receiver: LinkReceiver, /) -> None:
        """Deliver received bytes and events to this receiver from now on.

        Args:
            receiver: gets the bytes that arrived before, then all later events. If the link has
                already closed, `start` calls its `on_closed`.
        """
        ...

    def write(self, data: bytes, /) -> None:
        """Send bytes without waiting.

        The link buffers bytes that the operating system does not take at once. It calls
        `writable(False)` when its buffer is full, but accepts further bytes.

        Args:
            data: the bytes to send.
        """
        ...

    def reading(self, is_on: bool, /) -> None:
        """Pause or resume reading, for back-pressure on the other process.

        Args:
            is_on: False to pause, True to resume.
        """
        ...

    def close(self) -> None:
        """Close the link after the buffered bytes are sent."""
        ...

    def abort(self) -> None:
        """Close the link at once and drop the buffered bytes."""
        ...


class Listener(Protocol):
    """A listening address. It accepts links until `close`."""

    @property
    def address(self) -> Address:
        """The address of the listener, with the real port if port 0 was requested."""
        ...

    def close(self) -> None:
        """Stop listening. Accepted links stay open."""
        ...


class Transport(Protocol):
    """The seam through which silos and clients reach the network.

    `TcpTransport` implements it with sockets, and the testing kit with a simulated network. Besides
    links, a transport carries probes: one short answer from a port of its own, by which other silos
    check that a process lives.
    """

    async def connect(self, address: Address, /) -> Link:
        """Open a link to a listener.

        Args:
            address: the address of the listener.

        Returns:
            The open link. Call its `start` to receive bytes.

        Raises:
            SiloUnavailable: the address cannot be reached. The error names the address and the
                reason.
        """
        ...

    async def listen(self, address: Address, accept: Callable[[Link], None], /) -> Listener:
        """Listen for links.

        Args:
            address: the address to listen on. Port 0 selects a free port.
            accept: called with each new link, on the thread of the event loop. It must call `start`
                of the link.

        Returns:
            The listener. Its `address` has the real port.

        Raises:
            ClusterError: this process cannot listen there. The error names the address and the
                reason.
        """
        ...

    def listen_probe(self, address: Address, answer: Callable[[], bytes], /) -> Listener:
        """Listen for probes and answer each with a short text.

        Args:
            address: the address to listen on. Port 0 selects a free port.
            answer: returns the answer, at most 64 bytes. `TcpTransport` calls it in a thread of its
                own, now and then also without a probe.

        Returns:
            The listener. Its `address` has the real port.

        Raises:
            ClusterError: this process cannot listen there. The error names the address and the
                reason.
        """
        ...

    async def probe(self, address: Address, timeout_s: float, /) -> bytes:
        """Ask a probe listener for its answer.

        Args:
            address: the address of the probe listener.
            timeout_s: seconds to wait for the answer.

        Returns:
            The answer.

        Raises:
            OSError: the address cannot be reached.
            TimeoutError: no answer arrived in time.
        """
        ...


class TcpLink(asyncio.Protocol):
    """A TCP connection as a `Link`."""

    __slots__ = (
        "_accept",
        "_early",
        "_is_writable",
        "_lost",
        "_receiver",
        "_transport",
        "certified",
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
        self.certified: CertifiedName | None = None
        self.peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.write: Any = self._transport.write  # pyright takes a function for a method
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(sock)
        name = transport.get_extra_info("peername")
        self.peer = str(Address(name[0], name[1])) if isinstance(name, tuple) else str(name)
        if transport.get_extra_info("sslcontext") is not None:
            self.certified = name_in(transport.get_extra_info("peercert"))
            if self.certified is None:
                log.warning("%s has a certificate without a name of a silo or client", self.peer)
                self._transport.abort()
                return
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
        self._lost = "closed by peer" if exc is None else why_lost(exc)
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


def why_lost(error: Exception) -> str:
    """Return the reason why a link was lost."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {explain(error)}"
    return f"{type(error).__name__}: {error}"


def keep_alive(sock: socket.socket) -> None:
    """Let the operating system detect that the other machine is gone, where it supports that."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_EVERY_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES_MAX),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class TcpListener:
    """Listening sockets, and the links that they accept.

    The class accepts connections itself. An `asyncio.Server` that is closed while it creates a link
    for an accepted connection leaves that connection open until garbage collection (seen with
    CPython 3.11).

    Args:
        tls: The files for TLS. None: connections are not encrypted.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        accept: Callable[[Link], None],
        tls: TlsFiles | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._accept = accept
        self._tls = tls
        self._failures = Repeated(log, self._loop.time, WARNED_EVERY_S)
        self._making: dict[asyncio.Task[Any], None] = {}
        host, port = sockets[0].getsockname()[:2]
        self.address = Address(host, port)
        for sock in sockets:
            self._listen(sock)

    def _listen(self, sock: socket.socket) -> None:
        if sock in self._sockets:
            self._loop.add_reader(sock, self._take, sock)

    def _take(self, sock: socket.socket) -> None:
        """Accept the connections that wait at a socket."""
        for _ in range(BACKLOG):
            try:
                peer, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # usually no free descriptors, which may be temporary
                log.warning("%s accepts no connections for %g s: %s", self.address, REST_S, error)
                self._loop.remove_reader(sock)
                self._loop.call_later(REST_S, self._listen, sock)
                return
            peer.setblocking(False)
            if len(self._making) >= HANDSHAKES_MAX:
                oldest = next(iter(self._making))
                del self._making[oldest]
                oldest.cancel()  # it may be a stranger that stays silent
            task = self._loop.create_task(self._make(peer))
            self._making[task] = None
            task.add_done_callback(self._on_made)

    async def _make(self, peer: socket.socket) -> None:
        """Create the link of an accepted connection, and pass it to `accept`."""
        encrypted: dict[str, Any] = {}
        where = "?"
        try:
            where = peer.getpeername()[0]
            if self._tls is not None:
                encrypted = encryption_of(self._tls.contexts().accepting)
            await self._loop.connect_accepted_socket(
                lambda: TcpLink(self._accept), peer, **encrypted
            )
        except ssl.SSLError as error:
            peer.close()
            text = f"a connection of {where} to {self.address} is refused: {explain(error)}"
            self._failures.note(text, about=where)
        except (OSError, ValueError) as error:  # it closed at once
            peer.close()
            log.debug("an accepted connection to %s was lost at once: %s", self.address, error)

    def _on_made(self, task: asyncio.Task[Any]) -> None:
        self._making.pop(task, None)

    def close(self) -> None:
        """Stop listening. Accepted connections become links in the next iterations."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            self._loop.remove_reader(sock)
            sock.close()


class ProbeListener:
    """Answers probes in a thread of its own, so a busy event loop does not look like a crash.

    When the process has no free file descriptors, a spare one is closed to answer a probe. `answer`
    is also called now and then without a probe, so that it can check the state that it reports.
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
            except OSError:  # usually no free descriptors, which may be temporary
                self._give_spare()
        if self._spare is not None:
            os.close(self._spare)

    def _serve_one(self) -> None:
        peer, _ = self._socket.accept()
        with peer, suppress(Exception):  # an error must not end the thread
            peer.sendall(self._answer())

    def _give_spare(self) -> None:
        """Close the spare descriptor to answer one probe, then reserve a new one."""
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
    """A `Transport` over TCP sockets. This is the transport of `Silo` and `connect` by default.

    Links have TCP_NODELAY and keep-alive. Probes are not encrypted: they carry no secret.

    Args:
        connect_timeout_s: seconds to wait for a connection and its handshake of TLS; default 5.
        tls: the files for TLS. None: links are not encrypted.

    Raises:
        ConfigError: the files of `tls` cannot be used.
    """

    def __init__(self, connect_timeout_s: float = 5.0, tls: Tls | None = None) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._tls = None if tls is None else TlsFiles(tls)

    @property
    def certified(self) -> CertifiedName | None:
        """The name in the certificate of this process. None: links are not encrypted."""
        return None if self._tls is None else self._tls.own

    async def connect(self, address: Address, /) -> Link:
        """Open a link to a listener, within `connect_timeout_s`.

        Args:
            address: the address of the listener.

        Returns:
            The open link. Call its `start` to receive bytes.

        Raises:
            SiloUnavailable: the host is unknown, refuses the connection, or does not answer in
                time.
        """
        loop = asyncio.get_running_loop()
        encrypted: dict[str, Any] = {}
        if self._tls is not None:
            encrypted = encryption_of(self._tls.contexts().opening)
            encrypted["server_hostname"] = address.host
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, link = await loop.create_connection(
                    TcpLink, address.host, address.port, **encrypted
                )
        except (OSError, TimeoutError) as error:
            raise SiloUnavailable(cannot_connect(address, error), may_have_run=False) from None
        return link

    async def listen(self, address: Address, accept: Callable[[Link], None], /) -> Listener:
        """Listen for links at every local address that the host name has.

        Args:
            address: the address to listen on. Port 0 selects a free port.
            accept: called with each new link, on the thread of the event loop. It must call `start`
                of the link.

        Returns:
            The listener. Its `address` has the real port.

        Raises:
            ClusterError: the port is in use, or the address does not belong to this machine or
                user.
        """
        loop = asyncio.get_running_loop()
        try:
            infos = await loop.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            return TcpListener(bound(infos), accept, self._tls)
        except OSError as error:
            raise cannot_listen(address, error) from error

    def listen_probe(self, address: Address, answer: Callable[[], bytes], /) -> Listener:
        """Answer probes in a thread of its own.

        Args:
            address: the address to listen on. Port 0 selects a free port.
            answer: returns the answer, at most 64 bytes. The thread also calls it now and then
                without a probe, so that it can check the state that it reports.

        Returns:
            The listener. Its `address` has the real port.

        Raises:
            ClusterError: the port is in use, the address does not belong to this machine, or the
                user may not listen on the port.
        """
        try:
            return ProbeListener(address, answer)
        except OSError as error:
            raise cannot_listen(address, error) from error

    async def probe(self, address: Address, timeout_s: float, /) -> bytes:
        """Ask a probe listener for its answer, of which at most 64 bytes are read.

        Args:
            address: the address of the probe listener.
            timeout_s: seconds to wait for the answer.

        Returns:
            The answer.

        Raises:
            OSError: the address cannot be reached.
            TimeoutError: no answer arrived in time.
        """
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                return await reader.read(PROBE_REPLY_BYTES_MAX)
            finally:
                writer.close()


def make_transport(
    given: Transport | None, tls: Tls | None, cluster: object, role: Role, where: str
) -> Transport:
    """Return the transport of a silo or a client.

    Args:
        given: the transport of the program.
        tls: the files for TLS.
        cluster: the cluster of the process.
        role: the role that the certificate must have.
        where: the name of the call, for error texts.

    Raises:
        ConfigError: both a transport and `tls` are given, or the certificate is of another cluster
            or role, or cannot be used.
    """
    if tls is None:
        return TcpTransport() if given is None else given
    check_kind(f"{where}(tls=...)", tls, Tls)
    if given is not None:
        raise ConfigError(f"{where}: pass either tls or transport: TcpTransport(tls=...)")
    try:
        made = TcpTransport(tls=tls)
    except ConfigError as error:
        raise ConfigError(f"{where}(tls=...): {error}") from None
    own = made.certified
    if own is not None and (own.cluster, own.role) != (cluster, role):
        wanted = uri_of(CertifiedName(str(cluster), role, "NAME"))
        raise ConfigError(
            f"{where}(tls=...): the certificate {tls.certificate} is of {uri_of(own)}, and must be "
            f"of {wanted}"
        )
    return made


def bound(infos: list[tuple[Any, ...]]) -> list[socket.socket]:
    """Open a listening socket for each address that a host name has on this machine.

    Address families that the machine does not support are skipped. Raises OSError.
    """
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


def encryption_of(context: ssl.SSLContext) -> dict[str, Any]:
    """Return the arguments with which a connection uses TLS."""
    return {
        "ssl": context,
        "ssl_handshake_timeout": HANDSHAKE_S,
        "ssl_shutdown_timeout": SHUTDOWN_S,
    }


def cannot_connect(address: Address, error: Exception) -> str:
    """Return the reason why an address cannot be reached."""
    if isinstance(error, socket.gaierror):
        text = f"cannot resolve host {address.host!r}"
    elif isinstance(error, ConnectionRefusedError):
        text = "no process listens there"
    elif isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
        text = explain(error)
    else:
        text = str(error) or "timed out"
    return f"cannot connect to {address}: {text}"


def cannot_listen(address: Address, error: OSError) -> ClusterError:
    """Return the error for an address that this process cannot listen on, with advice."""
    if isinstance(error, socket.gaierror):
        text = f"cannot resolve host {address.host!r}: use a name or address of this machine"
    elif error.errno == errno.EADDRINUSE:
        text = "the port is in use: end the program that uses it, or choose another (0: a free one)"
    elif error.errno == errno.EADDRNOTAVAIL:
        text = f"{address.host} is not an address of this machine: use one of its addresses"
    elif error.errno in (errno.EACCES, errno.EPERM):
        text = "this user may not listen on that port: use a port above 1023"
    else:
        text = error.strerror or str(error)
    return ClusterError(f"cannot listen on {address}: {text}")


async def links_closed() -> None:
    """Let the event loop finish closing links, and accepting the last ones."""
    for _ in range(CLOSING_ITERATIONS):
        await asyncio.sleep(0)
