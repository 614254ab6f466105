"""The grain directory: which silo has a grain, partitioned over the ring.

Owns: this silo's partition, its locking while ranges are gained, and the client side of
registration and lookup. Source: Orleans' DistributedGrainDirectory (spec/orleans-runtime.md 2.6),
with one recovery rule for joins, leaves and crashes alike: a silo that gains a range asks every
live member for its registered activations there (docs/decisions/0002-directory-recovery.md).
Invariants: operations on a range wait while it is being gained; a registration granted under a
view older than one whose recovery this silo has answered is made again before user code runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from millstream.runtime.calls.system_target import SystemTarget
from millstream.runtime.definition.grain import DeactivationReason
from millstream.runtime.errors import ClusterError, MillstreamError, SiloUnavailable
from millstream.runtime.turns.activation import Activation, ActivationState

from .partition import Entry, Partition
from .ring import HASH_MAX, Ring, Segment, covers, gained, hash_of
from .table import Status, TableView

if TYPE_CHECKING:
    from millstream.runtime.silo.parts import SiloHost

__all__ = ["Directory", "DirectoryTarget"]

log = logging.getLogger("millstream.directory")

RETRIES_MAX = 60
RETRY_FIRST_S = 0.01
RETRY_CEILING_S = 1.0
EVERYTHING: list[Segment] = [(0, HASH_MAX)]
NOT_OWNER = Entry("", 0, 0)
RecoveredRow = tuple[str, str, int, int]  # type, key, activation id, version


class DirectoryTarget(SystemTarget):
    """What other silos ask of this silo's partition."""

    target_name = "$directory"

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def register(
        self, kind: str, key: str, silo: str, activation_id: int, version: int
    ) -> Entry:
        """Compare-and-set; the stored entry, or NOT_OWNER with this silo's view version."""
        return await self._directory.own_register(
            kind, key, Entry(silo, activation_id, version), version
        )

    async def lookup(self, kind: str, key: str, version: int) -> Entry | None:
        """The entry, None, or NOT_OWNER."""
        return await self._directory.own_lookup(kind, key, version)

    async def unregister(self, kind: str, key: str, silo: str, activation_id: int) -> None:
        """Remove an entry; no effect if it names another activation."""
        self._directory.partition.unregister(kind, key, silo, activation_id)

    async def survivors(self, version: int, segments: list[Segment]) -> list[RecoveredRow]:
        """Registered activations of this silo in the segments; raises the barrier."""
        return self._directory.survivors(version, segments)

    async def end_duplicate(self, kind: str, key: str, activation_id: int) -> None:
        """Another activation won: end this one."""
        self._directory.end_duplicate(kind, key, activation_id)


