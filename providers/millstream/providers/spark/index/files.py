"""History as Parquet files by day, for programs such as DuckDB, Spark and pandas.

This module owns `HistoryFiles`, and `tables` selects the new changes. The files of a batch are
written completely in `_pending` before the transaction of the tables ends, and moved to their days
after it. Invariants: each change in a day's files is or was in the tables, and is in the files
once. Before the next batch, files in `_pending` are moved or deleted, as the marker of their batch
says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from millstream.runtime.extending import Disk, RealDisk, replace_file

from .changes import COLUMNS, ChangeRow, day_of

__all__ = ["HistoryFiles"]

PENDING = "_pending"
DAY = "dt="


class HistoryFiles:
    """Files `dt=2026-01-31/<query>-<batch>.parquet` in a directory, for this user alone.

    All methods raise OSError of the disk.
    """

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self._disk = disk or RealDisk()
        self._directory = str(directory)
        self._pending = f"{directory}/{PENDING}"

    def settle(self, marker: Callable[[str], int]) -> None:
        """Move the files of stored batches, and delete those of batches that are not stored.

        Call it before a batch, for files that a crash left, and after the batch. `marker` returns
        the last stored batch of a query.
        """
        for name in self._names(self._pending):
            query, _, rest = name.partition("@")
            batch = rest.partition("@")[0]
            if batch.isdecimal() and marker(query) >= int(batch):
                self._move(name)
            else:
                self._disk.unlink(f"{self._pending}/{name}")

    def save(self, query: str, batch: int, rows: Sequence[ChangeRow]) -> None:
        """Write the files of a batch; no program reads them yet."""
        self._disk.make_dir(self._pending)
        for day, changes in groupby(sorted(rows, key=_by_day), key=_by_day):
            path = f"{self._pending}/{query}@{batch}@{day}"
            replace_file(self._disk, path, _parquet(list(changes)))

    def trim(self, before_ms: int) -> None:
        """Delete the days before the day of this time."""
        first = f"{DAY}{day_of(before_ms)}"
        for day in self._names(self._directory):
            if day.startswith(DAY) and day < first:
                folder = f"{self._directory}/{day}"
                for name in self._names(folder):
                    self._disk.unlink(f"{folder}/{name}")
                with suppress(OSError):  # the directory has other files
                    Path(folder).rmdir()

    def _move(self, name: str) -> None:
        query, batch, day = name.split("@")
        folder = f"{self._directory}/{DAY}{day}"
        self._disk.make_dir(folder)
        self._disk.rename(f"{self._pending}/{name}", f"{folder}/{query}-{batch}.parquet")
        self._disk.sync_dir(folder)

    def _names(self, folder: str) -> Iterator[str]:
        with suppress(FileNotFoundError):
            yield from self._disk.list(folder)


def _by_day(row: ChangeRow) -> str:
    return day_of(row.time_ms)


def _parquet(rows: Sequence[ChangeRow]) -> bytes:
    import pyarrow as arrow
    from pyarrow import parquet

    states = ("from_state", "to_state")
    columns = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    typed = {name: arrow.array(columns[name], arrow.string()) for name in states}
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table({**columns, **typed}), sink)
    return bytes(sink.getvalue())
