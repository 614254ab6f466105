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
        history_days: changes are kept for so many days, 1 to 36,500, and go by whole days (UTC);
            None: for ever. What is the latest of a message that is not collected stays in
            `current`.
        parquet: a directory for the history as Parquet files, `dt=<day>/...`; None: none.
        changes_per_batch: about so many make a micro-batch, 1 to 1,000,000. The driver holds one
            in memory, about 1 KB for each.
    """

    history_days: int | None = 30
    parquet: Path | None = None
    changes_per_batch: int = 100_000

    def __post_init__(self) -> None:
        days = self.history_days
        if days is not None and not 1 <= days <= DAYS_MAX:
            raise ConfigError(f"history_days {days} is not from 1 to {DAYS_MAX}, or None")
        if not 1 <= self.changes_per_batch <= BATCH_MAX:
            raise ConfigError(f"changes_per_batch {self.changes_per_batch} is not 1 to {BATCH_MAX}")
