"""Messages of a silo to its clients when the gateways of the cluster change.

This module owns `PacedNews` (without I/O) and `GatewayNews`. Clients also ask for the list
themselves (`cluster/gateways`), so nothing depends on these messages. A silo that joins sends
nothing, because it may know only silos that have crashed. A change is sent at once. Changes that
follow soon after it are sent together, `TOLD_EVERY_S` later.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from millstream.runtime.cluster.gateways import gateways_seen_by
from millstream.runtime.cluster.table import TableView
from millstream.runtime.wire.connection import LocalEnd, Peer
from millstream.runtime.wire.message import GatewayView

__all__ = ["TOLD_EVERY_S", "GatewayNews", "PacedNews"]

TOLD_EVERY_S = 0.1
"""The least time between two lists for all clients of a silo, in seconds."""
NAME_SPARE_BYTES = 5
"""The most bytes that the encoding adds to a name."""


class PacedNews:
    """The newest list of gateways, and the time to send it to clients. No I/O, no clock.

    Attributes:
        newest: The newest list; None before the first.
    """

    __slots__ = ("_is_due", "_told_s", "newest")

    def __init__(self) -> None:
        self.newest: GatewayView | None = None
        self._told_s = -math.inf
        self._is_due = False

    def take(self, view: GatewayView) -> None:
        """Take a newer list. It is due only if its gateways differ."""
        if self.newest is None or self.newest.gateways != view.gateways:
            self._is_due = True
        self.newest = view

    def due_s(self) -> float:
        """Return the time from which the newest list should be sent; infinite if it was sent."""
        return self._told_s + TOLD_EVERY_S if self._is_due else math.inf

    def tell(self, now_s: float) -> None:
        """Record that the newest list is sent to all clients now."""
        self._is_due, self._told_s = False, now_s


class GatewayNews:
    """The list of gateways that a silo sends to its clients. `clients` are the connected ones, by
    id.
    """

    def __init__(self, end: LocalEnd, clients: Mapping[str, Peer]) -> None:
        self._me = end.identity.address
        self._now = end.loop.time
        self._tasks = end.tasks
        self._clients = clients
        self._news = PacedNews()
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, view: TableView) -> None:
        """Take a newer view of the membership table."""
        seen = gateways_seen_by(self._me, view)
        if seen is not None:
            self._news.take(seen)
            self._tell_when_due()

    def _tell_when_due(self) -> None:
        due_s = self._news.due_s()
        if self._timer is None and due_s < math.inf:
            self._timer = self._tasks.call_at(max(due_s, self._now()), self._tell_all)

    def _tell_all(self) -> None:
        self._timer = None
        self._news.tell(self._now())
        view = self._news.newest
        assert view is not None
        size = sum(len(name) + NAME_SPARE_BYTES for name in view.gateways)
        for client in self._clients.values():
            client.writer.send_latest(view, size)

    def close(self) -> None:
        """Send no more lists."""
        if self._timer is not None:
            self._timer.cancel()
