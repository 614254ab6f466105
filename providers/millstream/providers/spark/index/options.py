"""Options of an index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millstream.runtime import ConfigError

__all__ = ["IndexOptions"]

DAYS_MAX = 36_500
BATCH_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """How an index is kept.

    Attributes:
        history_days: The days for which changes are kept, from 1 to 36,500. They are deleted by
            whole days (UTC). None: for ever. The latest change of a message that is not collected
            stays in the table `current`.
        parquet: A directory for the history as Parquet files, `dt=<day>/...`. None: no files.
        changes_per_batch: The approximate number of changes in a micro-batch, from 1 to 1,000,000.
            The driver holds a micro-batch in memory, about 1 KB for each change.

    Raises:
        ConfigError: A value is outside its limits.
    """

    history_days: int | None = 30
    parquet: Path | None = None
    changes_per_batch: int = 100_000

    def __post_init__(self) -> None:
        days = self.history_days
        if days is not None and not 1 <= days <= DAYS_MAX:
            raise ConfigError(f"history_days is {days}: write 1 to {DAYS_MAX}, or None")
        if not 1 <= self.changes_per_batch <= BATCH_MAX:
            raise ConfigError(
                f"changes_per_batch is {self.changes_per_batch}: write 1 to {BATCH_MAX}"
            )
