"""The membership table as its users see it: every call ends in time, and what it says goes forward.

Owns: `LimitedTable`, `SharedReads`. Not: what a caller does without an answer (`member`).
Invariants: what has no answer within `TABLE_LIMIT_S` raises StorageUnavailable, and may have
happened; a read that contradicts an earlier read or write of this silo raises it, too: somebody has
replaced what is in the table while silos use it, and whoever believed such a read, or ignored it,
would follow another table than the others. Whoever asks for a shared read gets one that begins
after the question, so it sees what was in the table then; at most one such read is under way, and
at most one more is due, however many ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from millstream.runtime.errors import MillstreamError, StorageUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.wire.address import SiloAddress

from .table import MemberRow, MembershipTable, TableView, table_text

__all__ = ["TABLE_LIMIT_S", "LimitedTable", "SharedReads", "why_not_after"]

T = TypeVar("T")
TABLE_LIMIT_S = 5.0


class LimitedTable:
    """A `MembershipTable` over one that may hang, and may be replaced by somebody."""

    def __init__(self, table: MembershipTable) -> None:
        self._table = table
        self._last = TableView(0)
        self._reached = 0  # the version after the last change of this silo, or of the last view

    async def read(self) -> TableView:
        reached = self._reached
        view = await in_time("read", self._table.read())
        why = why_not_after(self._last, reached, view)
        if why:
            raise StorageUnavailable(
                f"{table_text(self._table)} {why}: it was restored or replaced while silos use it. "
                "Stop every silo that uses it, then start them again"
            )
        if view.version >= self._last.version:
            self._last = view
        self._reached = max(self._reached, view.version)
        return view

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        return self._change(
            expect_version, await in_time("write", self._table.write(row, expect_version))
        )

    async def heartbeat(self, silo: SiloAddress, alive_s: float, /) -> None:
        await in_time("heartbeat", self._table.heartbeat(silo, alive_s))

    async def forget(self, silo: SiloAddress, expect_version: int, /) -> bool:
        return self._change(
            expect_version, await in_time("forget", self._table.forget(silo, expect_version))
        )

    async def identity(self) -> str:
        return await in_time("identity", self._table.identity())

    def _change(self, expect_version: int, is_done: bool) -> bool:
        if is_done:
            self._reached = max(self._reached, expect_version + 1)
        return is_done


def why_not_after(last: TableView, reached: int, view: TableView) -> str:
    """Why a view cannot have been read after another one; empty if it can.

    Args:
        last: the newest view that was read before this one came.
        reached: the version that the table had at least when the reading of `view` began.
    """
    if view.version < reached:
        return f"has version {view.version} after {reached}"
    if view.version == last.version and standing(view) != standing(last):
        return f"says two things in version {view.version}"
    return ""


def standing(view: TableView) -> dict[SiloAddress, MemberRow]:
    """All rows without their stamps: what cannot change within a version."""
    return {row.silo: msgspec.structs.replace(row, alive_s=0.0) for row in view.rows}


class SharedReads:
    """The reads of one silo's table that several wait for.

    Args:
        read: reads the table and adopts the view. Raises MillstreamError.
    """

    def __init__(self, read: Callable[[], Awaitable[None]], tasks: Tasks) -> None:
        self._read = read
        self._tasks = tasks
        self._current: asyncio.Task[str] | None = None
        self._due: asyncio.Task[str] | None = None

    async def fresh(self) -> None:
        """Return when a read that began after this call has ended.

        Raises StorageUnavailable: the table could not be read.
        """
        if self._due is None:
            self._due = self._tasks.start(self._after(self._current))
        due = self._due
        await asyncio.wait([due])
        why = "this silo stops" if due.cancelled() else due.result()
        if why:
            raise StorageUnavailable(why)

    async def _after(self, current: asyncio.Task[str] | None) -> str:
        """Read once the read that is under way has ended; returns why that failed."""
        try:
            if current is not None:
                await asyncio.wait([current])
        finally:
            self._current, self._due = self._due, None
        try:
            await self._read()
        except MillstreamError as error:
            return str(error)
        return ""


async def in_time(what: str, call: Coroutine[Any, Any, T]) -> T:
    """Its result. Raises StorageUnavailable, and what it raises."""
    try:
        async with asyncio.timeout(TABLE_LIMIT_S):
            return await call
    except TimeoutError:
        raise StorageUnavailable(
            f"the membership table did not answer `{what}` within {TABLE_LIMIT_S:g} s"
        ) from None
