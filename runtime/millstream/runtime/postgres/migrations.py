"""The schema of Millstream in a database: its numbered migrations, and the decision to apply them.

This module owns `MIGRATIONS`, `SchemaState` and `plan_steps`.

Invariants:

- A migration is never changed after a release. A change of the schema is one more migration.
- A migration first adds what a new release needs, so that programs of the release before it go on.
  One release later, another migration removes what nothing uses any more, and raises
  `readable_from`.
- A program refuses a schema only if its own version is below `readable_from`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["MIGRATIONS", "Migration", "MigrationPlan", "SchemaState", "plan_steps"]


class Migration(NamedTuple):
    """One step of the schema.

    Attributes:
        version: The version of the schema after the step.
        readable_from: The oldest version of programs that can use the schema after the step.
        statements: The statements, with `{schema}` for the name of the schema, and `{now_ms}` for
            the wall time.
    """

    version: int
    readable_from: int
    statements: tuple[str, ...]


class SchemaState(NamedTuple):
    """The state of a schema, as its row says.

    Attributes:
        version: The number of the last migration that was applied. 0: there is no schema yet.
        readable_from: The oldest version of programs that can use it.
        cluster: The name of the cluster whose silos use it. Empty: none has used it yet.
    """

    version: int = 0
    readable_from: int = 0
    cluster: str = ""


class MigrationPlan(NamedTuple):
    """The plan for a schema: `steps` in order, or no step because of `objection`."""

    steps: tuple[Migration, ...] = ()
    objection: str = ""


# Keys are bytes: PostgreSQL's text cannot have the character NUL, and the order of UTF-8 bytes is
# that of code points, as Python sorts texts. One sequence gives the etags, so none is used twice.
# A heartbeat changes only its own column, and often, so pages of members have room for versions.
MIGRATIONS = (
    Migration(
        1,
        1,
        (
            "CREATE SCHEMA IF NOT EXISTS {schema}",
            "CREATE TABLE {schema}.schema_version (one integer PRIMARY KEY CHECK (one = 0),"
            " version integer NOT NULL, readable_from integer NOT NULL, cluster text NOT NULL)",
            "INSERT INTO {schema}.schema_version VALUES (0, 0, 0, '')",
            "CREATE TABLE {schema}.secrets (name text PRIMARY KEY, secret bytea NOT NULL)",
            "CREATE TABLE {schema}.membership (one integer PRIMARY KEY CHECK (one = 0),"
            " version bigint NOT NULL)",
            "INSERT INTO {schema}.membership VALUES (0, {now_ms})",
            'CREATE TABLE {schema}.members (silo text COLLATE "C" PRIMARY KEY,'
            " row bytea NOT NULL, alive_s double precision NOT NULL) WITH (fillfactor = 50)",
            "CREATE SEQUENCE {schema}.etags",
            "CREATE TABLE {schema}.state (key bytea PRIMARY KEY, etag bigint NOT NULL,"
            " fence bigint NOT NULL, data bytea NOT NULL)",
            "CREATE TABLE {schema}.reminders (grain bytea NOT NULL, name bytea NOT NULL,"
            " bucket integer NOT NULL, due_ms bigint, data bytea NOT NULL, etag bigint NOT NULL,"
            " PRIMARY KEY (grain, name))",
            "CREATE INDEX reminders_due ON {schema}.reminders (due_ms, grain, name)"
            " WHERE due_ms IS NOT NULL",
        ),
    ),
    # priority queues: a deleted queue keeps its counters under another number, and its rows are
    # deleted step by step
    Migration(
        2,
        1,
        (
            "CREATE SEQUENCE {schema}.priority_numbers",
            "CREATE TABLE {schema}.priority_queue (number bigint PRIMARY KEY"
            " DEFAULT nextval('{schema}.priority_numbers'), name bytea NOT NULL UNIQUE,"
            " epoch bigint NOT NULL, nonce text NOT NULL, commits bigint NOT NULL,"
            " settings_version bigint NOT NULL, settings bytea, sequence bigint NOT NULL,"
            " leases bigint NOT NULL, layout bigint NOT NULL, now_ms bigint NOT NULL,"
            " ahead_ms bigint NOT NULL, next_due_ms bigint)",
            "CREATE INDEX priority_due ON {schema}.priority_queue (next_due_ms)"
            " WHERE next_due_ms IS NOT NULL",
            "CREATE TABLE {schema}.priority_message (queue bigint NOT NULL,"
            " sequence bigint NOT NULL, body bytea NOT NULL, payload bytea, state bytea NOT NULL,"
            " PRIMARY KEY (queue, sequence))",
            "CREATE TABLE {schema}.priority_session (queue bigint NOT NULL, session bytea NOT NULL,"
            " acknowledged bigint NOT NULL, used_ms bigint NOT NULL, PRIMARY KEY (queue, session))",
            "CREATE TABLE {schema}.priority_answer (queue bigint NOT NULL, session bytea NOT NULL,"
            " number bigint NOT NULL, answer bytea NOT NULL,"
            " PRIMARY KEY (queue, session, number))",
            "CREATE TABLE {schema}.priority_lane (lane integer PRIMARY KEY, name text NOT NULL,"
            " position bigint NOT NULL, events bigint NOT NULL)",
            "INSERT INTO {schema}.priority_lane SELECT lane, gen_random_uuid()::text, 0, 0"
            " FROM generate_series(0, 7) AS lane",
            "CREATE TABLE {schema}.priority_event (outbox integer NOT NULL,"
            " position bigint NOT NULL, event bytea NOT NULL, PRIMARY KEY (outbox, position))",
            "CREATE TABLE {schema}.priority_dropped (number bigint PRIMARY KEY)",
        ),
    ),
)


def plan_steps(
    found: SchemaState,
    *,
    may_create: bool,
    may_upgrade: bool,
    migrations: Sequence[Migration] = MIGRATIONS,
) -> MigrationPlan:
    """Decide which migrations to apply.

    Args:
        found: the state of the schema.
        may_create: apply all if there is no schema.
        may_upgrade: apply those that are missing in an older schema.
        migrations: all migrations that the program knows, in order.

    Returns:
        The steps. Or the objection, to be read after the place of the schema, if the program
        cannot use the schema.
    """
    newest = migrations[-1].version
    if found.readable_from > newest:
        return MigrationPlan(
            objection=f"has version {found.version} and needs programs of version "
            f"{found.readable_from} or later; this program has version {newest}: start a later "
            "release of Millstream"
        )
    missing = tuple(step for step in migrations if step.version > found.version)
    if not missing:
        return MigrationPlan()
    if may_create if found.version == 0 else may_upgrade:
        return MigrationPlan(missing)
    if found.version == 0:
        return MigrationPlan(
            objection="does not exist: run `millstream store migrate` with its URL"
        )
    return MigrationPlan(
        objection=f"has version {found.version}, and this program needs version {newest}: run "
        "`millstream store migrate` with its URL"
    )
