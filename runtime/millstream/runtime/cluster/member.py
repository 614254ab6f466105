"""This silo's part in the membership: joining, watching, voting, leaving.

Owns: the own row, the view, gossip and its listeners. Not: the table (`membership`), probing
(`probe`), what a vote does (`votes`). Invariants: a lower version never replaces a higher one; a
silo that reads itself dead, or missing after it had joined, stops at once and writes nothing more;
while stopping it ignores that; a table that cannot be read evicts nobody; a silo becomes active
only when each active one has read its row and answered it, or was evicted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from millstream.runtime.calls.system_target import SystemTarget
from millstream.runtime.errors import ClusterError, ConfigError, MillstreamError

from .prober import Prober
from .table import MemberRow, MembershipTable, Status, TableView
from .votes import superseded, suspect

if TYPE_CHECKING:
    from millstream.runtime.silo.parts import SiloHost

__all__ = ["Member", "MemberTarget"]

log = logging.getLogger("millstream.member")

WRITE_TRIES_MAX = 100
RETRY_S = 0.05
REACH_CEILING_S = 0.25
WAIT_TOLD_EVERY_S = 5.0
replace = msgspec.structs.replace


class MemberTarget(SystemTarget):
    """What other silos tell this one about the membership."""

    target_name = "$member"

    def __init__(self, member: Member) -> None:
        self._member = member

    async def gossip(self, view: TableView) -> None:
        """A view that may be newer."""
        self._member.take(view)

    async def greet(self, view: TableView) -> str:
        """A silo joins: the answer says that this one knows it, and that its loop runs."""
        self._member.take(view)
        return self._member.address

    async def probe_for(self, silo: str) -> bool:
        """Probe a silo on behalf of another; False: no answer."""
        return await self._member.prober.probe_once(silo)


class Member:
    """The membership as this silo sees it."""

    def __init__(self, host: SiloHost, table: MembershipTable, row: MemberRow) -> None:
        self._host = host
        self._table = table
        self._row = row
        self.address = row.silo
        self.view = TableView(0)
        self.prober = Prober(host, self)
        self._listeners: list[Callable[[TableView], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._joined = False
        self.awaited: frozenset[str] = frozenset()  # active silos that did not answer yet
        self.is_leaving = False
        self._newer: asyncio.Future[None] | None = None

    # -- questions

    def is_dead(self, silo: str) -> bool:
        """Is the silo dead, or unknown to a view that should know it?"""
        row = self.view.row(silo)
        return row is None or row.status is Status.DEAD

    def is_live(self, silo: str) -> bool:
        """Is the silo in the view and not dead?"""
        return not self.is_dead(silo)

    def active(self) -> tuple[str, ...]:
        """Active silos, sorted."""
        return self.view.with_status(Status.ACTIVE)

    @property
    def is_joining(self) -> bool:
        """Is this silo in the table, and not active yet?"""
        row = self.view.row(self.address)
        return row is not None and row.status is Status.JOINING

    def watch(self, listener: Callable[[TableView], None]) -> Callable[[], None]:
        """Call back with each newer view, in order; returns a function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    # -- views

    def take(self, view: TableView) -> None:
        """Adopt a view if it is newer; find out whether it says that we are dead."""
        if view.version <= self.view.version:
            if view.version == self.view.version:
                self.view = with_newer_stamps(self.view, view)
                self.prober.saw(self.view)
            return
        self.view = view
        self.prober.saw(view)
        own = view.row(self.address)
        if self._joined and not self.is_leaving and (own is None or own.status is Status.DEAD):
            log.error(
                "%s reads in version %d that it is dead, and stops", self.address, view.version
            )
            self._host.evicted()
            return
        for listener in list(self._listeners):
            try:
                listener(view)
            except Exception:
                log.exception("a membership listener failed")
        newer, self._newer = self._newer, None
        if newer is not None and not newer.done():
            newer.set_result(None)

    async def refresh(self) -> None:
        """Read the table. Raises StorageUnavailable."""
        self.take(await self._table.read())

    async def refresh_to(self, version: int) -> None:
        """Wait for a view of at least this version; raises ClusterError if none comes."""
        for attempt in range(WRITE_TRIES_MAX):
            if self.view.version >= version:
                return
            await self.refresh()
            if self.view.version < version:
                await asyncio.sleep(RETRY_S * min(attempt + 1, 10))
        raise ClusterError(f"the membership table does not reach version {version}")

    async def _write(self, change: Callable[[TableView], MemberRow | None]) -> None:
        """Apply a change by compare-and-set, as often as others come first; None: nothing to do."""
        for attempt in range(WRITE_TRIES_MAX):
            view = await self._table.read()
            self.take(view)
            row = change(view)
            if row is None:
                return
            if await self._table.write(row, view.version):
                await self.refresh()
                self._gossip()
                return
            await asyncio.sleep(self._host.env.uniform(0, RETRY_S * min(attempt + 1, 20)))
        raise ClusterError(
            f"{self.address}: the membership table changed {WRITE_TRIES_MAX} times "
            "under every try to write it"
        )

    def _gossip(self) -> None:
        for row in self.view.rows:
            if row.silo != self.address and row.status is not Status.DEAD:
                self._host.spawn(self._gossip_to(row.silo))

    async def _gossip_to(self, silo: str) -> None:
        try:
            await self._host.targets.call(
                silo, MemberTarget.target_name, MemberTarget.gossip, self.view
            )
        except MillstreamError as error:
            log.debug("gossip to %s: %s", silo, error)

    # -- joining

    async def join(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Become active: end predecessors, write the row, reach every active silo, `prepare`."""
        view = await self._table.read()
        self.take(view)
        for row in superseded(view, self.address):
            await self._write(lambda v, silo=row.silo: self._declared_dead(v, silo))  # type: ignore[misc]
        await self._write(lambda view: self._own(view, Status.JOINING))
        self._joined = True
        self._tasks.append(self._host.loop.create_task(self._heartbeats()))
        self._tasks.append(self._host.loop.create_task(self._refreshes()))
        self.prober.start()
        await self._reach_everyone()
        await prepare()  # from the next step on others call this silo
        await self._write(lambda view: self._own(view, Status.ACTIVE))
        if self.is_dead(self.address):
            raise ClusterError(f"{self.address} was evicted while it joined")

    def _own(self, view: TableView, status: Status) -> MemberRow | None:
        found = view.row(self.address)
        if found is not None and found.status is Status.DEAD:
            return None  # the dead stay dead, whatever they were about to say
        suspicions = () if found is None else found.suspicions
        self._row = replace(
            self._row, status=status, alive_s=self._host.env.wall_s(), suspicions=suspicions
        )
        return self._row

    def _declared_dead(self, view: TableView, silo: str) -> MemberRow | None:
        row = view.row(silo)
        if row is None or row.status is Status.DEAD:
            return None
        return replace(row, status=Status.DEAD)

    async def _reach_everyone(self) -> None:
        """Exchange a message with every active silo, or see it evicted.

        Raises ClusterError after `join_timeout_s`, ConfigError for a table of another cluster.
        """
        limit_s = self._host.membership_options.join_timeout_s
        wait = Wait(self.address, limit_s, self._host.loop.time())
        reached, pause_s = {self.address}, RETRY_S
        try:
            async with asyncio.timeout(limit_s):
                while left := [silo for silo in self.active() if silo not in reached]:
                    self._await(left)
                    wait.begin(left)
                    failures = await self._greet_all(left)
                    reached.update(silo for silo in left if silo not in failures)
                    wait.tell(failures, self._host.loop.time())
                    await asyncio.sleep(pause_s if failures else 0)
                    pause_s = min(2 * pause_s, REACH_CEILING_S)
                    await self.refresh()
                    self._check_may_join(failures)
        except TimeoutError:
            text = f"{self.address} did not join within {limit_s:g} s (join_timeout_s): {wait.why}"
            raise ClusterError(text) from None
        finally:
            self._await(())

    def _check_may_join(self, failures: Iterable[str]) -> None:
        if self.is_dead(self.address):
            raise ClusterError(f"{self.address} was evicted while it joined")
        for silo in failures:
            found = self._host.peers.foreign.get(silo)
            if found is not None:
                raise ConfigError(
                    f"{silo}, of the same membership table, is in cluster {found!r}, "
                    f"not {self._host.cluster!r}"
                )

    def _await(self, silos: Sequence[str]) -> None:
        self.awaited = frozenset(silos)
        self.prober.follow(self.view)

    async def _greet_all(self, silos: Sequence[str]) -> dict[str, str]:
        """Why which of the silos did not answer."""
        errors = await asyncio.gather(*map(self._greet, silos))
        return {silo: error for silo, error in zip(silos, errors, strict=True) if error}

    async def _greet(self, silo: str) -> str:
        try:
            await self._host.targets.call(
                silo, MemberTarget.target_name, MemberTarget.greet, self.view
            )
        except MillstreamError as error:
            return str(error)
        return ""

    async def _heartbeats(self) -> None:
        every_s = self._host.membership_options.heartbeat_s
        while True:
            await asyncio.sleep(every_s * self._host.env.uniform(0.8, 1.0))
            try:
                await self._table.heartbeat(self.address, self._host.env.wall_s())
            except MillstreamError as error:
                log.warning("%s cannot stamp its row: %s", self.address, error)

    async def _refreshes(self) -> None:
        every_s = self._host.membership_options.refresh_s
        while True:
            await asyncio.sleep(every_s * self._host.env.uniform(0.8, 1.0))
            try:
                await self.refresh()
                self.prober.follow(self.view)  # stamps that stand still make no newer view
                await self._forget_one()
            except MillstreamError as error:
                log.warning("%s cannot read the membership table: %s", self.address, error)

    async def _forget_one(self) -> None:
        """The first of the active silos deletes the oldest row of a dead one that is too old.

        One at a time: a view that follows on the last one costs the directory nothing.
        """
        if self.active()[:1] != (self.address,):
            return
        kept_s = self._host.membership_options.dead_rows_kept_s
        dead = [row for row in self.view.rows if row.status is Status.DEAD]
        oldest = min(dead, key=lambda row: row.last_sign_s, default=None)
        if oldest is None or self._host.env.wall_s() - oldest.last_sign_s <= kept_s:
            return
        if await self._table.forget(oldest.silo, self.view.version):
            log.info("%s is forgotten, dead for more than %g s", oldest.silo, kept_s)
            await self.refresh()
            self._gossip()

    # -- voting and leaving

    async def vote(self, silo: str, *others: str) -> None:
        """Suspect a silo, also on behalf of `others`; evicts it if the votes suffice."""

        def change(view: TableView) -> MemberRow | None:
            row = view.row(silo)
            if self.is_leaving or row is None or row.status is Status.DEAD:
                return None
            if not self.prober.may_accuse(silo):  # it has stamped its row just now
                return None
            now_s = self._host.env.wall_s()
            options = self._host.membership_options
            counted = self._without_silent(view, silo)
            voted = suspect(counted, row, (self.address, *others), now_s, options)
            return None if is_repeated(row, voted, now_s, options.vote_expires_s / 2) else voted

        await self._write(change)
        if self.is_dead(silo):
            log.warning("%s was evicted (version %d)", silo, self.view.version)
            self._host.spawn(self._gossip_to(silo))  # if it can hear, it stops now

    def _without_silent(self, view: TableView, suspected: str) -> TableView:
        """Who counts when votes are: silos that are silent both ways cannot vote, ever."""
        rows = tuple(
            row for row in view.rows if row.silo == suspected or not self.prober.is_silent(row.silo)
        )
        return TableView(view.version, rows)

    async def leave(self, status: Status) -> None:
        """Write the own row as stopping or dead; nothing to do for who is not in the table."""
        self.is_leaving = True
        await self._write(
            lambda view: None if view.row(self.address) is None else self._own(view, status)
        )

    async def aclose(self) -> None:
        """Stop watching; does not write."""
        self.is_leaving = True
        self.prober.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Wait:
    """What a joining silo says while it waits: at first, and then now and then."""

    def __init__(self, silo: str, limit_s: float, now: float) -> None:
        self._silo = silo
        self._limit_s = limit_s
        self._started = now
        self._told: float | None = None
        self._silos: dict[str, str] = {}

    def begin(self, silos: Sequence[str]) -> None:
        """Note who is waited for."""
        self._silos = {silo: self._silos.get(silo, "no answer yet") for silo in silos}

    def tell(self, failures: dict[str, str], now: float) -> None:
        """Note who did not answer, and log it if that was not done a moment ago."""
        self._silos = failures
        if failures and (self._told is None or now - self._told >= WAIT_TOLD_EVERY_S):
            self._told = now
            waited_s = now - self._started
            text = "%s waits to join, %.1f s of at most %g s (join_timeout_s): %s"
            log.warning(text, self._silo, waited_s, self._limit_s, self.why)

    @property
    def why(self) -> str:
        """Who did not answer, and what was found instead."""
        return "; ".join(f"{silo} does not answer ({why})" for silo, why in self._silos.items())


def is_repeated(row: MemberRow, voted: MemberRow, now_s: float, fresh_s: float) -> bool:
    """Would the row say nothing that it does not say already, with votes younger than that?"""
    known = {voter for voter, time_s in row.suspicions if now_s - time_s < fresh_s}
    return voted.status is row.status and known.issuperset(dict(voted.suspicions))


def with_newer_stamps(old: TableView, new: TableView) -> TableView:
    """`old` with the newer heartbeats of `new`: within a version nothing else can differ."""
    stamps = {row.silo: row.alive_s for row in new.rows}
    rows = tuple(
        replace(row, alive_s=max(row.alive_s, stamps.get(row.silo, row.alive_s)))
        for row in old.rows
    )
    return TableView(old.version, rows)
