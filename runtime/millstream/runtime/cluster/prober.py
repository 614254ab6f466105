"""Failure detection: probe ring successors, count misses, suspect.

Owns: one loop per watched silo, the heartbeat of this silo's own event loop, and which silos are
silent both ways. Invariants: a probe is answered by a thread of the target that touches nothing but
the age of its loop's last heartbeat, so a busy silo is spared and a wedged one is not; a silo whose
own loop lags lengthens its time-outs instead of accusing others; with three or more silos, the last
miss is confirmed by another silo; a silo that is joining accuses only those that are silent both
ways. Source: Orleans' SiloHealthMonitor, Lifeguard.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from millstream.runtime.errors import MillstreamError
from millstream.runtime.wire.address import Address, endpoint_of, generation_of

from .ring import Ring
from .table import Status, TableView

if TYPE_CHECKING:
    from millstream.runtime.silo.parts import SiloHost

    from .member import Member

__all__ = ["LoopHeart", "Prober", "Stamps"]

log = logging.getLogger("millstream.probe")

BEAT_S = 0.25
LAG_SPARED_S = 0.5  # lag of the own loop up to here does not lengthen time-outs
SILENT_HEARTBEATS = 2.2  # two stamps in a row are missing, and there was time to write them


class LoopHeart:
    """Beats on the loop, is read from the probe thread: plain attribute writes only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, silo: str) -> None:
        self._loop = loop
        self._generation = generation_of(silo)
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
        """Age of the last beat in seconds, and the generation; called from the probe thread."""
        return f"{max(0.0, self._loop.time() - self._beat_at):.3f} {self._generation}".encode()

    def close(self) -> None:
        """Stop beating."""
        if self._timer is not None:
            self._timer.cancel()


class Stamps:
    """When the stamps of the table were last seen to move, on this silo's own clock.

    Wall clocks differ; a stamp that moves says that its silo lives and reaches the table.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def saw(self, view: TableView, now: float) -> None:
        """Look at every stamp of an adopted view."""
        seen: dict[str, tuple[float, float]] = {}
        for row in view.rows:
            old = self._seen.get(row.silo)
            is_still = old is not None and old[0] == row.alive_s
            seen[row.silo] = old if old is not None and is_still else (row.alive_s, now)
        self._seen = seen

    def still_s(self, silo: str, now: float) -> float:
        """For how long a silo's stamp was seen not to move; 0 if it is not in the table."""
        return now - self._seen[silo][1] if silo in self._seen else 0.0


class Prober:
    """Watches the silos that the ring assigns to this one, and those that it must reach to join."""

    def __init__(self, host: SiloHost, member: Member) -> None:
        self._host = host
        self._member = member
        self._options = host.membership_options
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._missed: dict[str, int] = {}
        self._stamps = Stamps()
        self._is_closed = False

    def start(self) -> None:
        """Watch from now on."""
        self._member.watch(self.follow)
        self.follow(self._member.view)

    def saw(self, view: TableView) -> None:
        """Take note of the stamps of an adopted view."""
        self._stamps.saw(view, self._host.loop.time())

    def follow(self, view: TableView) -> None:
        """Start and stop probe loops for who is to be watched now."""
        if self._is_closed:
            return
        wanted = self._targets(view)
        for silo in [silo for silo in self._loops if silo not in wanted]:
            self._loops.pop(silo).cancel()
            self._missed.pop(silo, None)
        for silo in wanted:
            if silo not in self._loops:
                self._loops[silo] = self._host.loop.create_task(self._watch(silo))

    def _targets(self, view: TableView) -> list[str]:
        me = self._member.address
        members = view.with_status(Status.JOINING, Status.ACTIVE, Status.STOPPING)
        if me not in members:
            return []
        chosen = Ring(members).successors(me, self._options.probed_silos_max)
        also = {row.silo for row in view.rows if row.suspicions or self._is_still(row.silo)}
        return sorted({*chosen, *(also | self._member.awaited).intersection(members)} - {me})

    def _is_still(self, silo: str) -> bool:
        still_s = self._stamps.still_s(silo, self._host.loop.time())
        return still_s > SILENT_HEARTBEATS * self._options.heartbeat_s

    def is_silent(self, silo: str) -> bool:
        """Does the silo neither answer our probes nor stamp its row?"""
        return self._has_missed(silo) and self._is_still(silo)

    def may_accuse(self, silo: str) -> bool:
        """Is our word enough? Who joins leaves silos that stamp their rows to the others."""
        return self.is_silent(silo) or not self._member.is_joining

    def _has_missed(self, silo: str) -> bool:
        return self._missed.get(silo, 0) >= self._options.missed_probes_max

    async def _watch(self, silo: str) -> None:
        await asyncio.sleep(self._host.env.uniform(0, self._options.probe_every_s))
        while True:
            if await self.probe_once(silo):
                self._missed.pop(silo, None)
            else:
                self._missed[silo] = self._missed.get(silo, 0) + 1
            if self._has_missed(silo) and await self._suspect(silo):
                self._missed.pop(silo, None)
            every_s = self._options.probe_every_s
            await asyncio.sleep(every_s * (0.5 if silo in self._missed else 1.0))

    async def probe_once(self, silo: str) -> bool:
        """Did the silo itself answer in time, with a loop that beats?"""
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
            age_s, _, generation = answer.partition(b" ")
            # a port of a process that is gone may have been given to another silo
            is_itself = int(generation) == generation_of(silo)
            return is_itself and float(age_s) <= self._options.unresponsive_after_s
        except (OSError, TimeoutError, ValueError, MillstreamError) as error:
            log.info("%s: no answer to a probe: %s", silo, error)
            return False

    async def _suspect(self, silo: str) -> bool:
        """Vote, with a second opinion where there is one; True if the opinion is that it lives."""
        from .member import MemberTarget

        if not self.may_accuse(silo):
            return False
        me = self._member.address
        others = [
            s for s in self._member.active() if s not in (silo, me) and not self._has_missed(s)
        ]
        others = [s for s in others if s not in self._missed] or others
        confirmed: tuple[str, ...] = ()
        if others:
            peer = others[self._host.env.choice(len(others))]
            try:
                alive = await self._host.targets.call(
                    peer, MemberTarget.target_name, MemberTarget.probe_for, silo
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
