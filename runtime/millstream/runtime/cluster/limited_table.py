"""The membership table as its users see it: every call ends in time.

Owns: `LimitedTable`. Not: what a caller does without an answer (`member`). Invariant: what has no
answer within `TABLE_LIMIT_S` raises StorageUnavailable, and may have happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from millstream.runtime.errors import StorageUnavailable
from millstream.runtime.wire.address import SiloAddress

from .table import MemberRow, MembershipTable, TableView

__all__ = ["TABLE_LIMIT_S", "LimitedTable"]

T = TypeVar("T")
TABLE_LIMIT_S = 5.0


class LimitedTable:
    """A `MembershipTable` over one that may hang."""

    def __init__(self, table: MembershipTable) -> None:
        self._table = table

    async def read(self) -> TableView:
        return await in_time("read", self._table.read())

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        return await in_time("write", self._table.write(row, expect_version))

    async def heartbeat(self, silo: SiloAddress, alive_s: float, /) -> None:
        await in_time("heartbeat", self._table.heartbeat(silo, alive_s))

    async def forget(self, silo: SiloAddress, expect_version: int, /) -> bool:
        return await in_time("forget", self._table.forget(silo, expect_version))


async def in_time(what: str, call: Coroutine[Any, Any, T]) -> T:
    """Its result. Raises StorageUnavailable, and what it raises."""
    try:
        async with asyncio.timeout(TABLE_LIMIT_S):
            return await call
    except TimeoutError:
        raise StorageUnavailable(
            f"the membership table did not answer `{what}` within {TABLE_LIMIT_S:g} s"
        ) from None
