"""Puts the changes of a batch into the tables, in one transaction.

Owns: `Tables`. Not: the database (`database`), Spark (`job`), files (`files`).
Invariants: a batch of a query counts once: its marker is in the transaction; a change is in
`historic` once, whatever batch, query or order it came in; `current` has the latest change of each
message that is not collected; history is deleted by whole days, only of batches before this one,
and what was deleted is never put in again. Source: `spec/spark.md` 5.
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
    """What became of a batch.

    `is_repeat`: it was there already, and nothing was done. `rows`: changes that it brought, of
    which `added` were not known (-1: not asked). `trimmed_before_ms`: history before it is gone.
    """

    is_repeat: bool = False
    rows: int = 0
    added: int = -1
    trimmed_before_ms: int = 0


class Tables:
    """The tables, for whoever writes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def marker(self, query: str) -> int:
        """The last batch of a query that was put in; -1: none."""
        found = self._database.run("SELECT batch FROM batches WHERE query = ?", (query,))
        return int(found[0][0]) if found else -1

    def find_trimmed_ms(self) -> int:
        """History before this time is deleted; 0: none is."""
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
        """Put a batch in, wholly or not at all.

        Args:
            query: who numbers the batches; they only grow.
            keep_after_ms: history of days before that of this time may go. None: all is kept.
            save: called within the transaction with the changes that were not known; what it
                raises undoes the batch.
        Raises: `StorageUnavailable`: nothing was changed.
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
        """Delete history, and note up to where: all of it came with batches before."""
        if before_ms > self.find_trimmed_ms():
            self._database.run(OLD_TOKENS, (before_ms,))
            self._database.run("DELETE FROM historic WHERE time_ms < ?", (before_ms,))
            self._database.run(PUT_TRIMMED, (str(before_ms),))


_LOW_WATER = "SELECT queue, era, token FROM low_water"
assert INCOMING_COLUMNS[-1] == "is_latest"
