"""The reminders of one silo: the parts put together, started and stopped.

Each reminder belongs to a bucket by its grain, and each bucket to one silo. `ReminderService`
connects the buckets of this silo (`ownership`), their loaded rows (`agenda`, `loader`), the
deliveries of due rows (`deliveries`), and the calls by which activations of this silo set and read
their reminders (`grain_reminders`). It tells other silos about changes that grains make here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from millstream.runtime.calls.system_target import Targets
from millstream.runtime.cluster.member import Member
from millstream.runtime.errors import MillstreamError
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation

from .agenda import Agenda
from .checked_table import CheckedTable, with_etag
from .deliveries import Deliveries, FireCall
from .grain_reminders import GrainReminders, ReminderCalls, ReminderHome
from .loader import ReminderLoader
from .ownership import BucketOwnership, ReminderTarget
from .record import StoredReminder
from .table import ReminderRow, ReminderTable

__all__ = ["ReminderCounts", "ReminderService"]

log = logging.getLogger("millstream.reminders")

NOTICES_MAX = 1_000
"""Notices to other silos that are under way. Without a notice, a silo reads the table later."""


@dataclass(frozen=True, slots=True)
class ReminderCounts:
    """The reminders of one silo in numbers, as `Silo.reminder_counts` returns them.

    Attributes:
        owned_buckets: The buckets, of 1,024, whose reminders this silo delivers.
        loaded: The reminders that are loaded, because they are due soon.
        running: The deliveries that run now.
        delivered: The deliveries since the start whose handler has ended.
        missed: Those of them that were later than `reminder_late_max_s`.
        failed: The handlers in this silo that raised, or did not end in time.
        without_handler: The reminders that are due and whose handler no active silo has.
        damaged: The damaged rows that the last complete read has found.
    """

    owned_buckets: int = 0
    loaded: int = 0
    running: int = 0
    delivered: int = 0
    missed: int = 0
    failed: int = 0
    without_handler: int = 0
    damaged: int = 0


class ReminderService:
    """The reminders of one silo.

    Args:
        fire: returns the call of `ReminderCalls.fire`, for a grain type and a deadline in seconds.
        wall_s: returns the wall time in seconds since 1970.
        uniform: returns a random number between two others.
    """

    def __init__(
        self,
        me: str,
        *,
        table: ReminderTable,
        members: Member,
        targets: Targets,
        tasks: Tasks,
        fire: Callable[[str, float], FireCall],
        wall_s: Callable[[], float],
        uniform: Callable[[float, float], float],
        options: RuntimeOptions,
    ) -> None:
        self._me = me
        self._targets = targets
        self._tasks = tasks
        self._notices = 0
        self._loops: list[asyncio.Task[None]] = []
        self._table = CheckedTable(table)
        due = asyncio.Event()

        def now_ms() -> int:
            return int(wall_s() * 1000)

        self._home = ReminderHome(self._table, now_ms, options.call_timeout_s, self.tell)
        self._agenda = agenda = Agenda(
            loaded_max=options.reminders_loaded_max, running_max=options.reminder_deliveries_max
        )
        self._ownership = BucketOwnership(
            me, agenda, members, targets, tasks, self._on_gained, options.reminder_release_s
        )
        self._loader = ReminderLoader(
            me,
            agenda,
            self._table,
            self._ownership,
            now_ms,
            uniform,
            due.set,
            options.reminder_refresh_s,
        )
        self._deliveries = Deliveries(
            me,
            agenda,
            self._table,
            self._ownership,
            self._loader,
            tasks,
            fire,
            now_ms,
            uniform,
            options,
            due,
        )
        targets.add(ReminderTarget(members, self._deliveries.until_ended, self.note))

    def start(self) -> None:
        """Begin to deliver. The silo is active."""
        for loop in (self._loader.run(), self._deliveries.run()):
            self._loops.append(self._tasks.start(loop))
        self._ownership.start()

    async def stop(self, within_s: float) -> None:
        """Start no more deliveries, and wait for those that run."""
        self._end()
        await self._deliveries.finish(within_s)

    async def aclose(self) -> None:
        """End everything that still runs."""
        await self._tasks.aclose()

    def abort(self) -> None:
        """End at once."""
        self._end()
        self._tasks.cancel()

    def _end(self) -> None:
        self._ownership.end()
        for task in self._loops:
            task.cancel()

    def _on_gained(self) -> None:
        self._loader.restart()

    def extend(self, activation: Activation) -> ReminderCalls:
        """Return the extension of an activation."""
        return ReminderCalls(GrainReminders(activation, self._home))

    @property
    def counts(self) -> ReminderCounts:
        """The reminders of this silo in numbers."""
        return ReminderCounts(
            owned_buckets=len(self._agenda.owned),
            loaded=len(self._agenda),
            running=self._agenda.running,
            delivered=self._deliveries.delivered,
            missed=self._deliveries.missed,
            failed=self._home.failed,
            without_handler=len(self._loader.orphans),
            damaged=self._loader.damaged,
        )

    # -- changes

    def tell(self, grain: str, name: str, reminder: StoredReminder | None) -> None:
        """Tell the silo that delivers a reminder about its newest version. Best effort."""
        self._learn(grain, name, reminder)
        owner = self._ownership.owner_of(grain)
        if owner is None or owner == self._me or self._notices >= NOTICES_MAX:
            return
        self._notices += 1
        self._tasks.start(self._send_notice(owner, grain, name, reminder))

    async def _send_notice(
        self, owner: str, grain: str, name: str, reminder: StoredReminder | None
    ) -> None:
        row = None if reminder is None else with_etag(reminder)
        target = ReminderTarget.target_name
        try:
            await self._targets.call(owner, target, ReminderTarget.note, grain, name, row)
        except MillstreamError as error:
            log.debug("%s: %s did not take a notice: %s", self._me, owner, error)
        finally:
            self._notices -= 1

    def note(self, grain: str, name: str, row: ReminderRow | None) -> None:
        """Learn the newest row of a reminder, or that there is none."""
        self._learn(grain, name, None if row is None else self._table.open(row))

    def _learn(self, grain: str, name: str, reminder: StoredReminder | None) -> None:
        self._agenda.note((grain, name), reminder)
        self._deliveries.wake.set()
