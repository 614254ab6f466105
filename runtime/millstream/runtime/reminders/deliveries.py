"""The deliveries of one silo: it calls the grain of a due reminder, and advances the row.

`Deliveries` drives the due part of `agenda`.

Invariants:

- A row advances by compare-and-set after its handler has ended, never before.
- A delivery that did not reach the handler is repeated. The failure of a handler is not: the next
  occurrence comes at its time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TypeVar

import msgspec

from millstream.runtime.definition.names import parse_grain_id
from millstream.runtime.errors import StorageUnavailable
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.repeated import Repeated
from millstream.runtime.tasks import Tasks

from .agenda import Agenda, Key
from .checked_table import CheckedTable
from .grain_reminders import Answer
from .loader import FAILURE_LOG_S, RETRY, ReminderLoader, wait_for
from .ownership import BucketOwnership
from .record import StoredReminder, advance
from .schedule import choose
from .table import BucketRange, bucket_of

__all__ = ["Deliveries", "FireCall"]

T = TypeVar("T")

log = logging.getLogger("millstream.reminders")

CLOCK_LOOK_S = 1.0
"""The longest wait before the wall clock is read again, because it may be set."""

FireCall = Callable[..., Coroutine[object, object, Answer]]


class Later(Exception):
    """Raised by a delivery that did not reach a handler, and is to be repeated."""


class NoHandler(Exception):
    """Raised by a delivery for which there is no handler."""


class Deliveries:
    """The deliveries of one silo.

    Args:
        fire: returns the call of `ReminderCalls.fire`, for a grain type and a deadline in seconds.
        uniform: returns a random number between two others.

    Attributes:
        wake: set when a delivery may be due.
        delivered: deliveries whose handler has ended.
        missed: those of them that were later than permitted.
    """

    def __init__(
        self,
        me: str,
        agenda: Agenda,
        table: CheckedTable,
        ownership: BucketOwnership,
        loader: ReminderLoader,
        tasks: Tasks,
        fire: Callable[[str, float], FireCall],
        now_ms: Callable[[], int],
        uniform: Callable[[float, float], float],
        options: RuntimeOptions,
        wake: asyncio.Event,
    ) -> None:
        self._me = me
        self._agenda = agenda
        self._table = table
        self._ownership = ownership
        self._loader = loader
        self._tasks = tasks
        self._fire = fire
        self._now_ms = now_ms
        self._uniform = uniform
        self._call_timeout_s = options.call_timeout_s
        self._late_max_ms = int(options.reminder_late_max_s * 1000)
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._failure_log = Repeated(log, asyncio.get_running_loop().time, FAILURE_LOG_S)
        self.wake = wake
        self.delivered = 0
        self.missed = 0

    async def run(self) -> None:
        """Start the deliveries that are due, again and again."""
        agenda = self._agenda
        while True:
            self.wake.clear()
            now_ms = self._now_ms()
            for reminder in agenda.take_due(now_ms):
                self._running[reminder.key] = self._tasks.start(self._deliver(reminder))
            wake_ms = agenda.wake_ms()
            wait_s = CLOCK_LOOK_S if wake_ms is None else max(0, wake_ms - now_ms) / 1000
            await wait_for(self.wake, min(wait_s, CLOCK_LOOK_S))

    async def until_ended(self, buckets: Sequence[BucketRange]) -> None:
        """Wait until the deliveries from these buckets that run now have ended."""
        running = [task for key, task in self._running.items() if is_in(key, buckets)]
        if running:
            await asyncio.wait(running)

    async def finish(self, within_s: float) -> None:
        """Wait for the deliveries that run, for a limited time."""
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=within_s)
        if self._running:
            text = "%s: %d deliveries of reminders did not end within %g s, and may be repeated"
            log.warning(text, self._me, len(self._running), within_s)

    async def _deliver(self, reminder: StoredReminder) -> None:
        """Deliver one occurrence, and advance its row."""
        key, agenda = reminder.key, self._agenda
        try:
            agenda.finish(key, await self._attempt(reminder))
        except NoHandler:
            self._loader.note_orphan(reminder)
            agenda.finish(key, None)  # the next sweep finds it again
        except asyncio.CancelledError:
            agenda.finish(key, None)
            raise
        except Exception as error:  # of the call; an error of the handler is none
            self._retry(reminder, error)
        finally:
            self._running.pop(key, None)
            self.wake.set()
            if agenda.is_sweeping:
                self._loader.wake.set()  # there is room again

    def _retry(self, reminder: StoredReminder, error: Exception) -> None:
        attempts = self._agenda.attempts_of(reminder.key) + 1
        wait_s = RETRY.delay_s(attempts, self._uniform(0, 1))
        self._agenda.retry(reminder.key, self._now_ms() + int(wait_s * 1000))
        why = str(error) if isinstance(error, Later) else f"{type(error).__name__}: {error}"
        self._failure_log.note(
            f"{self._me}: {reminder} was not delivered, attempt {attempts}; the next one follows "
            f"in {wait_s:.1f} s: {why}",
            reminder.name,
        )

    async def _attempt(self, reminder: StoredReminder) -> StoredReminder | None:
        """Deliver what is due. Returns the newest version, or None if there is none."""
        record, now_ms = reminder.record, self._now_ms()
        assert record.due_ms is not None
        choice = choose(record.schedule, record.start_ms, record.due_ms, now_ms, self._late_max_ms)
        if choice.due_ms is None:
            return await self._insist(reminder, lambda: self._table.replace(reminder, None))
        if not choice.is_due:
            skipped = msgspec.structs.replace(record, due_ms=choice.due_ms)
            if skipped == record:  # the clock was set back meanwhile
                return reminder
            return await self._insist(reminder, lambda: self._table.replace(reminder, skipped))
        answer = await self._call(reminder, choice.due_ms, now_ms, choice.is_missed)
        if answer is Answer.OUTDATED:
            return await self._insist(reminder, lambda: self._table.refresh(reminder))
        if answer is Answer.BUSY:
            raise Later("another delivery of it runs")
        if answer is Answer.NO_HANDLER:
            raise NoHandler
        self.delivered += 1
        self.missed += choice.is_missed
        advanced = advance(record, choice.due_ms)
        return await self._insist(reminder, lambda: self._table.replace(reminder, advanced))

    async def _call(
        self, reminder: StoredReminder, due_ms: int, now_ms: int, is_missed: bool
    ) -> Answer:
        """Call the grain. The deadline has room for the wait for its turn, beside the handler."""
        kind, key = parse_grain_id(reminder.grain)
        handler = self._ownership.handlers.get((kind, reminder.name))
        if handler is None:
            raise NoHandler
        handler_s = handler.timeout_s or self._call_timeout_s
        fire = self._fire(kind, handler_s + self._call_timeout_s)
        number, late_ms = reminder.record.number, now_ms - due_ms
        return await fire(key, reminder.name, reminder.etag, due_ms, number, late_ms, is_missed)

    async def _insist(self, reminder: StoredReminder, act: Callable[[], Awaitable[T]]) -> T:
        """Ask the table until it answers: the handler has run, and must not run again."""
        failures = 0
        while True:
            try:
                return await act()
            except StorageUnavailable as error:
                failures += 1
                self._failure_log.note(f"{self._me}: {reminder} cannot advance: {error}")
            await asyncio.sleep(RETRY.delay_s(failures, self._uniform(0, 1)))


def is_in(key: Key, buckets: Sequence[BucketRange]) -> bool:
    """Return whether a reminder is in one of these ranges."""
    bucket = bucket_of(key[0])
    return any(low <= bucket <= high for low, high in buckets)
