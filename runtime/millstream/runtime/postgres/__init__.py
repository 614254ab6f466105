"""One schema of a PostgreSQL database for each cluster, for stores that keep tables in it.

The tables and stores of `millstream.providers.postgres`, and priority queues in PostgreSQL, are
built on this package. It is separate because it loads psycopg.

Owns the connections (`connections`), the schema and its migrations (`database`, `migrations`), the
meaning of errors (`failures`), URLs (`address`), options, and the stored form of keys (`keys`).
Reading starts at `database.py`.

May import `runtime`.
"""

from millstream.runtime.public_names import publish

try:
    from .database import (
        ClusterDatabase,
        SchemaState,
        Session,
        StatementResult,
        execute,
        migrate_schema,
        read_schema,
    )
except ModuleNotFoundError as error:
    if error.name != "psycopg":
        raise
    raise ModuleNotFoundError(
        "tables and stores in PostgreSQL need psycopg. In a clone of Millstream, run "
        "pip install -c constraints.txt '.[postgres]'",
        name="psycopg",
    ) from error
from .keys import check_key, etag_number, key_range
from .options import PostgresOptions

__all__ = [
    "ClusterDatabase",
    "PostgresOptions",
    "SchemaState",
    "Session",
    "StatementResult",
    "check_key",
    "etag_number",
    "execute",
    "key_range",
    "migrate_schema",
    "read_schema",
]

publish(__name__)
