"""The reminders of one activation: what its grain asks for, and the deliveries to its handlers.

`GrainReminders` is `self.context.reminders`. The extension `ReminderCalls` takes deliveries.

Invariants:

- A delivery runs the handler only if the table has its version of the reminder now, so an outdated
  delivery, for example of a former owner, changes nothing.
- An occurrence that this activation has handled is not handled again.
- At most one delivery of a reminder runs at a time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from millstream.runtime.definition.filters import FilterChain, GrainCall
from millstream.runtime.definition.reminders import (
    Missed,
    Occurrence,
    Reminder,
    ReminderMark,
    make_schedule,
)
from millstream.runtime.definition.storage import Etag
from millstream.runtime.errors import ConfigError, Conflict, NotInCluster
from millstream.runtime.text import show_text
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.request import live_request

from .checked_table import CheckedTable
from .record import ReminderRecord, StoredReminder, arm, show, time_of

__all__ = ["Answer", "GrainReminders", "ReminderCalls", "ReminderHome"]

log = logging.getLogger("millstream.reminders")

WRITE_TRIES_MAX = 10


class Answer(Enum):
    """The answer of an activation to a delivery.

    Attributes:
        RAN: the handler has run for this occurrence, now or before, and may have failed.
        OUTDATED: the table has another version of the reminder, or none.
        BUSY: another delivery of the reminder runs.
        NO_HANDLER: the class has no handler of this name.
    """

    RAN = "ran"
    OUTDATED = "outdated"
    BUSY = "busy"
    NO_HANDLER = "no handler"


@dataclass(slots=True)
class ReminderHome:
    """The things that the reminders of all activations of a silo share.

    Attributes:
        table: the table.
        now_ms: returns the wall time in milliseconds since 1970.
        timeout_s: the deadline of a handler without one of its own, in seconds.
        tell: tells the silo that delivers a reminder about its newest version, or that it is gone.
        failed: how many handlers have failed in this silo.
    """

    table: CheckedTable
    now_ms: Callable[[], int]
    timeout_s: float
    tell: Callable[[str, str, StoredReminder | None], None]
    failed: int = 0


class GrainReminders:
    """The reminders of one grain (`definition.reminders.Reminders`)."""

    def __init__(self, activation: Activation, home: ReminderHome) -> None:
        self._activation = activation
        self._home = home
        self._grain = activation.grain_id
        self._ran: dict[str, Etag] = {}  # versions whose occurrence was handled
        self._running: set[str] = set()
        self._changes = 0

    def _marks(self) -> Mapping[str, ReminderMark]:
        hosted = self._activation.kind.hosted
        return {} if hosted is None else list_handlers(hosted.marks)

    def _where(self, act: str) -> str:
        return f"{show_text(self._grain)}: context.reminders.{act}"

    def _check_running(self, act: str) -> None:
        if self._activation.is_gone:
            raise NotInCluster(f"{self._where(act)}: the activation has ended")

    # -- for the grain

    async def set(
        self,
        name: str,
        /,
        *,
        every: float | None = None,
        at: datetime | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        missed: Missed = "once",
    ) -> Reminder:
        self._check_running("set")
        where = f"{self._where('set')}({show_text(repr(name))})"
        check_handler(where, name, self._marks())
        schedule = make_schedule(where, every, at, cron, time_zone, missed)
        record = arm(schedule, self._home.now_ms(), is_marked=False)
        if record is None:
            raise ConfigError(
                f"{where}: cron={schedule.cron!r} does not fire before the year 10000"
            )
        for _ in range(WRITE_TRIES_MAX):
            row = await self._home.table.find(self._grain, name)
            if await self._write(name, record, None if row is None else row.etag):
                return show(name, record)
        raise self._make_conflict("set", name)

    async def cancel(self, name: str, /) -> bool:
        self._check_running("cancel")
        mark = self._marks().get(name)
        for _ in range(WRITE_TRIES_MAX):
            row = await self._home.table.find(self._grain, name)
            was_armed = row is not None and row.due_ms is not None
            if mark is not None and mark.schedule is not None:
                # the row stays, so that the next activation does not store the reminder again
                record = ReminderRecord(mark.schedule, self._home.now_ms(), None, 1, True)
                is_done = await self._write(name, record, None if row is None else row.etag)
            else:
                is_done = row is None or await self._remove(name, row.etag)
            if is_done:
                return was_armed
        raise self._make_conflict("cancel", name)

    async def list(self) -> Sequence[Reminder]:
        self._check_running("list")
        found, table = [], self._home.table
        for _, row in sorted((await table.rows_of(self._grain)).items()):
            stored = table.open(row)
            if stored is not None and stored.record.due_ms is not None:
                found.append(show(stored.name, stored.record))
        return found

    def _make_conflict(self, act: str, name: str) -> Conflict:
        return Conflict(
            f"{self._where(act)}({name!r}): the stored reminder changed {WRITE_TRIES_MAX} times "
            "meanwhile: try again"
        )

    # -- the table

    async def _write(self, name: str, record: ReminderRecord, expect: Etag | None) -> bool:
        """Store a record. Returns False if the row has changed meanwhile."""
        try:
            stored = await self._home.table.write(self._grain, name, record, expect)
        except Conflict:
            return False
        finally:
            self._changes += 1
        self._home.tell(self._grain, name, None if record.due_ms is None else stored)
        return True

    async def _remove(self, name: str, expect: Etag) -> bool:
        """Remove a row. Returns False if it has changed meanwhile."""
        try:
            await self._home.table.remove(self._grain, name, expect)
        except Conflict:
            return False
        finally:
            self._changes += 1
        self._home.tell(self._grain, name, None)
        return True

    # -- for the runtime

    async def arm_marked(self) -> None:
        """Store the reminders whose schedules are in marks, unless the table has them."""
        rows = await self._home.table.rows_of(self._grain)
        for name, mark in self._marks().items():
            if mark.schedule is None:
                continue
            row, expect = rows.get(name), None
            if row is not None:
                stored = self._home.table.open(row)
                if stored is None or not is_outdated(stored.record, mark):
                    continue
                expect = row.etag
            record = arm(mark.schedule, self._home.now_ms(), is_marked=True)
            if record is not None:
                await self._write(name, record, expect)  # False: another activation was faster

    async def fire(
        self, name: str, etag: Etag, due_ms: int, number: int, late_ms: int, is_missed: bool
    ) -> Answer:
        """Run the handler of an occurrence, unless the delivery is outdated."""
        mark = self._marks().get(name)
        if mark is None:
            return Answer.NO_HANDLER
        if name in self._running:
            return Answer.BUSY
        if self._ran.get(name) == etag:
            return Answer.RAN
        self._running.add(name)
        try:
            if not await self._is_current(name, etag):
                return Answer.OUTDATED
            occurrence = Occurrence(time_of(due_ms), number, late_ms / 1000, is_missed)
            await self._handle(name, mark, occurrence)
            self._ran[name] = etag
            return Answer.RAN
        finally:
            self._running.discard(name)

    async def _is_current(self, name: str, etag: Etag) -> bool:
        """Return whether the table has this version, and the grain changes nothing meanwhile."""
        for _ in range(WRITE_TRIES_MAX):
            changes = self._changes
            row = await self._home.table.find(self._grain, name)
            if self._changes == changes:
                return row is not None and row.etag == etag and row.due_ms is not None
        return False

    async def _handle(self, name: str, mark: ReminderMark, occurrence: Occurrence) -> None:
        """Run the handler. Its failure is logged; a cancellation of the turn is raised."""
        seconds = mark.timeout_s or self._home.timeout_s
        what = (self._activation, name, occurrence.number)
        task: Any = asyncio.current_task()
        cancelled = task.cancelling()
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                await self._run_handler(name, occurrence)
            return
        except asyncio.CancelledError:
            if task.cancelling() > cancelled:
                raise
            text = "%s: reminder %s, occurrence %d failed: the handler awaited a cancelled task"
            log.exception(text, *what)
        except (Exception, SystemExit):
            if deadline.expired():
                text = "%s: reminder %s, occurrence %d did not end within its deadline (%g s)"
                log.error(text, *what, seconds)
            else:
                log.exception("%s: reminder %s, occurrence %d failed", *what)
        self._home.failed += 1

    async def _run_handler(self, name: str, occurrence: Occurrence) -> None:
        """Run a handler inside the incoming filters of its grain type."""
        kind, grain, request = self._activation.kind, self._activation.grain, live_request()
        handler = getattr(grain, name)
        if not kind.incoming:
            await handler(occurrence)
            return
        (argument,) = inspect.signature(handler).parameters
        call = GrainCall(
            kind.name, self._activation.key, name, {argument: occurrence}, {}, "", grain
        )
        chain = FilterChain(
            kind.incoming,
            call,
            lambda values: handler(*values),
            lambda: request is None or request.done,
        )
        await chain.run()


class ReminderCalls:
    """The extension `$reminders` of an activation: the calls of the silos that deliver."""

    def __init__(self, reminders: GrainReminders) -> None:
        self.reminders = reminders

    async def fire(
        self, name: str, etag: str, due_ms: int, number: int, late_ms: int, is_missed: bool
    ) -> Answer:
        """Deliver an occurrence of a version of a reminder."""
        return await self.reminders.fire(name, etag, due_ms, number, late_ms, is_missed)


def list_handlers(marks: Mapping[str, Sequence[object]]) -> dict[str, ReminderMark]:
    """Return the handlers of reminders of a class, by name."""
    return {
        name: mark
        for name, of_name in marks.items()
        for mark in of_name
        if isinstance(mark, ReminderMark)
    }


def check_handler(where: str, name: object, marks: Mapping[str, ReminderMark]) -> None:
    """Refuse a name that is no handler. Raises ConfigError."""
    if not isinstance(name, str) or name not in marks:
        known = ", ".join(map(repr, sorted(marks))) or "none"
        raise ConfigError(
            f"{where}: the grain has no handler of this name; it has {known}: write `@reminder` "
            f"above `async def {name if isinstance(name, str) else 'remind'}(self, occurrence)`"
        )


def is_outdated(record: ReminderRecord, mark: ReminderMark) -> bool:
    """Return whether a mark has another schedule than the one that an earlier mark stored."""
    is_armed = record.is_marked and record.due_ms is not None
    return is_armed and record.schedule != mark.schedule
