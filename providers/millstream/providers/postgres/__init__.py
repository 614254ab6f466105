"""State, membership and reminders in a PostgreSQL database, for the silos of several machines.

Owns `PostgresStateStore`, `PostgresMembershipTable`, `PostgresReminderTable`, their options, and
the schema that they share. Reading starts at `database.py`.
May import `runtime`.
"""

from millstream.runtime.extending import publish

try:
    from .database import SchemaState, migrate_schema, read_schema
    from .membership import PostgresMembershipTable
    from .options import PostgresOptions
    from .reminders import PostgresReminderTable
    from .storage import PostgresStateStore
except ModuleNotFoundError as error:
    if error.name != "psycopg":
        raise
    raise ModuleNotFoundError(
        "tables and stores in PostgreSQL need psycopg. In a clone of Millstream, run "
        "pip install -c constraints.txt '.[postgres]'",
        name="psycopg",
    ) from error

__all__ = [
    "PostgresMembershipTable",
    "PostgresOptions",
    "PostgresReminderTable",
    "PostgresStateStore",
    "SchemaState",
    "migrate_schema",
    "read_schema",
]

publish(__name__)
