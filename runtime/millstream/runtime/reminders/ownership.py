"""The buckets whose reminders one silo delivers, and their hand-over between silos.

`BucketOwnership` follows the views of the membership. The owner of a bucket is the owner of its
point on the ring of active silos that host handlers of reminders. A silo that gains buckets asks
every other live silo to release them, as the directory asks for activations
(docs/decisions/0002-directory-recovery.md).

Invariants:

- A lost bucket is dropped as soon as the view is known. Deliveries from it that run go on.
- A gained bucket is owned only when every live silo has the same view and no delivery from the
  bucket runs there, or after `reminder_release_s`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from millstream.runtime.calls.system_target import SystemTarget, Targets
from millstream.runtime.cluster.member import Member
from millstream.runtime.cluster.ring import Ring
from millstream.runtime.cluster.table import MemberRow, Status, TableView
from millstream.runtime.definition.reminders import REMINDERS, ReminderHandler, handlers_in
from millstream.runtime.errors import MillstreamError, NotHosted
from millstream.runtime.tasks import Tasks

from .agenda import Agenda, ranges_of
from .table import BUCKETS, BucketRange, ReminderRow, bucket_of, point_of

__all__ = ["BucketOwnership", "ReminderTarget"]

log = logging.getLogger("millstream.reminders")

ASK_AGAIN_S = 0.5
BucketRanges = list[BucketRange]


class ReminderTarget(SystemTarget):
    """The `$reminders` target: the questions and notices of other silos.

    Args:
        ended: waits until no delivery from some buckets runs here.
        noted: called with the newest row of a reminder, or None if there is none.
    """

    target_name = REMINDERS

    def __init__(
        self,
        members: Member,
        ended: Callable[[Sequence[BucketRange]], Awaitable[None]],
        noted: Callable[[str, str, ReminderRow | None], None],
    ) -> None:
        self._members = members
        self._ended = ended
        self._noted = noted

    async def release(self, version: int, buckets: BucketRanges) -> None:
        """Return once no delivery from these buckets runs here, at this version of the view."""
        await self._members.refresh_to(version)
        await self._ended(buckets)

    async def note(self, grain: str, name: str, row: ReminderRow | None) -> None:
        """Learn the newest row of a reminder, or that there is none."""
        self._noted(grain, name, row)


class BucketOwnership:
    """The buckets of one silo.

    Args:
        changed: called when buckets were gained, or handlers were.
        release_s: how long other silos may take to release buckets.

    Attributes:
        handlers: the handlers of all active silos, by grain type and name.
    """

    def __init__(
        self,
        me: str,
        agenda: Agenda,
        members: Member,
        targets: Targets,
        tasks: Tasks,
        changed: Callable[[], None],
        release_s: float,
    ) -> None:
        self._me = me
        self._agenda = agenda
        self._members = members
        self._targets = targets
        self._tasks = tasks
        self._changed = changed
        self._release_s = release_s
        self._ring = Ring(())
        self._mine: frozenset[int] = frozenset()
        self._taking: dict[int, int] = {}  # buckets that are taken over, with their round
        self._round = 0
        self._unwatch: Callable[[], None] | None = None
        self.handlers: dict[tuple[str, str], ReminderHandler] = {}

    def start(self) -> None:
        """Follow the views from now on."""
        self._unwatch = self._members.watch(self._follow)
        self._follow(self._members.view)

    def end(self) -> None:
        """Give up all buckets."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        self._mine = frozenset()
        self._taking.clear()
        self._agenda.own(())

    def owner_of(self, grain: str) -> str | None:
        """Return the silo that delivers the reminders of a grain, as far as this silo knows."""
        return self._ring.owner(point_of(bucket_of(grain)))

    def _follow(self, view: TableView) -> None:
        """Apply a view: drop lost buckets at once, and take over gained ones."""
        declared = {
            row.silo: handlers_in(row.declarations)
            for row in view.rows
            if row.status is Status.ACTIVE
        }
        known = self.handlers
        self.handlers = {(one.kind, one.name): one for of in declared.values() for one in of}
        silos = tuple(sorted(silo for silo, of in declared.items() if of))
        if silos != self._ring.silos:
            self._apply(Ring(silos), view)
        if self.handlers.keys() - known.keys():
            self._changed()  # reminders without a handler may have one now

    def _apply(self, ring: Ring, view: TableView) -> None:
        self._ring = ring
        mine = frozenset(b for b in range(BUCKETS) if ring.owner(point_of(b)) == self._me)
        gained, self._mine = mine - self._mine, mine
        self._taking = {bucket: of for bucket, of in self._taking.items() if bucket in mine}
        self._agenda.own(self._agenda.owned & mine)
        if gained:
            self._round += 1
            self._taking.update(dict.fromkeys(gained, self._round))
            self._tasks.start(self._take_over(self._round, view, gained))

    async def _take_over(self, number: int, view: TableView, gained: frozenset[int]) -> None:
        """Own buckets once no other live silo delivers from them."""
        others = [row.silo for row in view.rows if row.silo != self._me and may_deliver(row)]
        ranges = ranges_of(gained)
        asking = [self._tasks.start(self._ask(silo, view.version, ranges)) for silo in others]
        if asking:
            _, silent = await asyncio.wait(asking, timeout=self._release_s)
            for task in asking:  # in order, so that a simulated run repeats
                task.cancel()
            if silent:
                text = "%s: %d silos did not release their reminders within %g s; it delivers now"
                log.warning(text, self._me, len(silent), self._release_s)
        owned = {bucket for bucket in gained if self._taking.get(bucket) == number}
        for bucket in owned:
            del self._taking[bucket]
        self._agenda.own(self._agenda.owned | owned)
        self._changed()

    async def _ask(self, silo: str, version: int, ranges: BucketRanges) -> None:
        """Ask a silo until it has released buckets, or is no longer in the cluster."""
        while self._members.is_live(silo):
            try:
                target = ReminderTarget.target_name
                await self._targets.call(silo, target, ReminderTarget.release, version, ranges)
                return
            except NotHosted:  # it has no reminders
                return
            except MillstreamError as error:
                log.debug("%s: %s has not released its reminders yet: %s", self._me, silo, error)
            await asyncio.sleep(ASK_AGAIN_S)


def may_deliver(row: MemberRow) -> bool:
    """Return whether a silo may have deliveries that run."""
    is_live = row.status in (Status.ACTIVE, Status.STOPPING)
    return is_live and bool(handlers_in(row.declarations))
