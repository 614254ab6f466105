"""Simulated links: two ends, and one pipe per direction.

Owns: `SimLink`, which implements `wire.transport.Link`. Not: bytes under way (`pipe`), which hosts
can reach each other and how fast (`network`), who listens where (`transport`). Invariants: a
receiver is called in its own host's context, only after `start`; `on_closed` is called once, and
last. What waits in a pipe counts against the writer: above HIGH_WATER_BYTES it is told to stop, at
LOW_WATER_BYTES to go on.
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
    """Of one end: a closing end still sends what was written."""

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
        """Give the end its two pipes, once."""
        self._inbound = inbound
        self.outbound = outbound

    def context(self) -> Context:
        """Where this end's callbacks run; outside of every host when its own is gone."""
        return self.host.context() if self.host.alive else Context()

    def _soon(self, callback: Callable[[], None]) -> None:
        self._wire.loop.call_soon(callback, context=self.host.context())

    def start(self, receiver: LinkReceiver, /) -> None:
        """Begin to hear; what arrived before comes first."""
        assert self._receiver is None, "a link is started once"
        self._receiver = receiver
        if self._end_reason:
            self._soon(self._tell_closed)
        elif not self._is_writable:
            self._soon(self._tell_writable)
        self._inbound.arm()

    def write(self, data: bytes, /) -> None:
        """Send; without effect once the link is closing."""
        if self._state is not LinkState.OPEN or not data:
            return
        self.outbound.send(bytes(data))
        if self._is_writable and self.outbound.pending_bytes > HIGH_WATER_BYTES:
            self._is_writable = False
            if self._receiver is not None:
                self._receiver.writable(False)

    @property
    def waiting_bytes(self) -> int:
        """What was written and is not delivered."""
        return self.outbound.pending_bytes

    def reading(self, is_on: bool, /) -> None:
        """Take bytes or leave them in the pipe, where they count against the writer."""
        self._is_reading = is_on
        self._inbound.arm()

    def close(self) -> None:
        """End after what was written. Waits for a peer that does not read; `abort` does not."""
        if self._state is LinkState.OPEN:
            self._state = LinkState.CLOSING
            self.outbound.end("closed by peer")
            self.on_drained(self.outbound.pending_bytes)

    def abort(self) -> None:
        """End at once; the peer gets an unknown part of what was written."""
        if self._state is not LinkState.CLOSED:
            self.outbound.cut()
            self.outbound.end("connection reset by peer")
            self.on_lost("aborted", is_clearing=False)

    def crash(self, is_silent: bool) -> None:
        """The host of this end died; a silent end is found out only by time-outs."""
        self._wire.loop.keep((self, self._receiver))
        if self._state is not LinkState.CLOSED:
            self._state = LinkState.CLOSED
            self.outbound.cut()
            if not is_silent:
                self.outbound.end(f"connection reset: {self.host.name} is gone")
        self._inbound.disarm()  # that delivery was planned in the dead host's context
        self._inbound.arm()

    def takes(self) -> bool:
        """Whether a delivery makes sense: a closed end answers it with a reset."""
        if self._state is not LinkState.OPEN:
            return True
        return self._is_reading and self._receiver is not None

    def on_arrival(self, data: bytes, reason: str) -> None:
        """The next chunk, or the end, came through the pipe."""
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
        except Exception as error:  # as asyncio does: report, and break the link
            message = f"receiver of the link from {self.peer} raised"
            self._wire.loop.call_exception_handler({"message": message, "exception": error})
            self.abort()

    def on_refused(self) -> None:
        """The peer's end is gone: hear of it once the answer has travelled back."""
        way = self._inbound.names
        if self._state is LinkState.CLOSED or self._wire.is_blocked(*way):
            return
        delay_s = min(self._wire.delay_s(*way), self._wire.link_timeout_s)
        self._wire.loop.call_later(
            delay_s, self.on_lost, "connection reset by peer", context=self.host.context()
        )

    def on_lost(self, reason: str, is_clearing: bool = True) -> None:
        """This end is over; tell the receiver. The peer is told by whoever calls, or never."""
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
        """The pipe holds so much; below the low-water mark the writer may go on, or is done."""
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
        """Closed, and nothing of it is under way any more."""
        return self._state is LinkState.CLOSED and self.outbound.is_empty

    def check(self) -> None:
        """An ended link has a reason; a full pipe has a writer that knows."""
        assert self._state is not LinkState.CLOSED or self._end_reason or not self.host.alive
        assert self.outbound.pending_bytes <= HIGH_WATER_BYTES or not (
            self._state is LinkState.OPEN and self._is_writable
        )


def link_pair(
    wire: Wire, hosts: tuple[Host, Host], peers: tuple[str, str]
) -> tuple[SimLink, SimLink]:
    """The two ends of a new link; `peers[i]` is what end i calls the other one."""
    near, far = (SimLink(wire, host, peer) for host, peer in zip(hosts, peers, strict=True))
    there, back = Pipe(wire, near, far), Pipe(wire, far, near)
    near.attach(inbound=back, outbound=there)
    far.attach(inbound=there, outbound=back)
    return near, far
