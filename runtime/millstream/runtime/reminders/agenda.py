"""The reminders that one silo has loaded: those that are due, those that run, and the effect of a
read of the table. Pure.

`Agenda` keeps the rows of the buckets that this silo owns, from the earliest on, up to a limit. A
sweep reads them from the table, page by page; `service` does the reading.

Invariants:

- At most one delivery of a reminder runs, and at most `running_max` altogether.
- At most `loaded_max` rows are kept, beside those whose delivery runs.
- A change that the agenda learns while a page is being read outlives this page, which may be older.
- Only rows of owned buckets are delivered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from .record import StoredReminder
from .table import BucketRange, ReminderPosition, bucket_of

__all__ = ["Agenda", "PageRead", "ranges_of"]

PAGE_ROWS = 500
OUTDATED_MAX = 64  # outdated pairs that the heap may have beside one for each loaded row
Key = tuple[str, str]  # grain and name


@dataclass(slots=True)
class LoadedReminder:
    """A loaded reminder.

    Attributes:
        wake_ms: when its next delivery may start; later than due after a failure.
        sweep: the number of the sweep that has seen it.
        attempts: deliveries of this occurrence that have failed.
    """

    reminder: StoredReminder
    wake_ms: int
    sweep: int
    attempts: int = 0
    is_running: bool = False


class PageRead(NamedTuple):
    """A page that is to be read."""

    buckets: Sequence[BucketRange]
    after: ReminderPosition | None
    before_ms: int
    limit: int


@dataclass(slots=True)
class RowSweep:
    """One pass over the rows that are due before a time.

    Attributes:
        seen: the position of the last row that was read.
        changed: the reminders of which the agenda has learned since the running read began.
    """

    number: int = 0
    before_ms: int = 0
    seen: ReminderPosition | None = None
    is_over: bool = True
    reading: PageRead | None = None
    changed: set[Key] = field(default_factory=set)


class Agenda:
    """The loaded reminders of one silo. Times are milliseconds since 1970."""

    def __init__(self, *, loaded_max: int, running_max: int) -> None:
        self._loaded_max = loaded_max
        self._running_max = running_max
        self._owned: frozenset[int] = frozenset()
        self._ranges: Sequence[BucketRange] = ()
        self._entries: dict[Key, LoadedReminder] = {}
        self._waking: list[tuple[int, Key]] = []  # a heap; outdated pairs are skipped
        self._sweep = RowSweep()
        self._is_incomplete = False  # rows were left out: another sweep must follow
        self.running = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def owned(self) -> frozenset[int]:
        """The buckets whose reminders this silo delivers."""
        return self._owned

    def own(self, buckets: Collection[int]) -> None:
        """Set the owned buckets. Rows of other buckets are dropped, except while they run."""
        gained = not self._owned.issuperset(buckets)
        self._owned = frozenset(buckets)
        self._ranges = ranges_of(buckets)
        for key, entry in list(self._entries.items()):
            if not entry.is_running and not self._owns(key):
                del self._entries[key]
        if gained:
            self._sweep.is_over, self._sweep.reading = True, None
            self._is_incomplete = True

    def _owns(self, key: Key) -> bool:
        return bucket_of(key[0]) in self._owned

    # -- reading the table

    @property
    def needs_sweep(self) -> bool:
        """Whether rows of owned buckets may be missing, so that a sweep should begin soon."""
        return self._is_incomplete

    @property
    def is_sweeping(self) -> bool:
        """Whether a sweep has begun and not ended."""
        return not self._sweep.is_over

    def begin_sweep(self, before_ms: int) -> None:
        """Begin to read all rows that are due before a time. A running sweep is given up."""
        self._is_incomplete = False
        self._sweep = RowSweep(self._sweep.number + 1, before_ms, is_over=not self._ranges)

    def next_read(self) -> PageRead | None:
        """Begin the next read of the sweep, or return None if there is none or no room for it."""
        sweep = self._sweep
        room = self._loaded_max - len(self._entries)
        if sweep.is_over or room < max(1, min(PAGE_ROWS, self._loaded_max // 2)):
            return None
        limit = min(PAGE_ROWS, room)
        sweep.reading = PageRead(self._ranges, sweep.seen, sweep.before_ms, limit)
        sweep.changed.clear()
        return sweep.reading

    def accept(
        self,
        read: PageRead,
        page: Iterable[StoredReminder],
        last: ReminderPosition | None,
        is_last: bool,
    ) -> None:
        """Take the rows of a page.

        Args:
            page: the rows that can be delivered.
            last: the position of the last row of the page, if it has any.
            is_last: there are no further rows in this sweep.
        """
        sweep = self._sweep
        if sweep.reading is not read:  # another sweep has begun meanwhile
            return
        sweep.reading = None
        for reminder in page:
            self._take_row(reminder)
        sweep.seen = last or sweep.seen
        if is_last:
            sweep.is_over = True
            self._drop_unseen()

    def fail_read(self, read: PageRead) -> None:
        """Note that a page could not be read: it is read again."""
        if self._sweep.reading is read:
            self._sweep.reading = None

    def _take_row(self, reminder: StoredReminder) -> None:
        key, due_ms = reminder.key, reminder.record.due_ms
        if due_ms is None or key in self._sweep.changed or not self._owns(key):
            return
        entry = self._entries.get(key)
        if entry is not None and (entry.is_running or entry.reminder.etag == reminder.etag):
            entry.sweep = self._sweep.number
            return
        if entry is None and len(self._entries) >= self._loaded_max:
            self._is_incomplete = True
            return
        self._put(reminder, due_ms)

    def _drop_unseen(self) -> None:
        """Drop the rows that the sweep has not found, because they were removed."""
        for key, entry in list(self._entries.items()):
            if entry.sweep != self._sweep.number and not entry.is_running:
                del self._entries[key]

    def _put(self, reminder: StoredReminder, due_ms: int) -> None:
        self._entries[reminder.key] = LoadedReminder(reminder, due_ms, self._sweep.number)
        self._wake_at(due_ms, reminder.key)

    def _wake_at(self, wake_ms: int, key: Key) -> None:
        heappush(self._waking, (wake_ms, key))
        if len(self._waking) > 2 * len(self._entries) + OUTDATED_MAX:
            self._waking = [(entry.wake_ms, key) for key, entry in self._entries.items()]
            heapify(self._waking)

    # -- changes

    def note(self, key: Key, reminder: StoredReminder | None) -> None:
        """Learn the newest version of a reminder, or that it was removed or cancelled."""
        if self._sweep.reading is not None:
            self._sweep.changed.add(key)
        entry = self._entries.get(key)
        if entry is not None and entry.is_running:
            return  # the end of its delivery reads or reports the newest version
        self._entries.pop(key, None)
        if reminder is None or reminder.record.due_ms is None or not self._owns(key):
            return
        self._keep(reminder, reminder.record.due_ms)

    def _keep(self, reminder: StoredReminder, due_ms: int) -> None:
        """Keep a row that the sweep has passed. A later sweep, or page, reads the other rows."""
        sweep = self._sweep
        position = ReminderPosition(due_ms, reminder.grain, reminder.name)
        if due_ms >= sweep.before_ms or not (
            sweep.is_over or sweep.reading or (sweep.seen is not None and position <= sweep.seen)
        ):
            return
        if len(self._entries) >= self._loaded_max:
            self._is_incomplete = True
        else:
            self._put(reminder, due_ms)

    # -- deliveries

    def wake_ms(self) -> int | None:
        """Return when the next delivery may start; None: not before something changes."""
        if self.running >= self._running_max:
            return None
        while self._waking:
            wake_ms, key = self._waking[0]
            entry = self._entries.get(key)
            if entry is not None and not entry.is_running and entry.wake_ms == wake_ms:
                return wake_ms
            heappop(self._waking)
        return None

    def take_due(self, now_ms: int) -> list[StoredReminder]:
        """Begin the deliveries that may start now, and return their reminders."""
        found: list[StoredReminder] = []
        wake_ms = self.wake_ms()
        while wake_ms is not None and wake_ms <= now_ms:
            entry = self._entries[heappop(self._waking)[1]]
            entry.is_running = True
            self.running += 1
            found.append(entry.reminder)
            wake_ms = self.wake_ms()
        return found

    def attempts_of(self, key: Key) -> int:
        """Return how many deliveries of a running reminder's occurrence have failed before."""
        return self._entries[key].attempts

    def finish(self, key: Key, reminder: StoredReminder | None) -> None:
        """End a delivery. `reminder` is the newest version; None: there is none any more."""
        self.running -= 1
        del self._entries[key]
        self.note(key, reminder)

    def retry(self, key: Key, wake_ms: int) -> None:
        """End a delivery that has failed, so that it is repeated at a time."""
        self.running -= 1
        entry = self._entries[key]
        entry.is_running = False
        entry.attempts += 1
        entry.sweep = self._sweep.number
        if not self._owns(key):
            del self._entries[key]
            return
        entry.wake_ms = wake_ms
        self._wake_at(wake_ms, key)

    # -- checks

    def check(self) -> None:
        """Assert the invariants."""
        running = [key for key, entry in self._entries.items() if entry.is_running]
        assert len(running) == self.running <= self._running_max, "wrong count of deliveries"
        assert len(self._entries) - len(running) <= self._loaded_max, "too many rows are loaded"
        most = 2 * len(self._entries) + OUTDATED_MAX
        assert len(self._waking) <= max(most, 2 * self._loaded_max), "outdated pairs pile up"
        for key, entry in self._entries.items():
            assert entry.is_running or self._owns(key), f"{key} is not owned"
            assert entry.is_running or (entry.wake_ms, key) in self._waking, f"{key} never wakes"


def ranges_of(buckets: Iterable[int]) -> list[BucketRange]:
    """Return buckets as sorted ranges that do not touch each other."""
    found: list[BucketRange] = []
    for bucket in sorted(buckets):
        if found and found[-1][1] + 1 == bucket:
            found[-1] = (found[-1][0], bucket)
        else:
            found.append((bucket, bucket))
    return found
