"""The membership table in PostgreSQL, shared by the silos of several machines.

This module owns `PostgresMembershipTable`. The table keeps the invariants of `MembershipTable`.
Each method is one statement. One statement reads version and rows, so both belong to one snapshot.
A change raises the version and writes its row in one statement. A heartbeat changes only its own
column. The connections are not those of a state store, so a burst of state writes does not delay a
vote.
"""

from __future__ import annotations

from millstream.runtime import Env, MemberRow, StorageUnavailable, TableView
from millstream.runtime.extending import SiloAddress
from millstream.runtime.postgres import ClusterDatabase, PostgresOptions

from .rows import encode_member, view_of

__all__ = ["PostgresMembershipTable"]


class PostgresMembershipTable:
    """The membership table of a cluster on several machines, in a PostgreSQL database.

    `membership="postgresql://user:password@host/database"` creates it by name.

    - An acknowledged change survives a crash of the server.
    - The table also keeps both secrets of the cluster, and the name of the cluster. A silo of
      another cluster is refused. Every user of the database who may read the schema can read the
      secrets.
    - The identity of the table is the id of the server, of the database and of the schema. A
      restored dump has another one. A copy of the server's files has the same one: never let silos
      use both. A standby that was promoted has the same one, and silos go on with it.
    - If the schema is replaced while the table is open, `StorageUnavailable` is raised.
    - After a restart of the server the table connects again by itself. While the server is away,
      silos neither join nor are evicted, and calls go on.
    - A silo closes a table that it created by name. The program closes a table that it created
      itself.

    Every method raises `StorageUnavailable` if the server does not answer, if the table is closed,
    or if a limit of `options` is reached. The first use also raises `ConfigError` for a wrong user
    or password, a missing database, or a schema of another version.

    Args:
        url: `postgresql://user:password@host:port/database`. The parameter `schema` replaces that
            of `options`, and all others are those of libpq, such as `sslmode`.
        options: Limits, and the schema. None: the defaults.
        env: The wall clock. None: that of the machine.

    Raises:
        ConfigError: The URL or an option is not valid.
    """

    def __init__(
        self, url: str, options: PostgresOptions | None = None, env: Env | None = None
    ) -> None:
        self._database = database = ClusterDatabase("membership table", url, options, env)
        self.place = database.place
        schema = database.schema
        raised = (
            f"WITH raised AS (UPDATE {schema}.membership SET version = version + 1"
            " WHERE version = %s::bigint RETURNING version)"
        )
        self._read = (
            f"SELECT version, row, alive_s FROM {schema}.membership"
            f" LEFT JOIN {schema}.members ON true ORDER BY silo"
        )
        self._write = (
            f"{raised} INSERT INTO {schema}.members (silo, row, alive_s)"
            " SELECT %s, %s, %s FROM raised ON CONFLICT (silo)"
            " DO UPDATE SET row = excluded.row, alive_s = excluded.alive_s"
        )
        self._forget = (
            f"{raised}, gone AS (DELETE FROM {schema}.members"
            " WHERE silo = %s AND EXISTS (SELECT FROM raised)) SELECT version FROM raised"
        )
        self._stamp = f"UPDATE {schema}.members SET alive_s = %s WHERE silo = %s"
        self._keep = f"INSERT INTO {schema}.secrets VALUES (%s, %s) ON CONFLICT DO NOTHING"
        self._kept = f"SELECT secret FROM {schema}.secrets WHERE name = %s"
        self._claim = f"UPDATE {schema}.schema_version SET cluster = %s WHERE cluster = ''"
        self._claimed = f"SELECT cluster FROM {schema}.schema_version"

    async def secret(self, fresh: bytes, /) -> bytes:
        """Return the secret of the silos that share this table. The schema keeps it.

        Args:
            fresh: The secret to store if there is none yet.
        """
        return await self._secret("cluster", fresh)

    async def operator_secret(self, fresh: bytes, /) -> bytes:
        """Return the operator's secret of this cluster. The schema keeps it.

        Args:
            fresh: The secret to store if there is none yet.
        """
        return await self._secret("operator", fresh)

    async def claim(self, cluster: str, /) -> str:
        """Return the name of the cluster whose silos use this table.

        Args:
            cluster: The name to store if there is none yet.
        """
        await self._database.run(self._claim, (cluster,))
        found = await self._database.run(self._claimed, is_change=False)
        return str(found.rows[0][0])

    async def clock_s(self) -> float:
        """Return the wall time of the server, in seconds since 1970."""
        return await self._database.clock_s()

    async def read(self) -> TableView:
        """Return a consistent snapshot of the table."""
        found = (await self._database.run(self._read, is_change=False)).rows
        if not found:
            raise StorageUnavailable(
                f"{self.place}, membership table, has no version any more: stop every silo, then "
                "restore the schema, or drop it and start again"
            )
        return view_of(found)

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        """Insert or replace one row, and raise the version by one.

        Args:
            row: The new row of a silo.
            expect_version: The version that the table must have.

        Returns:
            False, without a change, if the table has another version.
        """
        values = (expect_version, row.silo, encode_member(row), row.alive_s)
        return (await self._database.run(self._write, values)).affected == 1

    async def heartbeat(self, silo: SiloAddress, alive_s: float, /) -> None:
        """Store the heartbeat of a silo, without a change of the version.

        Args:
            silo: The silo. A silo without a row is ignored.
            alive_s: The time of the heartbeat, in seconds.
        """
        await self._database.run(self._stamp, (alive_s, silo))

    async def forget(self, silo: SiloAddress, expect_version: int, /) -> bool:
        """Delete the row of a dead silo, and raise the version by one.

        Args:
            silo: The silo whose row to delete.
            expect_version: The version that the table must have.

        Returns:
            False, without a change, if the table has another version.
        """
        return bool((await self._database.run(self._forget, (expect_version, silo))).rows)

    async def identity(self) -> str:
        """Return the identity of the schema: the ids of the server, its database and the schema."""
        return await self._database.identity()

    async def aclose(self) -> None:
        """Wait for the statements that run, then close the connections. A second call does
        nothing.
        """
        await self._database.aclose()

    async def _secret(self, name: str, fresh: bytes) -> bytes:
        if fresh:
            await self._database.run(self._keep, (name, fresh))
        found = (await self._database.run(self._kept, (name,), is_change=False)).rows
        return bytes(found[0][0]) if found else b""
