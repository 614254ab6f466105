"""Failure detection: probe successors on the ring, count misses, and suspect.

`Prober` runs one loop per watched silo, and knows the silos that are silent both ways: they neither
answer probes nor stamp their rows. `heart` watches this silo's own event loop, and `votes` defines
the effect of a vote.

Invariants:

- A thread of the probed silo answers. It reads only the age of its event loop's last heartbeat. A
  busy silo is therefore spared and a blocked one is not.
- A silo that answers but follows another membership table is not accused. It runs, and this silo's
  table is a copy.
- A probe that this silo could not make or follow says nothing about the probed silo. Causes are a
  lag of its own loop and missing file descriptors.
- A silo whose own loop lags accuses no silo.
- A silo that reaches fewer than half of the known members, itself included, is itself cut off. It
  accuses only silos that are silent both ways. Of two equal halves, the half with the first name
  may accuse.
- With three or more silos, another silo confirms the last miss.
- A joining silo accuses only silos that are silent both ways.

Sources: the SiloHealthMonitor of Orleans, and Lifeguard.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Collection
from enum import Enum
from typing import Protocol

from millstream.runtime.env import Env
from millstream.runtime.errors import MillstreamError
from millstream.runtime.options import MembershipOptions
from millstream.runtime.tasks import Tasks
from millstream.runtime.text import show_text
from millstream.runtime.wire.address import Address, endpoint_of, generation_of
from millstream.runtime.wire.handshake import OtherTable
from millstream.runtime.wire.transport import Transport

from .ring import Ring
from .table import Status, TableView

__all__ = ["Prober", "Sign", "Stamps", "Voter"]

log = logging.getLogger("millstream.probe")

LAG_SPARED_S = 0.5  # a lag of the own loop up to this value is ignored
SILENT_HEARTBEATS = 2.2  # two stamps in a row are missing, with some tolerance
OWN_TROUBLES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Sign(Enum):
    """The result of a probe."""

    ALIVE = "alive"
    REFUSED = "refused"  # the machine answers, but not a running silo
    SILENT = "silent"
    UNKNOWN = "unknown"  # this silo or its table has a problem itself


class Voter(Protocol):
    """The membership, as the prober sees it."""

    @property
    def view(self) -> TableView: ...
    @property
    def awaited(self) -> Collection[str]: ...
    @property
    def is_joining(self) -> bool: ...
    async def refresh(self) -> None: ...
    async def vote(self, silo: str, /, *others: str) -> None: ...
    async def ask_other(self, via: str, silo: str, /) -> bool | None: ...


class Stamps:
    """The times at which the stamps of the table last changed, on this silo's own clock.

    Wall clocks of silos differ. A stamp that changes proves that its silo lives and reaches the
    table.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def saw(self, view: TableView, now: float) -> None:
        """Record every stamp of an adopted view."""
        seen: dict[str, tuple[float, float]] = {}
        for row in view.rows:
            old = self._seen.get(row.silo)
            is_still = old is not None and old[0] == row.alive_s
            seen[row.silo] = old if old is not None and is_still else (row.alive_s, now)
        self._seen = seen

    def still_s(self, silo: str, now: float) -> float:
        """Return the seconds since a silo's stamp last changed, or 0 if it is not in the table."""
        return now - self._seen[silo][1] if silo in self._seen else 0.0


