"""The options of tables and stores in PostgreSQL. Owns `PostgresOptions`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from millstream.runtime.errors import ConfigError
from millstream.runtime.options import check_fields

__all__ = ["SCHEMA_CHARS_MAX", "PostgresOptions", "check_schema"]

SCHEMA_CHARS_MAX = 48
SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def check_schema(what: str, schema: str) -> None:
    """Raise ConfigError for a text that is no plain name of a schema."""
    is_plain = SCHEMA_NAME.fullmatch(schema) and len(schema) <= SCHEMA_CHARS_MAX
    if not is_plain or schema.startswith("pg_"):
        raise ConfigError(
            f"{what} is {schema[: SCHEMA_CHARS_MAX + 1]!r}; it must have 1 to {SCHEMA_CHARS_MAX} "
            "characters of a to z, 0 to 9 and _, begin with no digit, and not begin with pg_"
        )


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """How a table or store uses its PostgreSQL server. Wrong values raise `ConfigError`.

    Attributes:
        schema: The schema that has the tables of this cluster. Each cluster needs its own. A
            `schema` in the URL replaces it. Lower-case letters, digits and `_`.
        user: Replaces the user of the URL. None: the user of the URL.
        password: Replaces the password of the URL. It is never shown.
        connections_max: Open connections of one table or store. Further statements wait for one. A
            silo with a membership table, a store and reminders has three times as many at most.
        pending_max: Statements of one table or store that run or wait for a connection. Above it,
            a statement raises `StorageUnavailable` at once.
        connect_timeout_s: Time for one attempt to connect, in seconds.
        timeout_s: Time for one statement, in seconds: as long for the wait for a connection, and
            for the server. Then `StorageUnavailable`. A full server is asked again for so long.
        idle_s: A connection that was unused for so long is closed when another one is returned.
        life_s: A connection is replaced after so long, in seconds, so that a new address of the
            server is found.
        creates_schema: True: the first table or store that is opened creates the schema. False: a
            database without the schema is refused, and `millstream store migrate` creates it.
        requires_durable: True: a server with `fsync=off` or `full_page_writes=off` is refused,
            because its crash loses acknowledged rows. False: such a server is accepted.
    """

    schema: str = "millstream"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    connections_max: int = 4
    pending_max: int = 10_000
    connect_timeout_s: float = 5.0
    timeout_s: float = 5.0
    idle_s: float = 60.0
    life_s: float = 1_800.0
    creates_schema: bool = True
    requires_durable: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        check_schema("PostgresOptions.schema", self.schema)
