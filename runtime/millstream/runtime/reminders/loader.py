"""Reading the reminders of a silo's buckets from the table, ahead of their time.

`ReminderLoader` drives the sweeps of `agenda`. A sweep begins every `reminder_refresh_s`, and at
once when buckets were gained or the wall clock was set. It reads the rows that are due before the
end of the next sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from millstream.runtime.backoff import Backoff
from millstream.runtime.definition.names import parse_grain_id
from millstream.runtime.errors import StorageUnavailable
from millstream.runtime.repeated import Repeated

from .agenda import Agenda, Key, PageRead
from .checked_table import CheckedTable
from .ownership import BucketOwnership
from .record import StoredReminder
from .table import ReminderPosition, ReminderRow

__all__ = ["RETRY", "ReminderLoader", "wait_for"]

log = logging.getLogger("millstream.reminders")

RETRY = Backoff(first_s=1.0, ceiling_s=30.0)
ORPHANS_MAX = 10_000
ORPHAN_LOG_S = 3600.0
FAILURE_LOG_S = 60.0
SWEEP_AGAIN_S = 1.0  # between sweeps that found no room for all rows
WINDOW_SWEEPS = 2  # a sweep reads the rows of so many periods
LOOK_S = 1.0
STEP_S = 1.0  # a smaller step of the wall clock needs no new sweep


class ReminderLoader:
    """The reads of one silo.

    Args:
        uniform: returns a random number between two others.
        loaded: called when rows were loaded.

    Attributes:
        wake: set when there may be rows to read.
        orphans: the reminders that are due and have no handler, as the last sweep found them.
        damaged: how many rows were damaged in the last sweep.
    """

    def __init__(
        self,
        me: str,
        agenda: Agenda,
        table: CheckedTable,
        ownership: BucketOwnership,
        now_ms: Callable[[], int],
        uniform: Callable[[float, float], float],
        loaded: Callable[[], object],
        refresh_s: float,
    ) -> None:
        self._me = me
        self._agenda = agenda
        self._table = table
        self._ownership = ownership
        self._now_ms = now_ms
        self._uniform = uniform
        self._loaded = loaded
        self._refresh_s = refresh_s
        self._loop = asyncio.get_running_loop()
        self._began_s = -SWEEP_AGAIN_S
        self._next_s = 0.0
        self._is_stale = False
        self._ahead_s = 0.0  # how far the wall clock is ahead of the loop's clock
        self._new_orphans: set[Key] = set()
        self._new_damaged = 0
        self._orphan_log = Repeated(log, self._loop.time, ORPHAN_LOG_S)
        self._failure_log = Repeated(log, self._loop.time, FAILURE_LOG_S)
        self.wake = asyncio.Event()
        self.orphans: set[Key] = set()
        self.damaged = 0

    def restart(self) -> None:
        """Read from the first row on, because buckets or handlers were gained."""
        self._is_stale = True
        self.wake.set()

    async def run(self) -> None:
        """Read the rows that are due soon, again and again."""
        failures = 0
        while True:
            self.wake.clear()
            self._look_at_clock()
            if self._is_time():
                self._begin_sweep()
            wait_s = LOOK_S
            try:
                while (read := self._agenda.next_read()) is not None:
                    await self._read_page(read)
                failures = 0
            except Exception as error:  # also a bug of the table: other rows may be readable later
                failures += 1
                wait_s = RETRY.delay_s(failures, self._uniform(0, 1))
                is_known = isinstance(error, StorageUnavailable)
                why = str(error) if is_known else f"{type(error).__name__}: {error}"
                self._failure_log.note(f"{self._me}: reminders cannot be read: {why}")
            await wait_for(self.wake, wait_s)

    def _look_at_clock(self) -> None:
        """Restart when the wall clock was set, because other reminders are due soon then."""
        ahead_s = self._now_ms() / 1000 - self._loop.time()
        if abs(ahead_s - self._ahead_s) > STEP_S:
            self._ahead_s = ahead_s
            self._is_stale = True

    def _is_time(self) -> bool:
        now_s, agenda = self._loop.time(), self._agenda
        if self._is_stale:
            return True
        if agenda.is_sweeping:
            return False
        is_again = agenda.needs_sweep and now_s >= self._began_s + SWEEP_AGAIN_S
        return is_again or now_s >= self._next_s

    def _begin_sweep(self) -> None:
        self._is_stale = False
        self._began_s = self._loop.time()
        self._next_s = self._began_s + self._uniform(0.9, 1.1) * self._refresh_s
        ahead_ms = int(WINDOW_SWEEPS * 1000 * self._refresh_s)
        self._agenda.begin_sweep(self._now_ms() + ahead_ms)
        self._new_orphans, self._new_damaged = set(), 0

    async def _read_page(self, read: PageRead) -> None:
        try:
            rows = check_order(read, await self._table.read_page(read))
        except BaseException:
            self._agenda.fail_read(read)
            raise
        if self._is_stale:  # of other buckets
            self._agenda.fail_read(read)
            return
        page = [one for row in rows if (one := self._check(row)) is not None]
        self._agenda.accept(read, page, position_of_last(rows), len(rows) < read.limit)
        if not self._agenda.is_sweeping:
            self.orphans, self.damaged = self._new_orphans, self._new_damaged
        self._loaded()
        await asyncio.sleep(0)  # a table in memory answers without waiting

    def _check(self, row: ReminderRow) -> StoredReminder | None:
        """Return the reminder of a row that can be delivered."""
        stored = self._table.open(row)
        if stored is None:
            self._new_damaged += 1
            return None
        kind, _ = parse_grain_id(stored.grain)
        if (kind, stored.name) in self._ownership.handlers:
            return stored
        self.note_orphan(stored)
        return None

    def note_orphan(self, reminder: StoredReminder) -> None:
        """Report a reminder whose handler no active silo has, once it is due."""
        due_ms = reminder.record.due_ms
        if due_ms is None or due_ms > self._now_ms():
            return
        if len(self._new_orphans) < ORPHANS_MAX:
            self._new_orphans.add(reminder.key)
        handler = f"{parse_grain_id(reminder.grain)[0]}.{reminder.name}"
        self._orphan_log.note(
            f"{self._me}: {reminder} is due, and no active silo has {handler} with @reminder; "
            "the reminder is kept: add the method, or cancel the reminder in a turn of its grain",
            handler,
        )


def position_of_last(rows: Sequence[ReminderRow]) -> ReminderPosition | None:
    """Return the position of the last row of a page, or None."""
    last = rows[-1] if rows else None
    if last is None or last.due_ms is None:
        return None
    return ReminderPosition(last.due_ms, last.grain, last.name)


def check_order(read: PageRead, rows: Sequence[ReminderRow]) -> Sequence[ReminderRow]:
    """Return a page, and refuse one with which a sweep would never end."""
    last = position_of_last(rows)
    if rows and (last is None or (read.after is not None and last <= read.after)):
        raise StorageUnavailable(
            f"the reminder table answered a row at {last} to a read after {read.after}: correct "
            "`due` of the table"
        )
    return rows


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most for some time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