class Prober:
    """Watches the silos that the ring assigns to this one.

    A joining silo also watches the silos that it must reach.

    Args:
        lag_s: returns the lag of the own event loop.
        table_id: the id of the membership table that this silo follows.

    Attributes:
        strangers: by address, the error of each silo that answered but follows another membership
            table.
    """

    def __init__(
        self,
        me: str,
        voter: Voter,
        *,
        options: MembershipOptions,
        transport: Transport,
        env: Env,
        tasks: Tasks,
        lag_s: Callable[[], float],
        table_id: str,
    ) -> None:
        self._me = me
        self._table_id = table_id
        self.strangers: dict[str, OtherTable] = {}
        self._voter = voter
        self._options = options
        self._transport = transport
        self._env = env
        self._tasks = tasks
        self._lag_s = lag_s
        self._now = asyncio.get_running_loop().time
        self._loops: dict[str, asyncio.Task[None]] = {}
        self._missed: dict[str, int] = {}
        self._unreached: set[str] = set()
        self._stamps = Stamps()
        self._is_started = False

    # -- the silos to watch

    def start(self) -> None:
        """Start watching."""
        self._is_started = True
        self.follow(self._voter.view)

    def saw(self, view: TableView) -> None:
        """Record the stamps of an adopted view."""
        self._stamps.saw(view, self._now())

    def follow(self, view: TableView) -> None:
        """Start and stop probe loops for the silos that must be watched now."""
        if not self._is_started:
            return
        wanted = self._targets(view)
        for silo in [silo for silo in self._loops if silo not in wanted]:
            self._loops.pop(silo).cancel()
            self._missed.pop(silo, None)
            self._unreached.discard(silo)
        for silo in wanted:
            if silo not in self._loops:
                self._loops[silo] = self._tasks.start(self._watch(silo))

    def _targets(self, view: TableView) -> list[str]:
        members = view.with_status(Status.JOINING, Status.ACTIVE, Status.STOPPING)
        if self._me not in members:
            return []
        chosen = Ring(members).successors(self._me, self._options.probed_silos_max)
        also = {row.silo for row in view.rows if row.suspicions or self._is_still(row.silo)}
        also |= set(self._voter.awaited)
        return sorted({*chosen, *also.intersection(members)} - {self._me})

    def close(self) -> None:
        """Stop watching."""
        self._is_started = False
        for task in self._loops.values():
            task.cancel()
        self._loops.clear()

    # -- knowledge about a silo

    def _is_still(self, silo: str) -> bool:
        still_s = self._stamps.still_s(silo, self._now())
        return still_s > SILENT_HEARTBEATS * self._options.heartbeat_s

    def is_silent(self, silo: str) -> bool:
        """Return True if the silo neither answers probes nor stamps its row."""
        return self._has_missed(silo) and self._is_still(silo)

    def _has_missed(self, silo: str) -> bool:
        return self._missed.get(silo, 0) >= self._options.missed_probes_max

    def may_accuse(self, silo: str) -> bool:
        """Return True if this silo may vote against the silo.

        A silo that is joining or cut off may vote only against silos that do not stamp their rows.
        """
        if self._lag_s() > LAG_SPARED_S:
            return False
        return self.is_silent(silo) or not (self._voter.is_joining or self._is_cut_off())

    def _is_cut_off(self) -> bool:
        """Return True if this silo reaches fewer than half of the silos that may be alive."""
        known = [self._me, *(silo for silo in self._loops if not self.is_silent(silo))]
        reached = [silo for silo in known if silo not in self._unreached]
        if 2 * len(reached) == len(known):
            return min(known) not in reached
        return 2 * len(reached) < len(known)

    # -- probing

    async def _watch(self, silo: str) -> None:
        await asyncio.sleep(self._env.uniform(0, self._options.probe_every_s))
        while True:
            try:
                await self._look(silo)
            except MillstreamError as error:
                log.warning("cannot suspect %s: %s", silo, error)
            except Exception:
                log.exception("%s: probing failed", silo)
            every_s = self._options.probe_every_s
            await asyncio.sleep(every_s * (0.5 if silo in self._missed else 1.0))

    async def _look(self, silo: str) -> None:
        """Probe once, and act on the result."""
        sign = await self.probe(silo)
        if sign is Sign.UNKNOWN:
            return
        (self._unreached.add if sign is Sign.SILENT else self._unreached.discard)(silo)
        if sign is Sign.ALIVE:
            self._missed.pop(silo, None)
            return
        self._missed[silo] = self._missed.get(silo, 0) + 1
        if self._has_missed(silo) and await self._suspect(silo):
            self._missed.pop(silo, None)

    async def probe(self, silo: str) -> Sign:
        """Probe a silo. Return whether it answered in time, and whether its event loop runs."""
        row = self._voter.view.row(silo)
        if row is None:
            return Sign.SILENT
        lag_s = self._lag_s()
        timeout_s = self._options.probe_timeout_s
        timeout_s *= 1.0 + (lag_s if lag_s > LAG_SPARED_S else 0.0)
        address = Address(Address.parse(endpoint_of(silo)).host, row.probe_port)
        asked_at = self._now()
        try:
            answer = await self._transport.probe(address, timeout_s)
            sign, found = self._read(silo, answer)
        except ConnectionRefusedError as error:
            sign, found = Sign.REFUSED, str(error)
        except (OSError, TimeoutError, MillstreamError) as error:
            is_ours = isinstance(error, OSError) and error.errno in OWN_TROUBLES
            sign = Sign.UNKNOWN if is_ours else Sign.SILENT
            found = str(error) or f"no answer within {timeout_s:g} s"
        late_s = max(self._now() - asked_at - timeout_s, self._lag_s())
        if sign is not Sign.ALIVE:
            if late_s > LAG_SPARED_S:  # the answer may have arrived without being read
                sign = Sign.UNKNOWN
            log.info("%s: probe: %s: %s", silo, sign.value, found)
        return sign

    def _read(self, silo: str, answer: bytes) -> tuple[Sign, str]:
        try:
            age_s, generation, table_id = answer.decode().split(" ")
            # the port of a former process may belong to another silo now
            is_itself, late_s = int(generation) == generation_of(silo), float(age_s)
        except ValueError:
            return Sign.REFUSED, f"the answer does not come from a silo: {answer!r}"
        if not is_itself:
            return Sign.REFUSED, f"generation {int(generation)} has its port now"
        if table_id != self._table_id:
            text = f"{silo} follows membership table {show_text(table_id)}, not {self._table_id}"
            self.strangers[silo] = OtherTable(text)
            return Sign.UNKNOWN, text
        if late_s > self._options.unresponsive_after_s:
            return Sign.REFUSED, f"its event loop has not run for {late_s:.1f} s"
        return Sign.ALIVE, ""

    async def _suspect(self, silo: str) -> bool:
        """Vote against a silo, after a second opinion if possible.

        Returns True if that opinion is that the silo lives.
        """
        if not self.may_accuse(silo):
            await self._voter.refresh()  # newer stamps show which silos live
            return False
        others = [other for other in self._opinions() if other != silo]
        confirmed: tuple[str, ...] = ()
        if others:
            via = others[self._env.choice(len(others))]
            is_alive = await self._ask(via, silo)
            if is_alive:
                return True
            if is_alive is False:
                confirmed = (via,)
        await self._voter.vote(silo, *confirmed)
        return False

    def _opinions(self) -> list[str]:
        """Return the silos that can be asked, preferably those without a missed probe."""
        active = self._voter.view.with_status(Status.ACTIVE)
        some = [silo for silo in active if silo != self._me and not self._has_missed(silo)]
        return [silo for silo in some if silo not in self._missed] or some

    async def _ask(self, via: str, silo: str) -> bool | None:
        """Ask another silo whether the silo lives. None means no answer in time."""
        try:
            async with asyncio.timeout(2 * self._options.probe_timeout_s):
                return await self._voter.ask_other(via, silo)
        except (MillstreamError, TimeoutError):
            return None  # the asked silo fails itself: only the own vote counts
