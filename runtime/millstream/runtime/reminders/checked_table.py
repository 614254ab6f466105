"""A reminder table as the runtime uses it: answers in limited time, and rows that are checked.

This module owns `CheckedTable`. A damaged row is logged once and left out, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import msgspec

from millstream.runtime.damage import DamageLog
from millstream.runtime.definition.names import parse_grain_id
from millstream.runtime.definition.storage import Etag
from millstream.runtime.errors import Conflict, Corrupt, StorageUnavailable

from .agenda import PageRead
from .record import ReminderRecord, StoredReminder, make_row, read_row, row_name
from .table import ReminderRow, ReminderTable

__all__ = ["CheckedTable"]

T = TypeVar("T")

log = logging.getLogger("millstream.reminders")

TABLE_WAIT_S = 10.0
"""How long a reminder table may take for one answer."""


class CheckedTable:
    """A reminder table. All methods raise StorageUnavailable if it does not answer in time."""

    def __init__(self, table: ReminderTable) -> None:
        self._table = table
        self._damage = DamageLog(log)

    async def rows_of(self, grain: str) -> dict[str, ReminderRow]:
        """Return the rows of a grain by name."""
        return {row.name: row for row in await ask(self._table.read(grain))}

    async def find(self, grain: str, name: str) -> ReminderRow | None:
        """Return a row, or None."""
        return (await self.rows_of(grain)).get(name)

    async def read_page(self, read: PageRead) -> Sequence[ReminderRow]:
        """Return the rows of a page, at most as many as asked for."""
        return (await ask(self._table.due(*read)))[: read.limit]

    async def write(
        self, grain: str, name: str, record: ReminderRecord, expect: Etag | None
    ) -> StoredReminder:
        """Store a record in place of the version `expect`. Raises Conflict."""
        etag = await ask(self._table.upsert(make_row(grain, name, record), expect))
        return StoredReminder(grain, name, record, etag)

    async def remove(self, grain: str, name: str, expect: Etag) -> None:
        """Remove a row of the version `expect`. Raises Conflict."""
        await ask(self._table.remove(grain, name, expect))

    async def replace(
        self, reminder: StoredReminder, record: ReminderRecord | None
    ) -> StoredReminder | None:
        """Replace or remove this version, and return the newest one, or None if there is none.

        Another writer may have been faster. Then its version is the newest one.
        """
        try:
            if record is not None:
                return await self.write(reminder.grain, reminder.name, record, reminder.etag)
            await self.remove(reminder.grain, reminder.name, reminder.etag)
            return None
        except Conflict:
            return await self.refresh(reminder)

    async def refresh(self, reminder: StoredReminder) -> StoredReminder | None:
        """Return the newest version of a reminder, or None if there is none."""
        row = await self.find(reminder.grain, reminder.name)
        return None if row is None else self.open(row)

    def open(self, row: ReminderRow) -> StoredReminder | None:
        """Decode a row. A damaged one, or one of a newer version, is logged, and gives None."""
        name = row_name(row.grain, row.name)
        try:
            stored = read_row(row)
            parse_grain_id(stored.grain)
        except Corrupt as error:
            self._damage.tell(name, error)
            return None
        except ValueError as error:
            self._damage.tell(name, Corrupt(f"row {name}: {error}: remove it from the table"))
            return None
        self._damage.is_whole(name)
        return stored


def with_etag(reminder: StoredReminder) -> ReminderRow:
    """Return the row of a reminder, with its etag."""
    row = make_row(reminder.grain, reminder.name, reminder.record)
    return msgspec.structs.replace(row, etag=reminder.etag)


async def ask(asked: Awaitable[T]) -> T:
    """Await an answer of a table, for a limited time."""
    try:
        async with asyncio.timeout(TABLE_WAIT_S):
            return await asked
    except TimeoutError:
        text = f"the reminder table did not answer within {TABLE_WAIT_S:g} s"
        raise StorageUnavailable(text) from None
