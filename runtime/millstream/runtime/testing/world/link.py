"""Simulated links: two ends, and one pipe for each direction.

This module owns `SimLink`, an implementation of `wire.transport.Link`. Bytes in transit are in
`pipe`, delays and faults in `network`, and listeners in `transport`. A receiver is called in the
context of its own host, only after `start`. `on_closed` is called once, and last. Bytes that wait
in a pipe count against the writer: above HIGH_WATER_BYTES it must stop, and at LOW_WATER_BYTES it
may continue.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from enum import Enum

from millstream.runtime.wire.transport import LinkReceiver

from .host import Host
from .pipe import Pipe, Wire

__all__ = ["HIGH_WATER_BYTES", "LOW_WATER_BYTES", "SimLink", "link_pair"]

HIGH_WATER_BYTES = 64 * 1024
LOW_WATER_BYTES = 16 * 1024


class LinkState(Enum):
    """The state of one end. A closing end still sends its written bytes."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class SimLink:
    """One end of a link; implements `wire.transport.Link`."""

    __slots__ = (
        "_end_reason",
        "_inbound",
        "_is_reading",
        "_is_writable",
        "_receiver",
        "_state",
        "_wire",
        "host",
        "outbound",
        "peer",
    )
    _inbound: Pipe
    outbound: Pipe
    certified = None

    def __init__(self, wire: Wire, host: Host, peer: str) -> None:
        self.host = host
        self.peer = peer
        self._wire = wire
        self._receiver: LinkReceiver | None = None
        self._state = LinkState.OPEN
        self._end_reason = ""
        self._is_reading = True
        self._is_writable = True

    def attach(self, inbound: Pipe, outbound: Pipe) -> None:
        """Set the two pipes of the end, once."""
        self._inbound = inbound
        self.outbound = outbound

    def context(self) -> Context:
        """Return the context of this end's callbacks; outside of every host if its own has
        crashed.
        """
        return self.host.context() if self.host.alive else Context()

    def _soon(self, callback: Callable[[], None]) -> None:
        self._wire.loop.call_soon(callback, context=self.host.context())

    def start(self, receiver: LinkReceiver, /) -> None:
        """Begin to receive. Bytes that arrived before come first."""
        assert self._receiver is None, "a link is started once"
        self._receiver = receiver
        if self._end_reason:
            self._soon(self._tell_closed)
        elif not self._is_writable:
            self._soon(self._tell_writable)
        self._inbound.arm()

    def write(self, data: bytes, /) -> None:
        """Send bytes. It does nothing once the link is closing."""
        if self._state is not LinkState.OPEN or not data:
            return
        self.outbound.send(bytes(data))
        if self._is_writable and self.outbound.pending_bytes > HIGH_WATER_BYTES:
            self._is_writable = False
            if self._receiver is not None:
                self._receiver.writable(False)

    @property
    def waiting_bytes(self) -> int:
        """The bytes that were written and not delivered."""
        return self.outbound.pending_bytes

    def reading(self, is_on: bool, /) -> None:
        """Take bytes, or leave them in the pipe, where they count against the writer."""
        self._is_reading = is_on
        self._inbound.arm()

    def close(self) -> None:
        """End after the written bytes. It waits for a peer that does not read; `abort` does not."""
        if self._state is LinkState.OPEN:
            self._state = LinkState.CLOSING
            self.outbound.end("closed by peer")
            self.on_drained(self.outbound.pending_bytes)

    def abort(self) -> None:
        """End at once. The peer gets an unknown part of the written bytes."""
        if self._state is not LinkState.CLOSED:
            self.outbound.cut()
            self.outbound.end("connection reset by peer")
            self.on_lost("aborted", is_clearing=False)

    def crash(self, is_silent: bool) -> None:
        """End because the host of this end crashed. A silent end is noticed only by time-outs."""
        self._wire.loop.keep((self, self._receiver))
        if self._state is not LinkState.CLOSED:
            self._state = LinkState.CLOSED
            self.outbound.cut()
            if not is_silent:
                self.outbound.end(f"connection reset: {self.host.name} is gone")
        self._inbound.disarm()  # that delivery was planned in the crashed host's context
        self._inbound.arm()

    def takes(self) -> bool:
        """Return whether a delivery makes sense. A closed end answers it with a reset."""
        if self._state is not LinkState.OPEN:
            return True
        return self._is_reading and self._receiver is not None

    def on_arrival(self, data: bytes, reason: str) -> None:
        """Take the next chunk, or the end, from the pipe."""
        if self._state is LinkState.CLOSED:
            if data:
                self._inbound.source.on_refused()
        elif reason:
            self.on_lost(reason)
        elif self._state is LinkState.OPEN:
            self._on_received(data)

    def _on_received(self, data: bytes) -> None:
        assert self._receiver is not None
        try:
            self._receiver.on_received(data)
        except Exception as error:  # like asyncio: report, and break the link
            message = f"receiver of the link from {self.peer} raised"
            self._wire.loop.call_exception_handler({"message": message, "exception": error})
            self.abort()

    def on_refused(self) -> None:
        """Close this end once the reset of the peer has arrived, since the peer's end is gone."""
        way = self._inbound.names
        if self._state is LinkState.CLOSED or self._wire.is_blocked(*way):
            return
        delay_s = min(self._wire.delay_s(*way), self._wire.link_timeout_s)
        self._wire.loop.call_later(
            delay_s, self.on_lost, "connection reset by peer", context=self.host.context()
        )

    def on_lost(self, reason: str, is_clearing: bool = True) -> None:
        """End this end, and notify its receiver. The caller notifies the peer, or nobody does."""
        if self._state is LinkState.CLOSED:
            return
        if is_clearing:
            self.outbound.clear()
        self._state = LinkState.CLOSED
        self._finish(reason)

    def _finish(self, reason: str) -> None:
        if not self._end_reason:
            self._end_reason = reason
            if self._receiver is not None:
                self._soon(self._tell_closed)

    def _tell_closed(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.on_closed(self._end_reason)

    def _tell_writable(self) -> None:
        if self._state is LinkState.OPEN and self._receiver is not None:
            self._receiver.writable(self._is_writable)

    def on_drained(self, pending_bytes: int, is_ended: bool = False) -> None:
        """Record the bytes in the pipe. Below the low-water mark the writer may continue, or
        is done.
        """
        if is_ended:
            self._state = LinkState.CLOSED
        if pending_bytes > LOW_WATER_BYTES:
            return
        if self._state is LinkState.CLOSING or is_ended:
            self._finish("closed")
        elif not self._is_writable:
            self._is_writable = True
            self._soon(self._tell_writable)

    @property
    def is_over(self) -> bool:
        """Whether the end is closed and none of its bytes are in transit."""
        return self._state is LinkState.CLOSED and self.outbound.is_empty

    def check(self) -> None:
        """Assert that an ended link has a reason, and that the writer of a full pipe has
        stopped.
        """
        assert self._state is not LinkState.CLOSED or self._end_reason or not self.host.alive
        assert self.outbound.pending_bytes <= HIGH_WATER_BYTES or not (
            self._state is LinkState.OPEN and self._is_writable
        )


def link_pair(
    wire: Wire, hosts: tuple[Host, Host], peers: tuple[str, str]
) -> tuple[SimLink, SimLink]:
    """Make the two ends of a new link. `peers[i]` is the name of the other end for end i."""
    near, far = (SimLink(wire, host, peer) for host, peer in zip(hosts, peers, strict=True))
    there, back = Pipe(wire, near, far), Pipe(wire, far, near)
    near.attach(inbound=back, outbound=there)
    far.attach(inbound=there, outbound=back)
    return near, far
