"""This silo as a member of the cluster: joining, watching, voting and leaving.

`Member` owns this silo's row, its view with the listeners, and gossip. Other modules own the table
(`table`), probing (`prober`), the effect of a vote (`votes`), and reaching the other silos while
joining (`joiner`).

Invariants:

- A view comes only from this silo's own table. A message of another silo is a reason to read the
  table, never a view.
- A lower version never replaces a higher one.
- A silo that reads that it is dead, or that its row is missing after it had joined, stops at once
  and writes nothing more. A silo that is stopping ignores this.
- A table that cannot be read evicts no silo.
- A silo becomes active only after each active silo has read its row and answered it, or was
  evicted.
- When `join` returns, the other silos have been told that this silo is active.
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
ANNOUNCED_WITHIN_S = 1.0  # a silo that does not answer by then reads the change in the table
replace = msgspec.structs.replace


class MemberTarget(SystemTarget):
    """The `$member` target, by which other silos report and ask about the membership."""

    target_name = "$member"

    def __init__(self, member: Member) -> None:
        self._member = member

    async def gossip(self, version: int) -> None:
        """Hear that the table has this version, and read it. Raises StorageUnavailable."""
        await self._member.hear(version)

    async def greet(self, silo: str, version: int) -> str:
        """Confirm to a joining silo that this silo has read its row and that its event loop runs.

        Raises StorageUnavailable, and ClusterError if this silo's table has no such row.
        """
        member = self._member
        await member.hear(version)
        if member.is_dead(silo):
            raise ClusterError(
                f"{member.address} has no live row of {silo} in its membership table"
            )
        return member.address

    async def probe_for(self, silo: str) -> bool | None:
        """Probe a silo for another silo. False means no answer, None an unclear result."""
        sign = await self._member.prober.probe(silo)
        return None if sign is Sign.UNKNOWN else sign is Sign.ALIVE


class Gossip:
    """Tells the other silos that the table has a newer version."""

    def __init__(self, me: str, targets: Targets, tasks: Tasks) -> None:
        self._me = me
        self._targets = targets
        self._tasks = tasks

    def tell_all(self, view: TableView) -> list[asyncio.Task[None]]:
        """Tell every other silo that is not dead. Returns the tasks of these calls."""
        others = [row.silo for row in view.rows if row.status is not Status.DEAD]
        return [self.tell(silo, view.version) for silo in others if silo != self._me]

    def tell(self, silo: str, version: int) -> asyncio.Task[None]:
        """Tell one silo. Returns the task of the call."""
        return self._tasks.start(self._send(silo, version))

    async def _send(self, silo: str, version: int) -> None:
        try:
            await self._targets.call(silo, MemberTarget.target_name, MemberTarget.gossip, version)
        except MillstreamError as error:
            log.debug("gossip to %s failed: %s", silo, error)


class Member:
    """The membership as this silo sees it.

    Args:
        row: the row of this silo. Its status is written as the silo's life proceeds.
        lag_s: returns the lag of this silo's event loop.
        refusals: by silo, the reason why that silo and this one can never talk.
        table_id: the short id of the table, which silos compare.
        evicted: called with the reason when this silo reads that it is dead.

    Attributes:
        awaited: the active silos that have not answered this joining silo yet.
        is_joining: True while the row is in the table but the other silos have not been told that
            this silo is active.
        table_text: the table as messages show it.
        gossip: tells the other silos about new versions.
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
        """Return True if the silo is dead, or missing in the view."""
        row = self.view.row(silo)
        return row is None or row.status is Status.DEAD

    def is_live(self, silo: str) -> bool:
        """Return True if the silo is in the view and not dead."""
        row = self.view.row(silo)
        return row is not None and row.status is not Status.DEAD

    def active(self) -> tuple[str, ...]:
        """Return the active silos, sorted."""
        return self.view.with_status(Status.ACTIVE)

    def watch(self, listener: Callable[[TableView], None]) -> Callable[[], None]:
        """Call `listener` with each newer view, in order. Returns a function that stops this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    # -- views

    def take(self, view: TableView) -> None:
        """Adopt a view if it is newer, and stop this silo if the view declares it dead."""
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
        if own is not None and self._joined and lacks_fields(own, self._row):
            self._tasks.start(self._restore())
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
        """Read the table if another silo names a version that this silo has not seen.

        The table decides: a version that it does not have is only logged. Raises
        StorageUnavailable.
        """
        if version > self.view.version:
            await self._reads.fresh()
        if version > self.view.version:
            text = "%s: another silo has version %d of the membership table, but the table has %d"
            log.warning(text, self.address, version, self.view.version)

    async def refresh_to(self, version: int) -> None:
        """Wait for a view of at least this version. Raises ClusterError if none arrives.

        One read of the table serves all waiting callers.
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
            f"{self.address}: the membership table did not reach version {version}; it has "
            f"{self.view.version}{why and ', and the last read of the table failed: '}{why}"
        )

    async def _write(
        self, change: Callable[[TableView], MemberRow | None]
    ) -> list[asyncio.Task[None]]:
        """Apply a change by compare-and-set, and retry while other silos change the table first.

        A change that returns None writes nothing. Returns the tasks that tell the other silos.
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
            f"{self.address}: could not write the membership table, because other silos changed it "
            f"during each of {WRITE_TRIES_MAX} attempts"
        )

    # -- joining

    async def join(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Become an active member.

        The steps are: declare predecessors dead, write the row, reach every active silo, call
        `prepare`, and tell all silos.
        """
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
        await prepare()  # other silos may call this one after the next step
        told = await self._write(self._activate_row)
        if self.is_dead(self.address):
            raise ClusterError(f"{self.address} was evicted while it joined")
        await wait_told(told)  # every silo may call this silo's grains now
        self.is_joining = False

    async def greet(self, silo: str) -> None:
        """Tell a silo that this one joins. Raises the errors of the call."""
        name = MemberTarget.target_name
        await self._targets.call(silo, name, MemberTarget.greet, self.address, self.view.version)

    def refusal_of(self, silo: str) -> Exception | None:
        """Return the reason why a silo and this one can never talk, if one is known."""
        return self.prober.strangers.get(silo) or self._refusals.get(silo)

    def wait_for(self, silos: Iterable[str]) -> None:
        """Set the silos that have not answered this joining silo yet, and probe them."""
        self.awaited = frozenset(silos)
        self.prober.follow(self.view)

    def _activate_row(self, view: TableView) -> MemberRow | None:
        check_agreement(self._row, view)  # again: more silos may be active now
        return self._own(view, Status.ACTIVE)

    def _own(self, view: TableView, status: Status) -> MemberRow | None:
        found = view.row(self.address)
        if found is not None and found.status is Status.DEAD:
            return None  # the status DEAD is final
        suspicions = () if found is None else found.suspicions
        self._row = replace(
            self._row, status=status, alive_s=self._env.wall_s(), suspicions=suspicions
        )
        return self._row

    async def _restore(self) -> None:
        """Write the own row again, after a silo of an older version has written it without the
        fields that this version does not know.
        """

        def change(view: TableView) -> MemberRow | None:
            own = view.row(self.address)
            if self.is_leaving or own is None or not lacks_fields(own, self._row):
                return None
            return self._own(view, own.status)

        try:
            await self._write(change)
        except MillstreamError as error:
            log.info("%s could not restore its row: %s", self.address, error)

    async def _heartbeats(self) -> None:
        every_s = self._options.heartbeat_s
        while True:
            await asyncio.sleep(every_s * self._env.uniform(0.8, 1.0))
            try:
                await self._table.heartbeat(self.address, self._env.wall_s())
            except MillstreamError as error:
                log.warning("%s cannot write its heartbeat: %s", self.address, error)
            except Exception:
                log.exception("%s cannot write its heartbeat", self.address)

    async def _refreshes(self) -> None:
        every_s = self._options.refresh_s
        while True:
            await asyncio.sleep(every_s * self._env.uniform(0.8, 1.0))
            try:
                await self.refresh()
                self.prober.follow(self.view)  # missing stamps create no newer view
                await self._forget_one()
            except MillstreamError as error:
                log.warning("%s cannot read the membership table: %s", self.address, error)
            except Exception:
                log.exception("%s cannot read the membership table", self.address)

    async def _forget_one(self) -> None:
        """Delete the oldest row of a dead silo, if it is too old.

        Only the first active silo does this. It deletes one row at a time, because a view that
        directly follows the last one costs the directory nothing.
        """
        if self.active()[:1] != (self.address,):
            return
        kept_s = self._options.dead_rows_kept_s
        dead = [row for row in self.view.rows if row.status is Status.DEAD]
        oldest = min(dead, key=lambda row: row.last_sign_s, default=None)
        if oldest is None or self._env.wall_s() - oldest.last_sign_s <= kept_s:
            return
        if await self._table.forget(oldest.silo, self.view.version):
            log.info("deleted the row of %s, dead for more than %g s", oldest.silo, kept_s)
            await self.refresh()
            self.gossip.tell_all(self.view)

    # -- voting and leaving

    async def ask_other(self, via: str, silo: str) -> bool | None:
        """Let another silo probe a silo. Returns whether it lives, or None if that is unclear."""
        name = MemberTarget.target_name
        return await self._targets.call(via, name, MemberTarget.probe_for, silo)

    async def vote(self, silo: str, *others: str) -> None:
        """Suspect a silo, also for the silos `others`. The votes evict it if they suffice."""

        def change(view: TableView) -> MemberRow | None:
            row = view.row(silo)
            if self.is_leaving or row is None or row.status is Status.DEAD:
                return None
            if not self.prober.may_accuse(silo):  # for example, it has just stamped its row
                return None
            now_s = self._env.wall_s()
            options = self._options
            # silos that neither answer probes nor stamp their rows cannot vote
            silent = {one.silo for one in view.rows if self.prober.is_silent(one.silo)}
            counted = without(view, silent - {silo})
            voted = suspect(counted, row, (self.address, *others), now_s, options)
            return None if is_repeated(row, voted, now_s, options.vote_expires_s / 2) else voted

        await self._write(change)
        if self.is_dead(silo):
            self.gossip.tell(silo, self.view.version)  # the evicted silo stops if this arrives

    async def leave(self, status: Status) -> None:
        """Write the own row as stopping or dead. No effect if the silo is not in the table."""
        self.is_leaving = True
        told = await self._write(
            lambda view: None if view.row(self.address) is None else self._own(view, status)
        )
        await wait_told(told)

    async def aclose(self) -> None:
        """Stop watching, without writing to the table."""
        self.is_leaving = True
        self.prober.close()
        await self._tasks.aclose()


