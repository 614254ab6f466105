"""The membership table with a time limit for each call, and protection against old data.

`LimitedTable` wraps a table, and `SharedReads` combines reads. `member` decides the reaction to a
table that does not answer.

Invariants:

- A call without an answer within `TABLE_LIMIT_S` raises StorageUnavailable. It may have taken
  effect.
- A read that contradicts an earlier read or write of this silo raises StorageUnavailable. The
  content of the table was replaced while silos use it. A silo that believed or ignored such a read
  would follow another table than the other silos.
- A shared read begins after it was requested, so it sees the content of the table at that time.
- At most one shared read runs and at most one more is due, for any number of requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from millstream.runtime.errors import ConfigError, MillstreamError, StorageUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.wire.address import SiloAddress

from .clock_check import CLOCK_REFUSED_S, ClockVerdict, judge_clock
from .table import MemberRow, MembershipTable, TableView, table_text

__all__ = ["TABLE_LIMIT_S", "LimitedTable", "SharedReads", "why_not_after"]

log = logging.getLogger("millstream.member")

T = TypeVar("T")
TABLE_LIMIT_S = 5.0


class LimitedTable:
    """A `MembershipTable` on top of one that may hang, and whose content may be replaced."""

    def __init__(self, table: MembershipTable) -> None:
        self._table = table
        self._last = TableView(0)
        self._reached = 0  # the lowest version that a later read may have

    async def read(self) -> TableView:
        reached = self._reached
        view = await in_time("read", self._table.read())
        why = why_not_after(self._last, reached, view)
        if why:
            raise StorageUnavailable(
                f"{table_text(self._table)} {why}: the table was restored or replaced while silos "
                "use it. Stop every silo that uses the table, then start the silos again"
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

    async def admit(self, cluster: str, wall_s: Callable[[], float]) -> None:
        """Compare cluster and clock of a silo with those of a table that has them.

        Raises ConfigError if the table belongs to another cluster, or if the clocks differ too
        much, and StorageUnavailable.
        """
        claim = getattr(self._table, "claim", None)
        if claim is not None:
            check_owner(table_text(self._table), cluster, await in_time("claim", claim(cluster)))
        clock_s = getattr(self._table, "clock_s", None)
        if clock_s is not None:
            before_s = wall_s()
            table_s = await in_time("clock_s", clock_s())
            check_clock(table_text(self._table), *judge_clock(before_s, table_s, wall_s()))

    def _change(self, expect_version: int, is_done: bool) -> bool:
        if is_done:
            self._reached = max(self._reached, expect_version + 1)
        return is_done


def check_owner(table: str, cluster: str, owner: str) -> None:
    """Raise ConfigError if a table belongs to another cluster."""
    if owner != cluster:
        raise ConfigError(
            f"membership table {table} belongs to cluster {owner!r}, and this silo is in cluster "
            f"{cluster!r}: pass Silo(cluster={owner!r}), or give this cluster a table of its own"
        )


def check_clock(table: str, ahead_s: float, verdict: ClockVerdict) -> None:
    """Log a warning, or raise ConfigError, as a verdict on the clocks says."""
    if verdict is ClockVerdict.FINE:
        return
    side = "ahead of" if ahead_s > 0 else "behind"
    fact = f"the clock of this silo is {abs(ahead_s):.1f} s {side} that of membership table {table}"
    if verdict is ClockVerdict.REFUSE:
        raise ConfigError(
            f"{fact}, and a silo joins with at most {CLOCK_REFUSED_S:g} s: synchronise both "
            "clocks, for example by NTP"
        )
    log.warning("%s: synchronise both clocks, for example by NTP", fact)


def why_not_after(last: TableView, reached: int, view: TableView) -> str:
    """Return the reason why a view cannot have been read after another one, or an empty text.

    Args:
        last: the newest view that was read before `view` arrived.
        reached: the lowest version that the table had when the read of `view` began.
    """
    if view.version < reached:
        return f"has version {view.version}, and had version {reached} before"
    if view.version == last.version and standing(view) != standing(last):
        return f"has other rows in version {view.version} than before"
    return ""


def standing(view: TableView) -> dict[SiloAddress, MemberRow]:
    """Return all rows without their stamps. These rows cannot change within a version."""
    return {row.silo: msgspec.structs.replace(row, alive_s=0.0) for row in view.rows}


class SharedReads:
    """Reads of one silo's table that several callers share.

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

        Raises StorageUnavailable if the table could not be read.
        """
        if self._due is None:
            self._due = self._tasks.start(self._after(self._current))
        due = self._due
        await asyncio.wait([due])
        why = "this silo is stopping" if due.cancelled() else due.result()
        if why:
            raise StorageUnavailable(why)

    async def _after(self, current: asyncio.Task[str] | None) -> str:
        """Read once the current read has ended. Returns the reason of a failure, or ""."""
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
    """Return the result of a call of the table. Raises StorageUnavailable after the time limit.
    `what` names the call in the error."""
    try:
        async with asyncio.timeout(TABLE_LIMIT_S):
            return await call
    except TimeoutError:
        raise StorageUnavailable(
            f"the membership table did not answer `{what}` within {TABLE_LIMIT_S:g} s"
        ) from None
