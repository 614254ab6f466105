"""Stores the changes of a batch in the tables, in one transaction.

This module owns `Tables`. `database` owns the database, `job` the use of Spark, and `files` the
files. Invariants:

- A batch of a query counts once, because its marker is in the transaction.
- A change is in `historic` once, whatever its batches, queries and order.
- `current` has the latest change of each message that is not collected.
- History is deleted by whole days, and only history of earlier batches. Deleted changes are never
  stored again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .changes import COLUMNS, ChangeRow, day_start_ms, fresh, latest
from .database import INCOMING_COLUMNS, Database

__all__ = ["Applied", "Tables"]

_ALL = ", ".join(COLUMNS)
_NAME = ("queue", "shard", "id")
_NAMED = ", ".join(_NAME)
_OF_INCOMING = ", ".join(f"i.{name}" for name in COLUMNS)
_SET = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in _NAME)


def _place(table: str) -> str:
    return f"({table}.created_ms, {table}.sequence, {table}.version)"


_SAME_MESSAGE = "{0}.queue = i.queue AND {0}.shard = i.shard AND {0}.id = i.id"
_SAME_CHANGE = f"{_SAME_MESSAGE.format('h')} AND {_place('h')} = {_place('i')}"
NEW_ROWS = (
    f"SELECT DISTINCT {_OF_INCOMING} FROM incoming i WHERE NOT EXISTS"
    f" (SELECT 1 FROM historic h WHERE {_SAME_CHANGE})"
)
PUT_HISTORIC = (
    f"INSERT INTO historic ({_ALL}) SELECT {_OF_INCOMING} FROM incoming i WHERE true"
    " ON CONFLICT DO NOTHING"
)
DROP_CURRENT = (
    f"DELETE FROM current WHERE ({_NAMED}) IN (SELECT i.queue, i.shard, i.id FROM incoming i"
    f" JOIN current c ON {_SAME_MESSAGE.format('c')} WHERE i.is_latest = 1"
    f" AND i.to_state IS NULL AND {_place('i')} > {_place('c')})"
)
PUT_CURRENT = (
    f"INSERT INTO current ({_ALL}) SELECT {_OF_INCOMING} FROM incoming i WHERE i.is_latest = 1"
    " AND i.to_state IS NOT NULL AND NOT EXISTS (SELECT 1 FROM historic h WHERE"
    f" {_SAME_MESSAGE.format('h')} AND {_place('h')} > {_place('i')})"
    f" ON CONFLICT ({_NAMED}) DO UPDATE SET {_SET}"
    f" WHERE {_place('excluded')} > {_place('current')}"
)
PUT_BEGINS = (
    "INSERT INTO begins SELECT queue, shard, min(time_ms) FROM incoming GROUP BY queue, shard"
    " ON CONFLICT DO NOTHING"
)
PUT_MARKER = (
    "INSERT INTO batches VALUES (?, ?) ON CONFLICT (query) DO UPDATE SET batch = excluded.batch"
)
OLD_TOKENS = (
    "INSERT INTO low_water SELECT queue, substr(token, 1, 8), max(token) FROM historic"
    " WHERE time_ms < ? GROUP BY 1, 2"
    " ON CONFLICT (queue, era) DO UPDATE SET token = excluded.token"
    " WHERE excluded.token > low_water.token"
)
PUT_TRIMMED = (
    "INSERT INTO marks VALUES ('trimmed_before_ms', ?)"
    " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of storing a batch.

    Attributes:
        is_repeat: The batch was already stored, and nothing was done.
        rows: The number of changes in the batch.
        added: How many of them were new; -1 if they were not counted, because there are no Parquet
            files.
        trimmed_before_ms: History before this time, in ms, is deleted. 0: none is.
    """

    is_repeat: bool = False
    rows: int = 0
    added: int = -1
    trimmed_before_ms: int = 0


class Tables:
    """The tables, for the writer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def marker(self, query: str) -> int:
        """Return the last stored batch of a query, or -1 if there is none."""
        found = self._database.run("SELECT batch FROM batches WHERE query = ?", (query,))
        return int(found[0][0]) if found else -1

    def find_trimmed_ms(self) -> int:
        """Return the time before which history is deleted, or 0 if no history is."""
        found = self._database.run("SELECT value FROM marks WHERE name = 'trimmed_before_ms'")
        return int(found[0][0]) if found else 0

    def apply(
        self,
        query: str,
        batch: int,
        rows: Sequence[ChangeRow],
        *,
        keep_after_ms: int | None = None,
        save: Callable[[Sequence[ChangeRow]], None] | None = None,
    ) -> Applied:
        """Store a batch as a whole or not at all.

        Args:
            query: The source of the batch numbers, which only grow.
            keep_after_ms: Delete history of days before the day of this time. None: keep all.
            save: Called within the transaction with the new changes. An error of it undoes the
                batch.

        Raises:
            StorageUnavailable: Nothing was changed.
        """
        with self._database.transaction():
            if self.marker(query) >= batch:
                return Applied(is_repeat=True, trimmed_before_ms=self.find_trimmed_ms())
            if keep_after_ms is not None:
                self._trim(day_start_ms(keep_after_ms))
            new = self._put(rows, save is not None)
            self._database.run(PUT_MARKER, (query, batch))
            trimmed_ms = self.find_trimmed_ms()
            if save is not None:
                save(new)
        added = len(new) if save is not None else -1
        return Applied(rows=len(rows), added=added, trimmed_before_ms=trimmed_ms)

    def _put(self, rows: Sequence[ChangeRow], wants_new: bool) -> list[ChangeRow]:
        run = self._database.run
        kept = fresh(rows, {(queue, era): token for queue, era, token in run(_LOW_WATER)})
        newest = latest(kept)
        self._database.load((*row, int(row in newest)) for row in kept)
        new = [ChangeRow(*found) for found in run(NEW_ROWS)] if wants_new else []
        for statement in (PUT_BEGINS, PUT_HISTORIC, DROP_CURRENT, PUT_CURRENT):
            run(statement)
        return new

    def _trim(self, before_ms: int) -> None:
        """Delete history, all of it from earlier batches, and store how far it was deleted."""
        if before_ms > self.find_trimmed_ms():
            self._database.run(OLD_TOKENS, (before_ms,))
            self._database.run("DELETE FROM historic WHERE time_ms < ?", (before_ms,))
            self._database.run(PUT_TRIMMED, (str(before_ms),))


_LOW_WATER = "SELECT queue, era, token FROM low_water"
assert INCOMING_COLUMNS[-1] == "is_latest"