class Directory:
    """Registration and lookup, here or at the owner."""

    def __init__(self, host: SiloHost) -> None:
        self._host = host
        self.partition = Partition()
        self._ring = Ring([])
        self._version = 0
        self._barrier = 0
        self._gaining: list[Segment] = []
        self._gained: asyncio.Future[None] | None = None
        self._recovery: asyncio.Task[None] | None = None
        self._cache: OrderedDict[tuple[str, str], str] = OrderedDict()
        self.is_alone = False

    # -- views

    def apply_view(self, view: TableView) -> None:
        """Take a newer view: drop what is no longer ours, gain what is."""
        if view.version <= self._version:
            return
        ring = Ring(view.with_status(Status.ACTIVE))
        me = self._host.address
        is_contiguous = view.version == self._version + 1 and self._version > 0
        fresh = gained(self._ring if is_contiguous else Ring([]), ring, me)
        self._ring, self._version = ring, view.version
        self.is_alone = ring.silos == (me,)
        dead = {row.silo for row in view.rows if row.status is Status.DEAD}
        live = {row.silo for row in view.rows if row.status is not Status.DEAD}
        self.partition.drop(
            lambda kind, key, entry: (
                entry.silo not in live or ring.owner(hash_of(f"{kind}/{key}")) != me
            )
        )
        for grain in [g for g, silo in self._cache.items() if silo in dead or silo not in live]:
            del self._cache[grain]
        if fresh:
            self._gain(fresh, view)

    def _gain(self, segments: list[Segment], view: TableView) -> None:
        others = [
            silo
            for silo in view.with_status(Status.ACTIVE, Status.STOPPING)
            if silo != self._host.address
        ]
        self._gaining = [*self._gaining, *segments]
        if self._recovery is not None:
            self._recovery.cancel()
        if not others:
            self._merge(self._host.address, self.survivors(view.version, self._gaining))
            self._unlock()
            return
        if self._gained is None:
            self._gained = self._host.loop.create_future()
        self._recovery = self._host.loop.create_task(self._recover(view.version, others))

    async def _recover(self, version: int, others: list[str]) -> None:
        """Ask every live member what it has in the ranges; a member that died answers nothing."""
        segments = list(self._gaining)
        self._merge(self._host.address, self.survivors(version, segments))
        await asyncio.gather(*(self._recover_from(silo, version, segments) for silo in others))
        self._unlock()

    async def _recover_from(self, silo: str, version: int, segments: list[Segment]) -> None:
        wait_s = RETRY_FIRST_S
        while self._host.membership.is_live(silo):
            try:
                rows = await self._host.targets.call(
                    silo,
                    DirectoryTarget.target_name,
                    DirectoryTarget.survivors,
                    version,
                    segments,
                )
            except MillstreamError as error:
                log.info("%s did not answer for its grains yet: %s", silo, error)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_CEILING_S)
            else:
                self._merge(silo, rows)
                return

    def _merge(self, silo: str, rows: list[RecoveredRow]) -> None:
        for kind, key, activation_id, version in rows:
            entry = Entry(silo, activation_id, version)
            loser = self.partition.recover(kind, key, entry)
            if loser is not None:
                log.warning("%s/%s was active twice; %s ends", kind, key, loser.silo)
                self._host.spawn(self._end_loser(loser, kind, key))

    async def _end_loser(self, loser: Entry, kind: str, key: str) -> None:
        await self._host.targets.call(
            loser.silo,
            DirectoryTarget.target_name,
            DirectoryTarget.end_duplicate,
            kind,
            key,
            loser.activation_id,
        )

    def _unlock(self) -> None:
        self._gaining, self._recovery = [], None
        gained_now, self._gained = self._gained, None
        if gained_now is not None and not gained_now.done():
            gained_now.set_result(None)

    def survivors(self, version: int, segments: list[Segment]) -> list[RecoveredRow]:
        """Activations here that hold a registration in the segments."""
        self._barrier = max(self._barrier, version)
        return [
            (a.table.name, a.key, a.id, a.version)
            for a in self._host.catalog.all()
            if a.version and covers(segments, hash_of(f"{a.table.name}/{a.key}"))
        ]

    def end_duplicate(self, kind: str, key: str, activation_id: int) -> None:
        """End an activation that lost a recovery."""
        table = self._host.tables.get(kind)
        activation = None if table is None else table.activations.get(key)
        if activation is not None and activation.id == activation_id:
            activation.version = 0
            self._host.catalog.deactivate(activation, DeactivationReason.DUPLICATE)

    # -- this silo's partition

    async def _owned(self, kind: str, key: str, version: int) -> bool:
        """Wait until this silo can answer for a grain; False if it does not own it."""
        if version > self._version:
            await self._host.membership.refresh_to(version)
        place = hash_of(f"{kind}/{key}")
        while self._gained is not None and covers(self._gaining, place):
            await asyncio.shield(self._gained)
        return self._ring.owner(place) == self._host.address

    async def own_register(self, kind: str, key: str, entry: Entry, version: int) -> Entry:
        """Serve a registration."""
        if not await self._owned(kind, key, version):
            return Entry("", 0, self._version)
        stamped = Entry(entry.silo, entry.activation_id, self._version)
        return self.partition.register(kind, key, stamped, self._host.membership.is_dead)

    async def own_lookup(self, kind: str, key: str, version: int) -> Entry | None:
        """Serve a lookup."""
        if not await self._owned(kind, key, version):
            return Entry("", 0, self._version)
        return self.partition.lookup(kind, key)

    # -- for this silo's catalog and router

    def register_now(self, activation: Activation) -> bool:
        """Register without waiting, if this silo is alone; True if that worked."""
        if not self.is_alone or self._gained is not None:
            return False
        entry = Entry(self._host.address, activation.id, self._version)
        self.partition.register(
            activation.table.name, activation.key, entry, self._host.membership.is_dead
        )
        activation.version = self._version
        return True

    async def register(self, activation: Activation) -> str | None:
        """Register before user code runs; the winner's silo if that is another activation."""
        name, key = activation.table.name, activation.key
        for attempt in range(RETRIES_MAX):
            owner, version = self._owner_of(name, key), self._version
            try:
                entry = await self._host.targets.call(
                    owner,
                    DirectoryTarget.target_name,
                    DirectoryTarget.register,
                    name,
                    key,
                    self._host.address,
                    activation.id,
                    version,
                )
            except ClusterError:
                await self._pause(attempt)
                continue
            if not entry.silo:
                await self._host.membership.refresh_to(entry.version)
                await self._pause(attempt)
            elif (entry.silo, entry.activation_id) != (self._host.address, activation.id):
                return entry.silo
            elif entry.version >= self._barrier:
                activation.version = entry.version
                return None
        raise SiloUnavailable(f"{activation}: the directory did not register it")

    async def lookup(self, kind: str, key: str) -> str | None:
        """The silo that has a grain, or None. Raises SiloUnavailable."""
        for attempt in range(RETRIES_MAX):
            owner, version = self._owner_of(kind, key), self._version
            try:
                entry = await self._host.targets.call(
                    owner,
                    DirectoryTarget.target_name,
                    DirectoryTarget.lookup,
                    kind,
                    key,
                    version,
                )
            except ClusterError:
                await self._pause(attempt)
                continue
            if entry is None:
                return None
            if entry.silo:
                return entry.silo
            await self._host.membership.refresh_to(entry.version)
            await self._pause(attempt)
        raise SiloUnavailable(f"{kind}/{key}: the directory did not answer")

    async def _pause(self, attempt: int) -> None:
        await asyncio.sleep(min(RETRY_FIRST_S * 2 ** min(attempt, 10), RETRY_CEILING_S))

    def _owner_of(self, kind: str, key: str) -> str:
        owner = self._ring.owner(hash_of(f"{kind}/{key}"))
        if owner is None:
            raise SiloUnavailable("no silo is active")
        return owner

    async def unregister(self, activation: Activation) -> None:
        """Remove the entry of an ending activation; best effort (a stale entry is corrected)."""
        if not activation.version or not self._ring.silos:
            return
        name, key = activation.table.name, activation.key
        if self.is_alone:
            self.partition.unregister(name, key, self._host.address, activation.id)
            return
        try:
            await self._host.targets.call(
                self._owner_of(name, key),
                DirectoryTarget.target_name,
                DirectoryTarget.unregister,
                name,
                key,
                self._host.address,
                activation.id,
            )
        except MillstreamError as error:
            log.debug("%s stays in the directory until it is met: %s", activation, error)

    # -- the cache of locations

    def cached(self, kind: str, key: str) -> str | None:
        """Where a grain was last seen, or None."""
        return self._cache.get((kind, key))

    def remember(self, kind: str, key: str, silo: str) -> None:
        """Note where a grain is."""
        self._cache[kind, key] = silo
        if len(self._cache) > self._host.options.directory_cache_max:
            self._cache.popitem(last=False)

    def forget(self, kind: str, key: str) -> None:
        """The grain is not where it was."""
        self._cache.pop((kind, key), None)

    def aclose(self) -> None:
        """Stop recovering; whoever waits is told."""
        if self._recovery is not None:
            self._recovery.cancel()
        if self._gained is not None and not self._gained.done():
            self._gained.set_exception(SiloUnavailable(f"{self._host.address} stopped"))
            self._gained.exception()


def is_registered(activation: Activation) -> bool:
    """Does the activation hold a registration (for checks)?"""
    states: Any = (ActivationState.ACTIVATING, ActivationState.VALID, ActivationState.DEACTIVATING)
    return activation.state in states
