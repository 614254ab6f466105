"""The information that a silo gives to clients and other silos: gateways, members and loads.

This module owns the `$gateway` target, and the exchange of load reports for placement (`load`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import msgspec

from millstream.runtime.calls.system_target import SystemTarget, Targets
from millstream.runtime.definition.markers import open_to, timeout
from millstream.runtime.errors import MillstreamError, NotHosted, SiloUnavailable
from millstream.runtime.machine import Usage
from millstream.runtime.role import Role
from millstream.runtime.tasks import Tasks
from millstream.runtime.wire.message import GatewayView

from .load import REPEATED_S, KnownLoads, Load, LoadMeter, LoadReport, differs
from .table import MemberInfo, Status, TableView, members_of

__all__ = ["ASKED_S", "GatewayTarget", "Loads", "Watched", "gateways_seen_by"]

log = logging.getLogger("millstream.gateway")

LOADS_EVERY_S = 1.0
REPORTED_WITHIN_S = 5.0
"""Seconds that a silo may take to receive a report. It gets no other one meanwhile."""
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
        """Receive the number of activations of a silo that knows no other report."""
        self._loads.learn(silo, activations)

    @timeout(REPORTED_WITHIN_S)
    async def report_load(self, silo: str, report: LoadReport) -> None:
        """Receive the load of another silo."""
        self._loads.hear(silo, report)


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
    """The load of each active silo, as the silos report it.

    A silo measures its load once in each second. It sends the report if the load has changed, or if
    the last report is older than `REPEATED_S`.

    Args:
        count: returns the number of activations of this silo.
        measure: returns the resources that this process has used.
        lag_s: returns the lag of this silo's event loop.
        smoothing_s: `PlacementOptions.smoothing_s`.
    """

    def __init__(
        self,
        me: str,
        members: Watched,
        targets: Targets,
        tasks: Tasks,
        count: Callable[[], int],
        measure: Callable[[], Usage],
        lag_s: Callable[[], float],
        smoothing_s: float,
    ) -> None:
        self._me = me
        self._members = members
        self._targets = targets
        self._tasks = tasks
        self._count = count
        self._measure = measure
        self._lag_s = lag_s
        self._meter = LoadMeter(smoothing_s)
        self._known = KnownLoads()
        self._told: dict[str, tuple[float, LoadReport]] = {}  # time and report, by silo
        self._old: set[str] = set()  # silos that know only counts
        self._telling: set[str] = set()  # silos that have not answered yet
        self.rebalancing: Callable[[], tuple[int, int]] | None = None
        """Returns the movable activations and the control number, if this silo rebalances."""

    @property
    def known(self) -> Mapping[str, int]:
        """The activations by silo. A silo that has not reported yet is missing."""
        return self._known.counts

    def of(self, silos: Iterable[str]) -> dict[str, Load]:
        """Return the loads of silos."""
        return self._known.loads(silos, asyncio.get_running_loop().time())

    def learn(self, silo: str, activations: int) -> None:
        """Store the count that a silo of an older version reported."""
        self.hear(silo, LoadReport(0, activations))

    def hear(self, silo: str, report: LoadReport) -> None:
        """Store the report of a silo."""
        self._known.learn(silo, report, asyncio.get_running_loop().time())

    def fresh_reports(self) -> dict[str, LoadReport]:
        """Return the last reports of all silos, without stale ones."""
        return self._known.fresh_reports(asyncio.get_running_loop().time())

    async def tell_now(self) -> None:
        """Report this silo's load to the others at once, and wait until they have it."""
        told = self._tell_all(self._lag_s())
        if told:
            await asyncio.wait(told, timeout=REPORTED_WITHIN_S)

    def place(self, silo: str) -> None:
        """Note a placement, until the silo reports its load."""
        self._known.place(silo, asyncio.get_running_loop().time())

    def start(self) -> None:
        """Start the exchange of reports."""
        self._tasks.start(self._exchange())

    async def _exchange(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LOADS_EVERY_S
            await asyncio.sleep(LOADS_EVERY_S)
            try:
                self._tell_all(max(self._lag_s(), loop.time() - due_s))
            except Exception:
                log.exception("%s could not report its load", self._me)

    def _tell_all(self, lag_s: float) -> list[asyncio.Task[None]]:
        """Measure, tell the silos that need a new report, and forget those that are not active.

        Returns the tasks of the calls.
        """
        active = self._members.view.with_status(Status.ACTIVE)
        now_s = asyncio.get_running_loop().time()
        report = self._meter.measure(now_s, self._count(), self._measure(), lag_s)
        if self.rebalancing is not None:
            movable, control = self.rebalancing()
            report = msgspec.structs.replace(report, movable=movable, control=control)
        self._known.keep(active)
        self.hear(self._me, report)
        self._told = {silo: self._told[silo] for silo in active if silo in self._told}
        self._old.intersection_update(active)
        due = [silo for silo in active if silo != self._me and self._is_due(silo, report, now_s)]
        for silo in due:
            self._told[silo] = (now_s, report)
            self._telling.add(silo)
        return [self._tasks.start(self._tell(silo, report)) for silo in due]

    def _is_due(self, silo: str, report: LoadReport, now_s: float) -> bool:
        """Return whether a silo needs a report. A silo that has just joined does."""
        if silo in self._telling:
            return False
        if silo not in self._told:
            return True
        at_s, told = self._told[silo]
        return now_s - at_s >= REPEATED_S or differs(told, report)

    async def _tell(self, silo: str, report: LoadReport) -> None:
        call, name = self._targets.call, GatewayTarget.target_name
        try:
            if silo not in self._old:
                try:
                    await call(silo, name, GatewayTarget.report_load, self._me, report)
                    return
                except NotHosted:
                    self._old.add(silo)
            await call(silo, name, GatewayTarget.load, self._me, report.activations)
        except MillstreamError as error:
            self._told.pop(silo, None)  # the next exchange repeats the report
            log.debug("the load did not reach %s: %s", silo, error)
        finally:
            self._telling.discard(silo)

    def close(self) -> None:
        """Stop the exchange."""
        self._tasks.cancel()
