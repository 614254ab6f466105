"""The table of reminders in PostgreSQL, shared by the silos of several machines.

This module owns `PostgresReminderTable`. The table keeps the invariants of `ReminderTable`. Each
method is one statement. A sequence of the schema gives all etags, so none is used twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.runtime import Conflict, Env, Etag, ReminderPosition, ReminderRow
from millstream.runtime.extending import show_text
from millstream.runtime.postgres import ClusterDatabase, PostgresOptions, check_key, etag_number

from .rows import reminder_of

__all__ = ["PostgresReminderTable"]

COLUMNS = "grain, name, bucket, due_ms, data, etag"
FIRST = (-(2**63), "", "")  # before every row


class PostgresReminderTable:
    """A reminder table in a PostgreSQL database, for the silos of several machines.

    `reminders="postgresql://user:password@host/database"` creates it by name, and so does a store
    `default` of that text. The notes at `PostgresStateStore` on writes, schemas, restarts and
    closing apply here, too. Key and name of a reminder have at most 2,500 bytes together.

    Every method raises `StorageUnavailable` if the server does not answer, if the table is closed,
    or if a limit of `options` is reached. The text says whether a change may have been made. The
    first use also raises `ConfigError` for a wrong user or password, a missing database, or a
    schema of another version.

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
        self._database = database = ClusterDatabase("reminder table", url, options, env)
        self.place = database.place
        table, etags = f"{database.schema}.reminders", f"nextval('{database.schema}.etags')"
        self._read = f"SELECT {COLUMNS} FROM {table} WHERE grain = %s ORDER BY name"
        self._insert = (
            f"INSERT INTO {table} ({COLUMNS}) VALUES (%s, %s, %s, %s::bigint, %s, {etags})"
            " ON CONFLICT DO NOTHING RETURNING etag"
        )
        self._update = (
            f"UPDATE {table} SET bucket = %s, due_ms = %s::bigint, data = %s, etag = {etags}"
            " WHERE grain = %s AND name = %s AND etag = %s::bigint RETURNING etag"
        )
        self._delete = f"DELETE FROM {table} WHERE grain = %s AND name = %s AND etag = %s::bigint"
        self._etag = f"SELECT etag FROM {table} WHERE grain = %s AND name = %s"
        self._due = (
            f"SELECT {COLUMNS} FROM {table} WHERE due_ms < %s::bigint"
            " AND (due_ms, grain, name) > (%s::bigint, %s::bytea, %s::bytea)"
            " AND bucket = ANY(%s::integer[])"
            " ORDER BY due_ms, grain, name LIMIT %s::bigint"
        )

    async def read(self, grain: str, /) -> Sequence[ReminderRow]:
        """Return all rows of a grain, sorted by name.

        Args:
            grain: The grain, `Type/key`.
        """
        found = await self._database.run(self._read, (grain.encode(),), is_change=False)
        return list(map(reminder_of, found.rows))

    async def upsert(self, row: ReminderRow, expect: Etag | None, /) -> Etag:
        """Store a row; it is on the server's disk when this method returns.

        Args:
            row: The row. Its own etag is ignored.
            expect: The etag that the stored row must have. None: there must be no row.

        Returns:
            The new etag.

        Raises:
            Conflict: The stored row is another one.
        """
        name = check_key("the key of a reminder", row.grain, row.name)
        content = (row.bucket, row.due_ms, bytes(row.data))
        if expect is None:
            made = await self._database.run(self._insert, (*name, *content))
        else:
            values = (*content, *name, etag_number(expect))
            made = await self._database.run(self._update, values)
        if not made.rows:
            await self._refuse(row.grain, row.name, expect)
        return str(made.rows[0][0])

    async def remove(self, grain: str, name: str, expect: Etag, /) -> None:
        """Delete a row; the deletion is on the server's disk when this method returns.

        Args:
            grain: The grain of the row.
            name: The name of the row.
            expect: The etag that the stored row must have.

        Raises:
            Conflict: The stored row is another one, or there is none.
        """
        values = (grain.encode(), name.encode(), etag_number(expect))
        if not (await self._database.run(self._delete, values)).affected:
            await self._refuse(grain, name, expect)

    async def due(
        self,
        buckets: Sequence[tuple[int, int]],
        after: ReminderPosition | None,
        before_ms: int,
        limit: int,
        /,
    ) -> Sequence[ReminderRow]:
        """Return rows with an occurrence, in the order of due time, grain and name.

        Args:
            buckets: Only rows in one of these ranges.
            after: Only rows after this position. None: from the first.
            before_ms: Only rows whose time is lower than this.
            limit: The most rows to return.
        """
        numbers = [one for low, high in buckets for one in range(low, high + 1)]
        due_ms, grain, name = FIRST if after is None else after
        values = (before_ms, due_ms, grain.encode(), name.encode(), numbers, max(limit, 0))
        found = await self._database.run(self._due, values, is_change=False)
        return list(map(reminder_of, found.rows))

    async def aclose(self) -> None:
        """Wait for the statements that run, then close the connections. A second call does
        nothing.
        """
        await self._database.aclose()

    async def _refuse(self, grain: str, name: str, expect: Etag | None) -> None:
        """Raise Conflict for a change that was refused."""
        values = (grain.encode(), name.encode())
        stored = (await self._database.run(self._etag, values, is_change=False)).rows
        found = str(stored[0][0]) if stored else None
        what = show_text(f"reminder {name} of {grain}")
        raise Conflict(f"{what}: etag is {found}, the writer expected {expect}")
