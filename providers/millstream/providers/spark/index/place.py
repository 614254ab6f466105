"""From the name of a place to the database there."""

from __future__ import annotations

from pathlib import Path

from millstream.runtime import ConfigError

from .database import Database
from .postgres import PostgresDatabase
from .sqlite import SqliteDatabase

__all__ = ["open_database"]


def open_database(place: str, *, writes: bool) -> Database:
    """The database of `sqlite:path` or `postgresql://...`.

    Raises: ConfigError: another form, it is not there, or another process writes;
        StorageUnavailable.
    """
    kind, _, rest = place.partition(":")
    if kind == "sqlite" and rest:
        return SqliteDatabase(Path(rest), writes=writes)
    if kind in ("postgresql", "postgres") and rest.startswith("//"):
        return PostgresDatabase(place, writes=writes)
    raise ConfigError(
        f"an index is at sqlite:path or postgresql://user@host/database, not at {place!r}"
    )
