"""The membership table as a source of gateways for a client.

This module owns `GatewayTable` and `Reading`. The module `list_updates` decides when the table is
read, and `gateway_list` keeps the addresses. A client changes nothing in the table. A table that is
made from text is made for one reading and closed after it, so each reading uses the table that is
at that place then. A table that was given as an object is not closed.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.runtime.cluster.limited_table import LimitedTable
from millstream.runtime.cluster.table import (
    MembershipTable,
    Status,
    TableView,
    is_table,
    table_id_of,
    table_text,
)
from millstream.runtime.errors import ConfigError, MillstreamError, StorageUnavailable
from millstream.runtime.plugins import maker_of
from millstream.runtime.text import show_text

__all__ = ["GatewayTable", "Reading", "addresses_in"]

PLUGINS = "millstream.membership"


class Reading(NamedTuple):
    """The part of a membership table that a client needs.

    Attributes:
        table_id: The short identity of the table, as silos state it in their handshake.
        addresses: `host:port` of the active silos that take clients. The one with the latest sign
            of life is first.
        text: The table as messages show it.
    """

    table_id: str
    addresses: list[str]
    text: str

    @property
    def advice(self) -> str:
        """The advice for a client that no gateway answers."""
        if self.addresses:
            return f"no silo in membership table {self.text} answers: start one"
        return (
            f"membership table {self.text} has no active silo: start a silo that uses it, or pass "
            "the table of the silos as connect(membership=...)"
        )


class GatewayTable:
    """Reads the membership table of a cluster.

    `given` is the table, or text that names a plug-in. Anything else raises ConfigError.
    """

    def __init__(self, given: MembershipTable | str) -> None:
        self._given = given
        if isinstance(given, str):
            maker_of(PLUGINS, given)
        elif not is_table(given):
            raise ConfigError(
                f"connect(membership=...) is {show_text(repr(given))}; it must be a "
                "MembershipTable, or name:argument"
            )

    async def read(self) -> Reading:
        """Read the table. Raises StorageUnavailable, ConfigError."""
        try:
            return await self._read()
        except MillstreamError:
            raise
        except Exception as error:
            text = f"the membership table {show_text(repr(self._given))} cannot be read: {error!r}"
            raise StorageUnavailable(text) from error

    async def _read(self) -> Reading:
        if not isinstance(self._given, str):
            return await read(self._given)
        table: MembershipTable = maker_of(PLUGINS, self._given)()
        try:
            return await read(table)
        finally:
            await table.aclose()


async def read(table: MembershipTable) -> Reading:
    """Read a table. Raises StorageUnavailable, and errors of the table."""
    limited = LimitedTable(table)
    table_id = table_id_of(await limited.identity())
    return Reading(table_id, addresses_in(await limited.read()), table_text(table))


def addresses_in(view: TableView) -> list[str]:
    """Return the addresses of the gateways in a view, those with the latest heartbeat first.

    After a crash of all silos, the rows of crashed silos still say active. A vote against a silo is
    no sign of life.
    """
    rows = [row for row in view.rows if row.is_gateway and row.status is Status.ACTIVE]
    rows.sort(key=lambda row: (-max(row.started_s, row.alive_s), row.silo))
    return list(dict.fromkeys(row.endpoint for row in rows))
