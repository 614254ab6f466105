"""Failure detection: probe ring successors, count misses, suspect.

Owns: one loop per watched silo, and the heartbeat of this silo's own event loop. Invariants: a
probe is answered by a thread of the target that touches nothing but the age of its loop's last
heartbeat, so a busy silo is spared and a wedged one is not; a silo whose own loop lags lengthens
its time-outs instead of accusing others; with three or more silos, the last miss is confirmed by
another silo. Source: Orleans' SiloHealthMonitor, Lifeguard.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from .errors import MillstreamError
from .membership import Status, TableView, endpoint_of
from .ring import Ring
from .system_target import call_target
from .transport import Address

if TYPE_CHECKING:
    from .member import Member
    from .silo_host import SiloHost

__all__ = ["LoopHeart", "Prober"]

log = logging.getLogger("millstream.probe")

BEAT_S = 0.25
LAG_SPARED_S = 0.5  # lag of the own loop up to here does not lengthen time-outs


class LoopHeart:
    """Beats on the loop, is read from the probe thread: plain attribute writes only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._beat_at = loop.time()
        self.lag_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Beat from now on."""
        self._beat_at = self._loop.time()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        now = self._loop.time()
        self.lag_s = max(self.lag_s / 2, now - self._beat_at - BEAT_S)
        self._beat_at = now
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def answer(self) -> bytes:
        """Age of the last beat in seconds, as text; called from the probe thread."""
        return f"{max(0.0, self._loop.time() - self._beat_at):.3f}".encode()

    def close(self) -> None:
        """Stop beating."""
        if self._timer is not None:
            self._timer.cancel()


class Prober:
    """Watches the silos that the ring assigns to this one."""

    def __init__(self, host: SiloHost, member: Member) -> None:
        self._host = host
        self._member = member
        self._options = host.membership_options
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def start(self) -> None:
        """Watch from now on."""
        self._member.watch(self._adjust)

    def _adjust(self, view: TableView) -> None:
        """Follow the view: start and stop probe loops."""
        if self._is_closed:
            return
        wanted = self._targets(view)
        for silo in [silo for silo in self._loops if silo not in wanted]:
            self._loops.pop(silo).cancel()
        for silo in wanted:
            if silo not in self._loops:
                self._loops[silo] = self._host.loop.create_task(self._watch(silo))

    def _targets(self, view: TableView) -> list[str]:
        me = self._member.address
        members = view.with_status(Status.JOINING, Status.ACTIVE, Status.STOPPING)
        if me not in members:
            return []
        chosen = Ring(members).successors(me, self._options.probed_silos_max)
        suspected = {row.silo for row in view.rows if row.suspicions and row.silo in members}
        return sorted({*chosen, *suspected} - {me})

    async def _watch(self, silo: str) -> None:
        missed = 0
        await asyncio.sleep(self._host.env.uniform(0, self._options.probe_every_s))
        while True:
            missed = 0 if await self.probe_once(silo) else missed + 1
            if missed >= self._options.missed_probes_max and await self._suspect(silo):
                missed = 0
            await asyncio.sleep(self._options.probe_every_s * (0.5 if missed else 1.0))

    async def probe_once(self, silo: str) -> bool:
        """Did the silo answer in time, with a loop that beats?"""
        row = self._member.view.row(silo)
        if row is None:
            return False
        lag_s = self._host.heart.lag_s
        stretch = 1.0 + (lag_s if lag_s > LAG_SPARED_S else 0.0)
        address = Address(Address.parse(endpoint_of(silo)).host, row.probe_port)
        try:
            answer = await self._host.transport.probe(
                address, self._options.probe_timeout_s * stretch
            )
            return float(answer) <= self._options.unresponsive_after_s
        except (OSError, TimeoutError, ValueError, MillstreamError) as error:
            log.info("%s: no answer to a probe: %s", silo, error)
            return False

    async def _suspect(self, silo: str) -> bool:
        """Vote, with a second opinion where there is one; False if the opinion is that it lives."""
        from .member import MemberTarget

        others = [s for s in self._member.active() if s not in (silo, self._member.address)]
        confirmed: tuple[str, ...] = ()
        if others:
            peer = others[self._host.env.choice(len(others))]
            try:
                alive = await call_target(
                    self._host, peer, MemberTarget.target_name, MemberTarget.probe_for, silo
                )
            except MillstreamError:
                alive = False  # the intermediary is in trouble itself: only our own vote counts
            else:
                if alive:
                    return True
                confirmed = (peer,)
        try:
            await self._member.vote(silo, *confirmed)
        except MillstreamError as error:
            log.warning("%s cannot be suspected: %s", silo, error)
        return False

    def close(self) -> None:
        """Stop watching."""
        self._is_closed = True
        for task in self._loops.values():
            task.cancel()
        self._loops.clear()
