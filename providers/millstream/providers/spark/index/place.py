"""Opens the database of an index by its name."""

from __future__ import annotations

from pathlib import Path

from millstream.runtime import ConfigError

from .database import Database
from .postgres import PostgresDatabase
from .sqlite import SqliteDatabase

__all__ = ["open_database"]


def open_database(place: str, *, writes: bool) -> Database:
    """Open the database of `sqlite:path` or `postgresql://...`.

    Raises ConfigError if the name has another form, or the database does not exist or is written by
    another process; StorageUnavailable.
    """
    kind, _, rest = place.partition(":")
    if kind == "sqlite" and rest:
        return SqliteDatabase(Path(rest), writes=writes)
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        return PostgresDatabase(place, writes=writes)
    raise ConfigError(
        f"the place of an index is sqlite:path or postgresql://user@host/database, not {place!r}"
    )
