"""A silo tells its clients which gateways there are, when that changes.

Owns: `PacedNews` (pure), `GatewayNews`. Not: the question that clients ask (`cluster/gateways`), a
list that waits for a slow client (`wire/sending`). Invariants: a silo that joins tells nothing,
since it may know nobody but silos that have crashed; a change is told at once, and changes that
follow on it are told together, `TOLD_EVERY_S` later; nothing depends on it, since clients also ask.
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
"""Least time between two lists for all clients of a silo."""
NAME_SPARE_BYTES = 5
"""The most that the encoding adds to a name."""


class PacedNews:
    """The newest list of gateways, and when clients are told of it. No I/O, no clock.

    Attributes: `newest`, None before the first.
    """

    __slots__ = ("_is_due", "_told_s", "newest")

    def __init__(self) -> None:
        self.newest: GatewayView | None = None
        self._told_s = -math.inf
        self._is_due = False

    def take(self, view: GatewayView) -> None:
        """A newer list. A version with the same gateways is no news."""
        if self.newest is None or self.newest.gateways != view.gateways:
            self._is_due = True
        self.newest = view

    def due_s(self) -> float:
        """From when on the newest list should be told; infinite if all have been told."""
        return self._told_s + TOLD_EVERY_S if self._is_due else math.inf

    def tell(self, now_s: float) -> None:
        """All are told the newest list now."""
        self._is_due, self._told_s = False, now_s


class GatewayNews:
    """The list of gateways that a silo sends to its clients.

    Args:
        clients: those that are connected, by id.
    """

    def __init__(self, end: LocalEnd, clients: Mapping[str, Peer]) -> None:
        self._me = end.identity.address
        self._now = end.loop.time
        self._tasks = end.tasks
        self._clients = clients
        self._news = PacedNews()
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, view: TableView) -> None:
        """The silo has a newer view of the membership table."""
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
        """Tell nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
