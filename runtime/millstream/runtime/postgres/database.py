"""A schema of a PostgreSQL database, as a table or store uses it.

This module owns `ClusterDatabase`, `migrate_schema` and `read_schema`. `connections` has the
connections, `migrations` the schema, and `failures` the meaning of errors.

Invariants:

- The schema is checked before the first statement, and created or changed under a lock of the
  server. So silos that start together make one schema.
- Each new connection finds the same schema of the same server as the first one.
- Before the first use, settings that cannot work raise ConfigError. Later, everything raises
  StorageUnavailable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo

from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, StorageUnavailable
from millstream.runtime.options import check_kind

from .address import DatabaseAddress, read_address
from .connections import Connections, DatabaseFailure, Session
from .failures import DatabaseTrouble, ServerFacts, identity_of, judge_server
from .migrations import Migration, SchemaState, plan_steps
from .options import PostgresOptions

__all__ = [
    "ClusterDatabase",
    "SchemaState",
    "Session",
    "StatementResult",
    "execute",
    "migrate_schema",
    "read_schema",
]

T = TypeVar("T")
MIGRATE_S = 600.0
"""The time for all migrations together."""
GREET = """
SELECT set_config('statement_timeout', %s, false),
  set_config('synchronous_commit', CASE current_setting('synchronous_commit')
    WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),
  current_setting('server_version_num')::integer,
  current_setting('fsync'),
  current_setting('full_page_writes'),
  (SELECT system_identifier FROM pg_control_system())
    || '/' || (SELECT oid FROM pg_database WHERE datname = current_database()),
  (SELECT oid::bigint FROM pg_namespace WHERE nspname = %s)
