"""What a silo tells clients and others about itself: gateways, members, loads.

Owns: the `$gateway` target and the exchange of activation counts for placement.
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
"""How long a client waits for the list of a gateway, before it asks another one."""


class Watched(Protocol):
    """The membership, as read here."""

    @property
    def view(self) -> TableView: ...


class GatewayTarget(SystemTarget):
    """Asked by clients, and by silos for loads."""

    target_name = "$gateway"

    def __init__(self, me: str, members: Watched, loads: Loads) -> None:
        self._me = me
        self._members = members
        self._loads = loads

    @timeout(ASKED_S)
    @open_to(Role.CLIENT)
    async def gateways(self) -> GatewayView:
        """The active silos that take clients. Raises SiloUnavailable: this one is no member yet."""
        seen = gateways_seen_by(self._me, self._members.view)
        if seen is None:
            text = f"{self._me} is joining its cluster, and is no gateway yet: try again"
            raise SiloUnavailable(text, may_have_run=False)
        return seen

    @open_to(Role.CLIENT)
    async def members(self) -> list[MemberInfo]:
        """Who is in the cluster, as this silo sees it."""
        return list(members_of(self._members.view))

    @open_to(Role.CLIENT)
    async def list_evicted(self, silos: list[str]) -> list[str]:
        """Which of the silos are dead in this silo's view of the table."""
        dead = set(self._members.view.with_status(Status.DEAD))
        return [silo for silo in silos if silo in dead]

    async def load(self, silo: str, activations: int) -> None:
        """How many activations a silo has."""
        self._loads.learn(silo, activations)


def gateways_seen_by(me: str, view: TableView) -> GatewayView | None:
    """The active silos that take clients, sorted; None as long as the silo `me` is no member.

    It may know nobody but silos that have crashed then, and a client that believed it would look
    for the cluster there.
    """
    own = view.row(me)
    if own is None or own.status is Status.JOINING:
        return None
    rows = [row for row in view.rows if row.is_gateway and row.status is Status.ACTIVE]
    return GatewayView(view.version, sorted(row.silo for row in rows))


class Loads:
    """How many activations each active silo has, as it told.

    Args:
        count: of this silo.
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
        """By silo; one that told nothing is not here."""
        return MappingProxyType(self._counts)

    def learn(self, silo: str, activations: int) -> None:
        """A silo told its count."""
        self._counts[silo] = activations

    def start(self) -> None:
        """Exchange from now on."""
        self._tasks.start(self._exchange())

    async def _exchange(self) -> None:
        while True:
            await asyncio.sleep(LOADS_EVERY_S)
            try:
                self._tell_all()
            except Exception:
                log.exception("%s cannot tell how many activations it has", self._me)

    def _tell_all(self) -> None:
        """Tell the others this silo's count, if it changed; forget who is not active."""
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
            log.debug("%s was not told the load: %s", silo, error)  # the next exchange tells it

    def close(self) -> None:
        """Tell nobody any more."""
        self._tasks.cancel()