def is_repeated(row: MemberRow, voted: MemberRow, now_s: float, fresh_s: float) -> bool:
    """Return True if the row already has these votes, all younger than `fresh_s`."""
    known = {voter for voter, time_s in row.suspicions if now_s - time_s < fresh_s}
    return voted.status is row.status and known.issuperset(dict(voted.suspicions))


def lacks_fields(found: MemberRow, own: MemberRow) -> bool:
    """Return True if the row of a silo in the table lacks data for the placement of grains."""
    return (found.labels, found.requirements, found.versions) != (
        own.labels,
        own.requirements,
        own.versions,
    )


def with_newer_stamps(old: TableView, new: TableView) -> TableView:
    """Return `old` with the newer heartbeats of `new`. Nothing else differs within a version."""
    stamps = {row.silo: row.alive_s for row in new.rows}
    rows = tuple(
        replace(row, alive_s=max(row.alive_s, stamps.get(row.silo, row.alive_s)))
        for row in old.rows
    )
    return TableView(old.version, rows)


async def wait_told(told: list[asyncio.Task[None]]) -> None:
    """Wait for a short time until the other silos are told. They also read the table."""
    if told:
        await asyncio.wait(told, timeout=ANNOUNCED_WITHIN_S)


def why_evicted(own: MemberRow | None, version: int) -> str:
    """Return the table's statement about a silo that is dead."""
    voters = ", ".join(voter for voter, _ in own.suspicions) if own is not None else ""
    by = f"suspected by {voters}" if voters else "declared dead by a newer silo at its address"
    what = f"lists the silo as dead: {by}" if own is not None else "has no row of the silo"
    return f"version {version} of the membership table {what}"