"""
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('millstream ' || %s, 0))"
# Not to_regclass, which uses a cache of the session that may be older than the lock.
FIND = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = %s AND tablename = %s)"
VERSION_TABLE = "schema_version"


class StatementResult(NamedTuple):
    """The answer to a statement.

    Attributes:
        rows: The rows that it returned.
        affected: The number of rows that it returned or changed.
    """

    rows: list[tuple[Any, ...]]
    affected: int


class ClusterDatabase:
    """One schema, and the connections of one table or store to it.

    Args:
        what: The table or store in messages, such as `state store`.
        url: `postgresql://...`, or the part of it that follows `postgresql:`.
        options: Limits, and the schema. None: the defaults.
        env: The wall clock of a new schema. None: that of the machine.
        may_upgrade: Whether an older schema is migrated.

    Attributes:
        schema: The name of the schema.
        place: The database and the schema, for people.

    Raises:
        ConfigError: The URL or an option is not valid.
    """

    def __init__(
        self,
        what: str,
        url: str,
        options: PostgresOptions | None,
        env: Env | None,
        *,
        may_upgrade: bool = False,
    ) -> None:
        check_kind("the URL of the database", url, str)
        self._options = options = PostgresOptions() if options is None else options
        check_kind("the options of the database", options, PostgresOptions)
        self._what = what
        self._env = env or Env()
        self._may_upgrade = may_upgrade
        address = read_address(url, options)
        self.schema, self.place = address.schema, address.place
        self._connections = Connections(
            conninfo_of(address, options), options, self._env, self._greet
        )
        self._facts: ServerFacts | None = None
        self._identity = ""

    async def run(
        self, statement: str, values: Sequence[Any] = (), *, is_change: bool = True
    ) -> StatementResult:
        """Run one statement, in a transaction of its own.

        Args:
            statement: The statement, with `%s` for each value.
            values: The values.
            is_change: Whether an error says if the change may have been made.

        Raises:
            StorageUnavailable: The server does not answer, or a limit is reached.
            ConfigError: Before the first success: a setting or the schema is wrong.
        """
        if not self._identity:
            await self.open()
        return await self._ask(lambda session: execute(session, statement, values), is_change)

    async def transact(
        self, work: Callable[[Session], Awaitable[T]], *, is_change: bool = True
    ) -> T:
        """Run several statements in one transaction. Raises the errors of `run`.

        Args:
            work: Runs the statements, by `execute`. The transaction is undone if it raises.
            is_change: Whether an error says if the changes may have been made.

        Returns:
            The result of `work`.
        """
        if not self._identity:
            await self.open()

        async def run(session: Session) -> T:
            async with session.transaction():
                return await work(session)

        return await self._ask(run, is_change)

    async def open(self) -> None:
        """Check the schema, and create it if there is none. Raises as `run`."""
        await self._ask(self._open, False)

    async def identity(self) -> str:
        """Return the text that identifies the schema. Raises as `run`."""
        if not self._identity:
            await self.open()
        return self._identity

    async def clock_s(self) -> float:
        """Return the wall time of the server, in seconds since 1970. Raises as `run`."""
        asked = "SELECT extract(epoch FROM clock_timestamp())::double precision"
        return float((await self.run(asked, is_change=False)).rows[0][0])

    async def find_state(self) -> SchemaState:
        """Return the state of the schema, and change nothing. Raises as `run`."""
        return await self._ask(lambda session: self._state(session), False)

    async def aclose(self) -> None:
        """Wait for the statements that run, then close all connections."""
        await self._connections.aclose()

    async def _ask(self, work: Callable[[Session], Awaitable[T]], is_change: bool) -> T:
        try:
            return await self._connections.run(work)
        except DatabaseFailure as error:
            raise self._public(error, is_change) from error.__cause__

    def _public(self, error: DatabaseFailure, is_change: bool) -> StorageUnavailable | ConfigError:
        """Return the error for callers."""
        trouble = error.trouble
        parts = [f"{self.place}, {self._what}, {trouble.why}"]
        parts += [trouble.outcome] if is_change else []
        text = "; ".join(parts) + (f" ({error.detail})" if error.detail else "")
        is_setting = trouble.is_setting and not self._identity
        return (ConfigError if is_setting else StorageUnavailable)(text)

    # -- a connection, and the schema

    async def _greet(self, session: Session) -> None:
        limit_ms = str(max(1, int(self._options.timeout_s * 1000)))
        (found,) = (await execute(session, GREET, (limit_ms, self.schema))).rows
        facts = ServerFacts(*found[2:])
        trouble = judge_server(facts, self._options.requires_durable, self._identity)
        if trouble is not None:
            raise DatabaseFailure(trouble)
        self._facts = facts

    async def _open(self, session: Session) -> None:
        state = await self._state(session)
        if self._steps(state):
            async with session.transaction():
                await execute(session, LOCK, (self.schema,))
                state = await self._state(session)  # another process may have been faster
                for step in self._steps(state):
                    await self._apply(session, step)
        await self._greet(session)  # again: the schema may be new
        assert self._facts is not None
        self._identity = identity_of(self._facts)

    def _steps(self, state: SchemaState) -> Sequence[Migration]:
        may_create = self._may_upgrade or self._options.creates_schema
        plan = plan_steps(state, may_create=may_create, may_upgrade=self._may_upgrade)
        if plan.objection:
            raise DatabaseFailure(
                DatabaseTrouble(f"cannot be used, because its schema {plan.objection}", True)
            )
        return plan.steps

    async def _state(self, session: Session) -> SchemaState:
        ((is_there,),) = (await execute(session, FIND, (self.schema, VERSION_TABLE))).rows
        if not is_there:
            return SchemaState()
        asked = f"SELECT version, readable_from, cluster FROM {self.schema}.{VERSION_TABLE}"
        found = await execute(session, asked)
        return SchemaState(*found.rows[0]) if found.rows else SchemaState()

    async def _apply(self, session: Session, step: Migration) -> None:
        now_ms = int(self._env.wall_s() * 1000)
        for statement in step.statements:
            await execute(session, statement.format(schema=self.schema, now_ms=now_ms))
        await execute(
            session,
            f"UPDATE {self.schema}.{VERSION_TABLE} SET version = %s, readable_from = %s",
            (step.version, step.readable_from),
        )


async def execute(session: Session, statement: str, values: Sequence[Any] = ()) -> StatementResult:
    """Run one statement of a transaction.

    Args:
        session: The session that `ClusterDatabase.transact` gives.
        statement: The statement, with `%s` for each value. Without values, `%` has no meaning.
        values: The values.

    Returns:
        Its rows, and the number of rows that it changed.
    """
    cursor = await session.execute(statement.encode(), values or None, binary=True)
    rows = await cursor.fetchall() if cursor.description else []
    return StatementResult(rows, cursor.rowcount)


def conninfo_of(address: DatabaseAddress, options: PostgresOptions) -> str:
    """Return the text for the driver. Raises ConfigError, which does not show it."""
    given = {"user": options.user, "password": options.password}
    more = {name: value for name, value in given.items() if value is not None}
    # a host that is gone without a goodbye is noticed by the operating system, too
    more["tcp_user_timeout"] = str(int(options.timeout_s * 1000))
    try:
        return make_conninfo(address.url, **more)
    except psycopg.ProgrammingError:
        raise ConfigError(
            f"the URL of {address.place} is not valid: check its parameters, and write special "
            "characters of the user and the password as %XX"
        ) from None


async def migrate_schema(
    url: str, options: PostgresOptions | None = None
) -> tuple[SchemaState, SchemaState]:
    """Create the schema, or bring an older one to the version of this program.

    It takes a lock of the server, so it may run in several places at once. Silos of the release
    before this one go on. `millstream store migrate` calls it.

    Args:
        url: `postgresql://user:password@host:port/database`. Its parameter `schema` names the
            schema.
        options: The options. None: the defaults.

    Returns:
        The state before and after.

    Raises:
        ConfigError: The URL, the user or the password is wrong, the user may not create tables, or
            the schema needs a later program.
        StorageUnavailable: The server does not answer.
    """
    longer = replace(options or PostgresOptions(), timeout_s=MIGRATE_S)
    database = ClusterDatabase("migration", url, longer, None, may_upgrade=True)
    try:
        before = await database.find_state()
        await database.open()
        return before, await database.find_state()
    finally:
        await database.aclose()


async def read_schema(url: str, options: PostgresOptions | None = None) -> SchemaState:
    """Return the state of a schema, and change nothing.

    Args:
        url: The URL, as for `migrate_schema`.
        options: The options. None: the defaults.

    Returns:
        The state. Its version is 0 if there is no schema.

    Raises:
        ConfigError: The URL, the user or the password is wrong.
        StorageUnavailable: The server does not answer.
    """
    database = ClusterDatabase("schema", url, options, None)
    try:
        return await database.find_state()
    finally:
        await database.aclose()
