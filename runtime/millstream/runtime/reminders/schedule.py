"""The occurrences of a schedule, and the choice of the occurrence to deliver. Pure.

Times are milliseconds since 1970, in UTC.

Invariants:

- The occurrences of `every` are at `start + n * every`, n = 1, 2, ..., whatever was delivered when.
- A fixed time of a cron line that is in a gap of daylight saving fires at the end of the gap. A
  repeated time fires once. A line for each hour fires at each real hour.
- The occurrences of a schedule rise: `find_next` never returns a time that is not after its
  argument.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

from millstream.runtime.definition.reminders import ReminderSchedule

__all__ = ["Choice", "choose", "find_first", "find_last", "find_next"]

FIRST_SPAN_MS = 60_000
SPAN_MS_MAX = 60 * 366 * 86_400_000
TIME_MS_MAX = 253_402_300_799_000  # the end of the year 9999, the last that a datetime can show


class Choice(NamedTuple):
    """The occurrence to deliver next.

    Attributes:
        due_ms: its time; None: there is none any more.
        is_missed: it is later than permitted.
        is_due: it is to be delivered now; False: at its time.
    """

    due_ms: int | None
    is_missed: bool
    is_due: bool


def find_first(schedule: ReminderSchedule, now_ms: int) -> int | None:
    """Return the first occurrence of a schedule that starts now."""
    return schedule.at_ms if schedule.at_ms is not None else find_next(schedule, now_ms, now_ms)


def find_next(schedule: ReminderSchedule, start_ms: int, after_ms: int) -> int | None:
    """Return the first occurrence after a time, or None."""
    if schedule.at_ms is not None:
        return schedule.at_ms if schedule.at_ms > after_ms else None
    if schedule.every_ms:
        count = max(0, after_ms - start_ms) // schedule.every_ms + 1
        due_ms = start_ms + count * schedule.every_ms
        return due_ms if due_ms <= TIME_MS_MAX else None
    return find_next_cron(schedule, after_ms)


def find_next_cron(schedule: ReminderSchedule, after_ms: int) -> int | None:
    """Return the first occurrence of a cron line after a time.

    Several fixed times in one gap are one occurrence at its end. A time in the repeated hour may
    give an earlier occurrence first, because the line is matched with the clock on the wall.
    """
    after = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(ZoneInfo(schedule.time_zone))
    try:
        for found in CronSim(schedule.cron, after):
            due_ms = round(found.timestamp() * 1000)
            if due_ms > after_ms:
                return due_ms
    except (OverflowError, ValueError):  # after the year 9999
        pass
    return None


def find_last(schedule: ReminderSchedule, start_ms: int, until_ms: int) -> int | None:
    """Return the last occurrence at or before a time, or None."""
    if schedule.at_ms is not None:
        return schedule.at_ms if schedule.at_ms <= until_ms else None
    if schedule.every_ms:
        count = (until_ms - start_ms) // schedule.every_ms
        return start_ms + count * schedule.every_ms if count >= 1 else None
    span_ms, found = FIRST_SPAN_MS, None
    while found is None and span_ms < SPAN_MS_MAX:
        found = find_within(schedule, until_ms - span_ms, until_ms)
        span_ms *= 2
    return None if found is None or found <= start_ms else found


def find_within(schedule: ReminderSchedule, after_ms: int, until_ms: int) -> int | None:
    """Return the last occurrence of a cron line in a span, or None."""
    last = None
    found = find_next_cron(schedule, after_ms)
    while found is not None and found <= until_ms:
        last, found = found, find_next_cron(schedule, found)
    return last


def choose(
    schedule: ReminderSchedule, start_ms: int, due_ms: int, now_ms: int, late_max_ms: int
) -> Choice:
    """Choose the occurrence to deliver.

    Args:
        due_ms: the first occurrence that was not delivered.
        late_max_ms: an occurrence whose delivery starts later than this is missed.
    """
    if due_ms > now_ms:
        return Choice(due_ms, False, False)
    first_kept_ms = now_ms - late_max_ms
    if due_ms >= first_kept_ms:
        return Choice(due_ms, False, True)
    if schedule.missed == "all":
        return Choice(due_ms, True, True)
    if schedule.missed == "once":
        last_ms = find_last(schedule, start_ms, first_kept_ms - 1)
        return Choice(due_ms if last_ms is None else max(due_ms, last_ms), True, True)
    next_ms = find_next(schedule, start_ms, first_kept_ms - 1)
    return Choice(next_ms, False, next_ms is not None and next_ms <= now_ms)
