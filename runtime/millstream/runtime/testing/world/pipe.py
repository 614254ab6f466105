"""One direction of a simulated link: chunks of bytes in transit.

This module owns `Pipe`, and the Protocols by which it uses the network (`Wire`) and the ends
(`End`). Bytes arrive in the order in which they were written. If the link breaks, the last bytes
may not arrive. The end of the direction arrives after all bytes. A blocked pipe keeps its bytes
until the network is no longer blocked, or the writer times out.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextvars import Context
from typing import NamedTuple, Protocol

from .env import Random
from .host import Host
from .loop import SimLoop

__all__ = ["End", "Pipe", "Wire"]


class Wire(Protocol):
    """The network as a pipe uses it."""

    loop: SimLoop
    rng: Random
    split_chance: float
    link_timeout_s: float

    def is_blocked(self, source: str, target: str) -> bool: ...
    def delay_s(self, source: str, target: str) -> float:
        """Return the transit time of a chunk, or math.inf if too many losses break the link."""
        ...

    def bytes_per_s(self, source: str, target: str) -> float: ...
    def on_delivered(self, source: str, target: str, size_bytes: int) -> None: ...


class End(Protocol):
    """A link end as a pipe uses it, either the writing or the reading one."""

    host: Host

    def context(self) -> Context: ...
    def takes(self) -> bool: ...
    def on_arrival(self, data: bytes, reason: str, /) -> None: ...
    def on_drained(self, pending_bytes: int, /, *, is_ended: bool) -> None: ...
    def on_refused(self) -> None:
        """Handle that a chunk of this end arrived at a closed end.

        The host of the closed end answers with a reset. The reset closes this end with the reason
        "connection reset by peer". No exception is raised.
        """
        ...

    def on_lost(self, reason: str, /) -> None: ...


class Item(NamedTuple):
    """A chunk of bytes, or the end of the direction if it has a reason.

    An item arrives at `due_s`, but never earlier than the item before it.
    """

    due_s: float
    data: bytes
    reason: str = ""


class Pipe:
    """One direction of a link."""

    __slots__ = (
        "_free_s",
        "_items",
        "_stall",
        "_timer",
        "pending_bytes",
        "source",
        "target",
        "wire",
    )

    def __init__(self, wire: Wire, source: End, target: End) -> None:
        self.wire = wire
        self.source = source
        self.target = target
        self.pending_bytes = 0
        self._items: deque[Item] = deque()
        self._free_s = 0.0  # the time at which all written bytes have left a clogged sender
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The names of the sending and the receiving host."""
        return self.source.host.name, self.target.host.name

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in transit, not even the end."""
        return not self._items

    def send(self, data: bytes) -> None:
        """Send bytes. By chance they are sent in two chunks, as with TCP."""
        if len(data) > 1 and self.wire.rng.random() < self.wire.split_chance:
            at = self.wire.rng.randrange(1, len(data))
            self._push(data[:at])
            data = data[at:]
        self._push(data)
        self.arm()

    def end(self, reason: str) -> None:
        """Send the end of the direction, after the bytes before it."""
        self._push(b"", reason)
        self.arm()

    def _push(self, data: bytes, reason: str = "") -> None:
        due_s = self._due_s(len(data))
        if due_s == math.inf:
            self.wire.loop.call_soon(self._broke, context=Context())
            return
        self.pending_bytes += len(data)
        self._items.append(Item(due_s, data, reason))

    def _due_s(self, size_bytes: int) -> float:
        now = self.wire.loop.time()
        rate = self.wire.bytes_per_s(*self.names)
        self._free_s = max(now, self._free_s) + size_bytes / rate
        return self._free_s + self.wire.delay_s(*self.names)

    def _broke(self) -> None:
        """Close both ends, because the connection between them is lost."""
        for end in (self.source, self.target):
            end.on_lost("connection reset: too many losses")

    def arm(self) -> None:
        """Plan the next delivery, if the network is not blocked and the target accepts bytes."""
        if not self._items or self._timer is not None:
            return
        if self.wire.is_blocked(*self.names):
            self._watch_stall()
            return
        self._end_stall()
        if self.target.takes():
            when = max(self.wire.loop.time(), self._items[0].due_s)
            self._timer = self.wire.loop.call_at(when, self._deliver, context=self.target.context())

    def disarm(self) -> None:
        """Cancel the planned delivery. The bytes stay."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        self._timer = None
        if self.wire.is_blocked(*self.names) or not self.target.takes():
            self.arm()
            return
        item = self._items.popleft()
        self.pending_bytes -= len(item.data)
        self.wire.on_delivered(*self.names, len(item.data))
        self.target.on_arrival(item.data, item.reason)
        self.source.on_drained(self.pending_bytes, is_ended=bool(item.reason))
        self.arm()

    def _watch_stall(self) -> None:
        if self._stall is None:
            limit_s = self.wire.link_timeout_s
            self._stall = self.wire.loop.call_later(limit_s, self._on_stalled, context=Context())

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _on_stalled(self) -> None:
        self._stall = None
        limit_s = self.wire.link_timeout_s
        self.source.on_lost(f"timed out: {self.pending_bytes} bytes unconfirmed for {limit_s:g} s")
        self.clear()

    def retime(self) -> None:
        """Give the bytes in transit new arrival times, because the network has changed.

        The new times count from now, as if the bytes were sent again.
        """
        self.disarm()
        items, self._items, self._free_s = self._items, deque(), 0.0
        self.pending_bytes = 0
        for item in items:
            self._push(item.data, item.reason)
        self.arm()

    def cut(self) -> None:
        """Drop a random last part of the bytes in transit, because the sender is gone."""
        if self._items and self._items[-1].reason:
            self._items.pop()  # another event ends the direction now
        keep = self.wire.rng.randrange(len(self._items) + 1)
        while len(self._items) > keep:
            self.pending_bytes -= len(self._items.pop().data)
        if not self._items:
            self.disarm()

    def clear(self) -> None:
        """Drop everything."""
        self.disarm()
        self._end_stall()
        self._items.clear()
        self.pending_bytes = 0

    def check(self) -> None:
        """Assert the invariants.

        `pending_bytes` is the size of all chunks in transit. Only the last item may be the end of
        the direction. No delivery is planned for an empty pipe.
        """
        assert self.pending_bytes == sum(len(item.data) for item in self._items)
        assert all(not item.reason for item in list(self._items)[:-1])
        assert self._timer is None or self._items
