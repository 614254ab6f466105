"""Grain state in PostgreSQL.

This module owns `PostgresStateStore`. The store keeps the invariants of `StateStore`. Each method
is one statement: the server checks etag and fence in the statement that makes the change. A
sequence of the schema gives all etags, so none is used twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.runtime import Conflict, Env, Etag, Row
from millstream.runtime.extending import refuse_stale, show_text
from millstream.runtime.postgres import (
    ClusterDatabase,
    PostgresOptions,
    check_key,
    etag_number,
    key_range,
)

__all__ = ["PostgresStateStore"]


class PostgresStateStore:
    """A state store in a PostgreSQL database, for the silos of several machines.

    `stores={"default": "postgresql://user:password@host/database"}` creates it by name. All silos
    must write the same host, port, database and schema, because they compare these texts. Stores of
    several names with one URL share their rows.

    - An acknowledged write survives a crash of the server. `synchronous_commit=off` is switched on
      for the connections of the store.
    - A write is one statement and one message each way.
    - The schema is created at the first use, see `PostgresOptions.creates_schema`.
    - After a restart of the server the store connects again by itself.
    - A silo closes a store that it created by name. The program closes a store that it created
      itself.

    Every method raises `StorageUnavailable` if the server does not answer, if the store is closed,
    or if a limit of `options` is reached. The text says whether a change may have been made. The
    first use also raises `ConfigError` for a wrong user or password, a missing database, or a
    schema of another version. A key above 2,500 bytes raises `StorageError`.

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
        self._database = database = ClusterDatabase("state store", url, options, env)
        self.place = database.place
        table, etags = f"{database.schema}.state", f"nextval('{database.schema}.etags')"
        self._read = f"SELECT data, etag, fence FROM {table} WHERE key = %s"
        self._insert = (
            f"INSERT INTO {table} (key, etag, fence, data) VALUES (%s, {etags}, %s, %s)"
            " ON CONFLICT DO NOTHING RETURNING etag"
        )
        self._update = (
            f"UPDATE {table} SET etag = {etags}, fence = %s, data = %s"
            " WHERE key = %s AND etag = %s::bigint AND fence <= %s RETURNING etag"
        )
        self._delete = (
            f"DELETE FROM {table} WHERE key = %s AND etag = %s::bigint AND fence <= %s::bigint"
        )
        self._scan = (
            f"SELECT key, data, etag, fence FROM {table} WHERE key >= %s AND key > %s"
            " AND (%s::bytea IS NULL OR key < %s::bytea) ORDER BY key LIMIT %s::bigint"
        )

    async def read(self, key: str, /) -> Row | None:
        """Return the row of a key, or None.

        Args:
            key: The key of the row.
        """
        found = await self._database.run(self._read, check_key("the key", key), is_change=False)
        for data, etag, fence in found.rows:
            return Row(data, str(etag), fence)
        return None

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        """Store a row; it is on the server's disk when this method returns.

        Args:
            key: The key of the row.
            data: The content, up to 1 GB.
            expect: The etag that the row must have. None: there must be no row.
            fence: The fence of the writer. A row with a higher fence is not replaced.

        Returns:
            The new etag.

        Raises:
            Conflict: The row has another etag or a higher fence.
        """
        (name,) = check_key("the key", key)
        if expect is None:
            made = await self._database.run(self._insert, (name, fence, bytes(data)))
        else:
            values = (fence, bytes(data), name, etag_number(expect), fence)
            made = await self._database.run(self._update, values)
        if not made.rows:
            await self._refuse(key, expect, fence)
        return str(made.rows[0][0])

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        """Delete a row; the deletion is on the server's disk when this method returns.

        Args:
            key: The key of the row.
            expect: The etag that the row must have.
            fence: The fence of the writer.

        Raises:
            Conflict: The row has another etag or a higher fence.
        """
        (name,) = check_key("the key", key)
        gone = await self._database.run(self._delete, (name, etag_number(expect), fence))
        if not gone.affected:
            await self._refuse(key, expect, fence)

    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]:
        """Return rows whose keys begin with a prefix, in key order: a snapshot.

        Args:
            prefix: The beginning of the keys.
            after: Return only keys greater than this one. "": from the first key.
            limit: The most rows to return.

        Returns:
            Pairs of key and row.
        """
        low, above, high = key_range(prefix, after)
        values = (low, above, high, high, max(limit, 0))
        found = await self._database.run(self._scan, values, is_change=False)
        return [
            (key.decode(), Row(data, str(etag), fence)) for key, data, etag, fence in found.rows
        ]

    async def aclose(self) -> None:
        """Wait for the statements that run, then close the connections. A second call does
        nothing.
        """
        await self._database.aclose()

    async def _refuse(self, key: str, expect: Etag | None, fence: int) -> None:
        """Raise Conflict for a change that was refused."""
        refuse_stale(key, await self.read(key), expect, fence)
        raise Conflict(f"{show_text(key)}: the row was changed at the same time: read it again")
