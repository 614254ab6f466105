"""The information that a silo gives to clients and other silos: gateways, members and loads.

This module owns the `$gateway` target, and the exchange of activation counts for placement.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from millstream.runtime.calls.system_target import SystemTarget, Targets
from millstream.runtime.definition.markers import open_to, timeout
from millstream.runtime.errors import MillstreamError, SiloUnavailable
from millstream.runtime.role import Role
from millstream.runtime.tasks import Tasks
from millstream.runtime.wire.message import GatewayView

from .table import MemberInfo, Status, TableView, members_of

__all__ = ["ASKED_S", "GatewayTarget", "Loads", "Watched", "gateways_seen_by"]

log = logging.getLogger("millstream.gateway")

LOADS_EVERY_S = 1.0
ASKED_S = 3.0
"""Seconds that a client waits for a gateway's list before it asks another gateway."""


class Watched(Protocol):
    """The membership as this silo has read it."""

    @property
    def view(self) -> TableView: ...


class GatewayTarget(SystemTarget):
    """The `$gateway` target.

    Clients ask it for gateways and members. Silos report their loads to it.
    """

    target_name = "$gateway"

    def __init__(self, me: str, members: Watched, loads: Loads) -> None:
        self._me = me
        self._members = members
        self._loads = loads

    @timeout(ASKED_S)
    @open_to(Role.CLIENT)
    async def gateways(self) -> GatewayView:
        """Return the active silos that accept clients.

        Raises SiloUnavailable if this silo is not a member yet.
        """
        seen = gateways_seen_by(self._me, self._members.view)
        if seen is None:
            text = f"{self._me} is joining its cluster, and is not a gateway yet: try again"
            raise SiloUnavailable(text, may_have_run=False)
        return seen

    @open_to(Role.CLIENT)
    async def members(self) -> list[MemberInfo]:
        """Return the members of the cluster as this silo sees them."""
        return list(members_of(self._members.view))

    @open_to(Role.CLIENT)
    async def list_evicted(self, silos: list[str]) -> list[str]:
        """Return those of the given silos that are dead in this silo's view."""
        dead = set(self._members.view.with_status(Status.DEAD))
        return [silo for silo in silos if silo in dead]

    async def load(self, silo: str, activations: int) -> None:
        """Receive the number of activations of another silo."""
        self._loads.learn(silo, activations)


def gateways_seen_by(me: str, view: TableView) -> GatewayView | None:
    """Return the active silos that accept clients, sorted, or None if `me` is no member yet.

    Before `me` is a member, its view may list only crashed silos. A client that got this list would
    search for the cluster there.
    """
    own = view.row(me)
    if own is None or own.status is Status.JOINING:
        return None
    rows = [row for row in view.rows if row.is_gateway and row.status is Status.ACTIVE]
    return GatewayView(view.version, sorted(row.silo for row in rows))


class Loads:
    """The number of activations of each active silo, as the silos report them.

    Args:
        count: returns the number of activations of this silo.
    """

    def __init__(
        self, me: str, members: Watched, targets: Targets, tasks: Tasks, count: Callable[[], int]
    ) -> None:
        self._me = me
        self._members = members
        self._targets = targets
        self._tasks = tasks
        self._count = count
        self._counts: dict[str, int] = {}
        self._told = -1

    @property
    def known(self) -> Mapping[str, int]:
        """The counts by silo. A silo that has not reported yet is missing."""
        return MappingProxyType(self._counts)

    def learn(self, silo: str, activations: int) -> None:
        """Store the count that a silo reported."""
        self._counts[silo] = activations

    def start(self) -> None:
        """Start the exchange of counts."""
        self._tasks.start(self._exchange())

    async def _exchange(self) -> None:
        while True:
            await asyncio.sleep(LOADS_EVERY_S)
            try:
                self._tell_all()
            except Exception:
                log.exception("%s could not report its number of activations", self._me)

    def _tell_all(self) -> None:
        """Report this silo's count if it changed, and forget the counts of inactive silos."""
        active = self._members.view.with_status(Status.ACTIVE)
        count = self._count()
        self._counts = {silo: self._counts[silo] for silo in active if silo in self._counts}
        self._counts[self._me] = count
        if count != self._told:
            self._told = count
            for silo in active:
                if silo != self._me:
                    self._tasks.start(self._tell(silo, count))

    async def _tell(self, silo: str, count: int) -> None:
        try:
            name = GatewayTarget.target_name
            await self._targets.call(silo, name, GatewayTarget.load, self._me, count)
        except MillstreamError as error:
            # the next exchange repeats the report
            log.debug("the number of activations did not reach %s: %s", silo, error)

    def close(self) -> None:
        """Stop the exchange."""
        self._tasks.cancel()
