"""This silo's part in the membership: joining, watching, voting, leaving.

Owns: the own row, the view and its listeners, gossip. Not: the table (`table`), probing
(`prober`), what a vote does (`votes`), reaching the others while joining (`joiner`). Invariants: a
view comes from this silo's own table only, and what others tell is a reason to read it, never a
view; a lower version never replaces a higher one; a silo that reads itself dead, or missing after
it had joined, stops at once and writes nothing more; while stopping it ignores that; a table that
cannot be read evicts nobody; a silo becomes active only when each active one has read its row and
answered it, or was evicted; when `join` returns the others have been told that it is active.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from millstream.runtime.calls.system_target import SystemTarget, Targets
from millstream.runtime.env import Env
from millstream.runtime.errors import ClusterError, MillstreamError, StorageUnavailable
from millstream.runtime.options import MembershipOptions
from millstream.runtime.tasks import Tasks
from millstream.runtime.wire.transport import Transport

from .agreement import check_agreement
from .changes import tell_changes
from .joiner import Reach
from .limited_table import LimitedTable, SharedReads
from .prober import Prober, Sign
from .table import MemberRow, MembershipTable, Status, TableView, table_text
from .votes import declare_dead, find_superseded, suspect, without

__all__ = ["Member", "MemberTarget"]

log = logging.getLogger("millstream.member")

WRITE_TRIES_MAX = 100
REFRESH_TRIES_MAX = 100
RETRY_S = 0.05
ANNOUNCED_WITHIN_S = 1.0  # who does not answer by then reads it in the table
replace = msgspec.structs.replace


class MemberTarget(SystemTarget):
    """What other silos tell this one about the membership."""

    target_name = "$member"

    def __init__(self, member: Member) -> None:
        self._member = member

    async def gossip(self, version: int) -> None:
        """The membership table has this version: a reason to read it. Raises StorageUnavailable."""
        await self._member.hear(version)

    async def greet(self, silo: str, version: int) -> str:
        """A silo joins: the answer says that this one has read its row, and that its loop runs.

        Raises StorageUnavailable; ClusterError: the table of this silo has no such row.
        """
        member = self._member
        await member.hear(version)
        if member.is_dead(silo):
            raise ClusterError(
                f"{member.address} finds no row of {silo} that is alive in its membership table"
            )
        return member.address

    async def probe_for(self, silo: str) -> bool | None:
        """Probe a silo on behalf of another; False: no answer, None: that says nothing."""
        sign = await self._member.prober.probe(silo)
        return None if sign is Sign.UNKNOWN else sign is Sign.ALIVE


class Gossip:
    """Tells the other silos that the table has a newer version."""

    def __init__(self, me: str, targets: Targets, tasks: Tasks) -> None:
        self._me = me
        self._targets = targets
        self._tasks = tasks

    def tell_all(self, view: TableView) -> list[asyncio.Task[None]]:
        """Tell every other silo that is not dead; returns the tasks that do so."""
        others = [row.silo for row in view.rows if row.status is not Status.DEAD]
        return [self.tell(silo, view.version) for silo in others if silo != self._me]

    def tell(self, silo: str, version: int) -> asyncio.Task[None]:
        """Tell one silo; returns the task that does so."""
        return self._tasks.start(self._send(silo, version))

    async def _send(self, silo: str, version: int) -> None:
        try:
            await self._targets.call(silo, MemberTarget.target_name, MemberTarget.gossip, version)
        except MillstreamError as error:
            log.debug("gossip to %s: %s", silo, error)


class Member:
    """The membership as this silo sees it.

    Args:
        row: of this silo; its status is written as it goes on.
        lag_s: by how much this silo's loop is late.
        refusals: why a silo and this one will never talk, by silo.
        table_id: names the table, as silos tell each other.
        evicted: called when this silo reads that it is dead, with the reason.

    Attributes: `awaited`, the active silos that did not answer a joining one yet; `is_joining`:
    in the table, and the others have not been told yet that it is active; `table_text`, the table
    as messages show it; `gossip`, what tells the others.
    """

    def __init__(
        self,
        row: MemberRow,
        table: MembershipTable,
        *,
        options: MembershipOptions,
        targets: Targets,
        transport: Transport,
        env: Env,
        tasks: Tasks,
        lag_s: Callable[[], float],
        refusals: Mapping[str, Exception],
        table_id: str,
        evicted: Callable[[str], None],
    ) -> None:
        self._row = row
        self._table = LimitedTable(table)
        self.table_text = table_text(table)
        self._options = options
        self._targets = targets
        self._env = env
        self._tasks = tasks
        self._refusals = refusals
        self._reads = SharedReads(self.refresh, tasks)
        self.gossip = Gossip(row.silo, targets, tasks)
        self._evicted = evicted
        self.address = row.silo
        self.view = TableView(0)
        self.prober = Prober(
            row.silo,
            self,
            options=options,
            transport=transport,
            env=env,
            tasks=tasks,
            lag_s=lag_s,
            table_id=table_id,
        )
        self._listeners: list[Callable[[TableView], None]] = []
        self._joined = False
        self.is_joining = False
        self.awaited: frozenset[str] = frozenset()
        self.is_leaving = False
        targets.add(MemberTarget(self))

    # -- questions

    def is_dead(self, silo: str) -> bool:
        """Is the silo dead, or unknown to a view that should know it?"""
        row = self.view.row(silo)
        return row is None or row.status is Status.DEAD

    def is_live(self, silo: str) -> bool:
        """Is the silo in the view and not dead?"""
        row = self.view.row(silo)
        return row is not None and row.status is not Status.DEAD

    def active(self) -> tuple[str, ...]:
        """Active silos, sorted."""
        return self.view.with_status(Status.ACTIVE)

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
        old, self.view = self.view, view
        self.prober.saw(view)
        own = view.row(self.address)
        if self._joined and not self.is_leaving and (own is None or own.status is Status.DEAD):
            self._evicted(why_evicted(own, view.version))
            return
        tell_changes(self.address, old, view)
        self.prober.follow(view)
        for listener in list(self._listeners):
            try:
                listener(view)
            except Exception:
                log.exception("a membership listener failed")

    async def refresh(self) -> None:
        """Read the table. Raises StorageUnavailable."""
        self.take(await self._table.read())

    async def hear(self, version: int) -> None:
        """Another silo names a version: read the table, unless this silo knows that it is so far.

        The table decides: a version that it does not have is not believed. Raises
        StorageUnavailable.
        """
        if version > self.view.version:
            await self._reads.fresh()
        if version > self.view.version:
            text = "%s: a silo named version %d of the membership table, which has %d"
            log.warning(text, self.address, version, self.view.version)

    async def refresh_to(self, version: int) -> None:
        """Wait for a view of at least this version; raises ClusterError if none comes.

        Many may ask at once: the table is read once for all of them.
        """
        why = ""
        for attempt in range(REFRESH_TRIES_MAX):
            if self.view.version >= version:
                return
            why = ""
            try:
                await self._reads.fresh()
            except StorageUnavailable as error:
                why = str(error)
            if self.view.version < version:
                await asyncio.sleep(RETRY_S * min(attempt + 1, 10))
        raise ClusterError(
            f"{self.address}: the membership table does not reach version {version}; it has "
            f"{self.view.version}{why and ', and the last try to read it failed: '}{why}"
        )

    async def _write(
        self, change: Callable[[TableView], MemberRow | None]
    ) -> list[asyncio.Task[None]]:
        """Apply a change by compare-and-set, as often as others come first; None: nothing to do.

        Returns the tasks that tell it to the others.
        """
        for attempt in range(WRITE_TRIES_MAX):
            view = await self._table.read()
            self.take(view)
            row = change(view)
            if row is None:
                return []
            if await self._table.write(row, view.version):
                await self.refresh()
                return self.gossip.tell_all(self.view)
            await asyncio.sleep(self._env.uniform(0, RETRY_S * min(attempt + 1, 20)))
        raise ClusterError(
            f"{self.address}: the membership table changed {WRITE_TRIES_MAX} times "
            "under every try to write it"
        )

    # -- joining

    async def join(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Become active: end predecessors, write the row, reach every active silo, `prepare`,
        and tell everyone."""
        view = await self._table.read()
        self.take(view)
        for row in find_superseded(view, self.address):
            await self._write(lambda v, silo=row.silo: declare_dead(v, silo))  # type: ignore[misc]
        await self._write(lambda view: self._own(view, Status.JOINING))
        self._joined = self.is_joining = True
        self._tasks.start(self._heartbeats())
        self._tasks.start(self._refreshes())
        self.prober.start()
        limit_s = self._options.join_timeout_s
        await Reach(self, limit_s).everyone()
        check_agreement(self._row, self.view)
        await prepare()  # from the next step on others call this silo
        told = await self._write(self._activate_row)
        if self.is_dead(self.address):
            raise ClusterError(f"{self.address} was evicted while it joined")
        await wait_told(told)  # calls to this silo's grains may be made anywhere now
        self.is_joining = False

    async def greet(self, silo: str) -> None:
        """Tell a silo that this one joins. Raises what the call raises."""
        name = MemberTarget.target_name
        await self._targets.call(silo, name, MemberTarget.greet, self.address, self.view.version)

    def refusal_of(self, silo: str) -> Exception | None:
        """Why a silo and this one will never talk, if that has shown."""
        return self.prober.strangers.get(silo) or self._refusals.get(silo)

    def wait_for(self, silos: Iterable[str]) -> None:
        """These did not answer this joining silo yet: probe them."""
        self.awaited = frozenset(silos)
        self.prober.follow(self.view)

    def _activate_row(self, view: TableView) -> MemberRow | None:
        check_agreement(self._row, view)  # again: others may have become active meanwhile
        return self._own(view, Status.ACTIVE)

    def _own(self, view: TableView, status: Status) -> MemberRow | None:
        found = view.row(self.address)
        if found is not None and found.status is Status.DEAD:
            return None  # the dead stay dead, whatever they were about to say
        suspicions = () if found is None else found.suspicions
        self._row = replace(
            self._row, status=status, alive_s=self._env.wall_s(), suspicions=suspicions
        )
        return self._row

    async def _heartbeats(self) -> None:
        every_s = self._options.heartbeat_s
        while True:
            await asyncio.sleep(every_s * self._env.uniform(0.8, 1.0))
            try:
                await self._table.heartbeat(self.address, self._env.wall_s())
            except MillstreamError as error:
                log.warning("%s cannot stamp its row: %s", self.address, error)
            except Exception:
                log.exception("%s cannot stamp its row", self.address)

    async def _refreshes(self) -> None:
        every_s = self._options.refresh_s
        while True:
            await asyncio.sleep(every_s * self._env.uniform(0.8, 1.0))
            try:
                await self.refresh()
                self.prober.follow(self.view)  # stamps that stand still make no newer view
                await self._forget_one()
            except MillstreamError as error:
                log.warning("%s cannot read the membership table: %s", self.address, error)
            except Exception:
                log.exception("%s cannot read the membership table", self.address)

    async def _forget_one(self) -> None:
        """The first of the active silos deletes the oldest row of a dead one that is too old.

        One at a time: a view that follows on the last one costs the directory nothing.
        """
        if self.active()[:1] != (self.address,):
            return
        kept_s = self._options.dead_rows_kept_s
        dead = [row for row in self.view.rows if row.status is Status.DEAD]
        oldest = min(dead, key=lambda row: row.last_sign_s, default=None)
        if oldest is None or self._env.wall_s() - oldest.last_sign_s <= kept_s:
            return
        if await self._table.forget(oldest.silo, self.view.version):
            log.info("%s is forgotten, dead for more than %g s", oldest.silo, kept_s)
            await self.refresh()
            self.gossip.tell_all(self.view)

    # -- voting and leaving

    async def ask_other(self, via: str, silo: str) -> bool | None:
        """Have another silo probe one: does it live? None: it cannot tell."""
        name = MemberTarget.target_name
        return await self._targets.call(via, name, MemberTarget.probe_for, silo)

    async def vote(self, silo: str, *others: str) -> None:
        """Suspect a silo, also on behalf of `others`; evicts it if the votes suffice."""

        def change(view: TableView) -> MemberRow | None:
            row = view.row(silo)
            if self.is_leaving or row is None or row.status is Status.DEAD:
                return None
            if not self.prober.may_accuse(silo):  # it has stamped its row just now
                return None
            now_s = self._env.wall_s()
            options = self._options
            # silos that are silent both ways cannot vote, ever
            silent = {one.silo for one in view.rows if self.prober.is_silent(one.silo)}
            counted = without(view, silent - {silo})
            voted = suspect(counted, row, (self.address, *others), now_s, options)
            return None if is_repeated(row, voted, now_s, options.vote_expires_s / 2) else voted

        await self._write(change)
        if self.is_dead(silo):
            self.gossip.tell(silo, self.view.version)  # if it can hear, it stops now

    async def leave(self, status: Status) -> None:
        """Write the own row as stopping or dead; nothing to do for who is not in the table."""
        self.is_leaving = True
        told = await self._write(
            lambda view: None if view.row(self.address) is None else self._own(view, status)
        )
        await wait_told(told)

    async def aclose(self) -> None:
        """Stop watching; does not write."""
        self.is_leaving = True
        self.prober.close()
        await self._tasks.aclose()


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


async def wait_told(told: list[asyncio.Task[None]]) -> None:
    """Wait until the others have been told; not for long: they read the table, too."""
    if told:
        await asyncio.wait(told, timeout=ANNOUNCED_WITHIN_S)


def why_evicted(own: MemberRow | None, version: int) -> str:
    """What the table says of a silo that is dead."""
    voters = ", ".join(voter for voter, _ in own.suspicions) if own is not None else ""
    by = f"voted out by {voters}" if voters else "a newer silo at its address wrote it"
    what = by if own is not None else "its row is gone"
    return f"the membership table says in version {version} that it is dead: {what}"
