"""The stored form of a reminder: its schedule, its next occurrence, and the steps between forms.

Pure. A record in a table is sealed, so a damaged row, or a row of another reminder, is found when
it is read.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from millstream.runtime.definition.reminders import Reminder, ReminderSchedule
from millstream.runtime.definition.storage import Etag
from millstream.runtime.errors import Corrupt
from millstream.runtime.sealed_rows import open_row, seal_content

from .schedule import find_first, find_next
from .table import ReminderRow, bucket_of

__all__ = ["ReminderRecord", "StoredReminder", "advance", "arm", "make_row", "read_row", "show"]


class ReminderRecord(msgspec.Struct, frozen=True, array_like=True):
    """The content of a row.

    Attributes:
        schedule: the schedule.
        start_ms: the time at which it began.
        due_ms: the first occurrence that was not delivered. None: the reminder was cancelled, and
            its mark must not store it again.
        number: the number of that occurrence.
        is_marked: the schedule is that of a mark, not of a call of `set`.
    """

    schedule: ReminderSchedule
    start_ms: int
    due_ms: int | None
    number: int = 1
    is_marked: bool = False


class StoredReminder(NamedTuple):
    """A record with its name and its version in the table."""

    grain: str
    name: str
    record: ReminderRecord
    etag: Etag

    def __str__(self) -> str:
        return f"reminder {self.name} of {self.grain}"

    @property
    def key(self) -> tuple[str, str]:
        """Grain and name, which identify a reminder."""
        return self.grain, self.name


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ReminderRecord).decode


def arm(schedule: ReminderSchedule, now_ms: int, *, is_marked: bool) -> ReminderRecord | None:
    """Return the record of a reminder that begins now; None if it has no occurrence."""
    due_ms = find_first(schedule, now_ms)
    return None if due_ms is None else ReminderRecord(schedule, now_ms, due_ms, 1, is_marked)


def advance(record: ReminderRecord, delivered_ms: int) -> ReminderRecord | None:
    """Return the record after the delivery of an occurrence; None if it was the last one."""
    due_ms = find_next(record.schedule, record.start_ms, delivered_ms)
    if due_ms is None:
        return None
    return msgspec.structs.replace(record, due_ms=due_ms, number=record.number + 1)


def make_row(grain: str, name: str, record: ReminderRecord) -> ReminderRow:
    """Return the row of a record, without an etag."""
    content = seal_content(row_name(grain, name), _encode(record))
    return ReminderRow(grain, name, bucket_of(grain), record.due_ms, content, "")


def read_row(row: ReminderRow) -> StoredReminder:
    """Check and decode a row. Raises Corrupt."""
    name = row_name(row.grain, row.name)
    record = open_row(name, row.data, _decode)
    if record.due_ms != row.due_ms or row.bucket != bucket_of(row.grain):
        raise Corrupt(
            f"row {name}: its columns state {row.due_ms} and bucket {row.bucket}, and its content "
            f"{record.due_ms} and bucket {bucket_of(row.grain)}: set the reminder again"
        )
    return StoredReminder(row.grain, row.name, record, row.etag)


def row_name(grain: str, name: str) -> str:
    """Return the name of a row for its seal and for messages."""
    return f"reminder {name} of {grain}"


def show(name: str, record: ReminderRecord) -> Reminder:
    """Return a record that is not cancelled, for the author of the grain."""
    schedule, due_ms = record.schedule, record.due_ms
    assert due_ms is not None
    return Reminder(
        name=name,
        due=time_of(due_ms),
        number=record.number,
        every=schedule.every_ms / 1000 if schedule.every_ms else None,
        at=None if schedule.at_ms is None else time_of(schedule.at_ms),
        cron=schedule.cron or None,
        time_zone=schedule.time_zone,
        missed=schedule.missed,
    )


def time_of(time_ms: int) -> datetime:
    """Return a time in UTC."""
    seconds, ms = divmod(time_ms, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1000)
