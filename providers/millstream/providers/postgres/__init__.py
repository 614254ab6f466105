"""State, membership and reminders in a PostgreSQL database, for the silos of several machines.

Owns `PostgresStateStore`, `PostgresMembershipTable` and `PostgresReminderTable`. Their tables are
in the schema of `millstream.runtime.postgres`, which also has the connections. Reading starts at
`storage.py`.
May import `runtime`.
"""

from millstream.runtime.extending import publish
from millstream.runtime.postgres import (
    PostgresOptions,
    SchemaState,
    migrate_schema,
    read_schema,
)

from .membership import PostgresMembershipTable
from .reminders import PostgresReminderTable
from .storage import PostgresStateStore

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
