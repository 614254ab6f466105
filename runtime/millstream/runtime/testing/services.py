"""A membership table, a reminder table and a state store on hosts of their own, reached over the
simulated network.

This module owns `SimService`, a host that never crashes, and the services that use it. A change
happens at one instant, at the service. A caller that cannot hear the answer knows only that there
was none: the change may have happened, or may still happen, even after the caller has crashed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, TypeVar

from millstream.runtime.cluster.table import MemberRow, MemoryMembershipTable, Status, TableView
from millstream.runtime.definition.storage import Etag, MemoryStateStore, Row
from millstream.runtime.errors import MillstreamError, StorageUnavailable
from millstream.runtime.reminders.table import (
    BucketRange,
    MemoryReminderTable,
    ReminderPosition,
    ReminderRow,
)

from .history import History, SiloDeclaredDead
from .world.network import SimNetwork

__all__ = ["SimMembershipTable", "SimReminderTable", "SimService", "SimStateStore", "Unanswered"]

T = TypeVar("T")
ANSWER_S = 2.0


class Unanswered(MillstreamError):
    """Raised by the action of a service: its caller never gets an answer."""


class SimService:
    """A service at a host of its own on the network. Other hosts ask it.

    Use it for clusters that you assemble yourself; `SimCluster` has its own.

    Args:
        network: The network.
        name: The name of the service's host on the network. No simulated program runs there.
        answer_s: How long a caller waits for an answer, in virtual seconds.

    Attributes:
        name: The name of the service's host.
        late_count: The number of requests that arrived after their callers had given up.
    """

    def __init__(self, network: SimNetwork, name: str, answer_s: float = ANSWER_S) -> None:
        self.name = name
        self._network = network
        self._answer_s = answer_s
        self._requests: dict[asyncio.Task[None], None] = {}
        self.late_count = 0

    async def ask(self, caller: str, act: Callable[[], T]) -> T:
        """Do an action at the service, and return its result. Errors of the action reach the
        caller.

        Args:
            caller: The name of the caller's host.
            act: The action. It happens at one instant.

        Raises:
            StorageUnavailable: There was no answer in time. The action may have happened.
        """
        loop = self._network.loop
        answer: asyncio.Future[Callable[[], T]] = loop.create_future()
        request = loop.create_task(self._serve(caller, act, answer), context=Context())
        self._requests[request] = None
        request.add_done_callback(self._requests.pop, context=Context())
        try:
            async with asyncio.timeout(self._answer_s):
                taken = await answer
        except TimeoutError:
            text = f"{self.name} did not answer {caller} within {self._answer_s:g} s"
            raise StorageUnavailable(text) from None
        try:
            return taken()
        except Unanswered:
            never: asyncio.Future[T] = loop.create_future()
            return await never

    async def _serve(
        self, caller: str, act: Callable[[], T], answer: asyncio.Future[Callable[[], T]]
    ) -> None:
        """Carry a request and its answer. Messages on the network may arrive after their sender has
        crashed.
        """
        await self._network.travel(caller, self.name)
        self.late_count += answer.done()
        try:
            outcome = _returns(act())
        except MillstreamError as raised:
            outcome = _raises(raised)
        await self._network.travel(self.name, caller)
        if not answer.done():
            answer.set_result(outcome)

    def close(self) -> None:
        """Drop the requests that are in transit."""
        for request in list(self._requests):
            request.cancel()


def _returns(answer: T) -> Callable[[], T]:
    return lambda: answer


def _raises(error: MillstreamError) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


class SimMembershipTable:
    """A membership table as one host sees it, over the network.

    Its methods are those of `MembershipTable`. Silos that it declares dead are recorded in the
    history.

    Args:
        service: The service.
        host: The name of the host.
        table: The table, in memory.
        history: The history of the run.
    """

    def __init__(
        self, service: SimService, host: str, table: MemoryMembershipTable, history: History
    ) -> None:
        self._service = service
        self._host = host
        self._table = table
        self._history = history

    def secret(self, fresh: bytes, /) -> bytes:
        """Keep the secret of the silos that share the table: the first one that was given."""
        return self._table.secret(fresh)

    async def read(self) -> TableView:
        """Return the current view of the table."""
        return await self._service.ask(self._host, self._table.view)

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        """Insert or replace a row. False if the table has another version."""

        def act() -> bool:
            before = read_table(self._table)
            try:
                return self._table.replace_row(row, expect_version)
            finally:  # a table may raise although the change happened
                if row.status is Status.DEAD and read_table(self._table) is not before:
                    self._history.record(SiloDeclaredDead(row.silo, expect_version + 1, self._host))

        return await self._service.ask(self._host, act)

    async def heartbeat(self, silo: str, alive_s: float, /) -> None:
        """Store a heartbeat of a silo."""
        await self._service.ask(self._host, lambda: self._table.stamp(silo, alive_s))

    async def forget(self, silo: str, expect_version: int, /) -> bool:
        """Delete the row of a silo. False if the table has another version."""
        return await self._service.ask(self._host, lambda: self._table.drop(silo, expect_version))

    async def identity(self) -> str:
        """Return text that identifies the table."""
        return await self._table.identity()

    async def aclose(self) -> None:
        """Do nothing: other hosts use the table."""
        return None


def read_table(table: MemoryMembershipTable) -> TableView:
    """Return the content of a table, even if reading it would fail."""
    return MemoryMembershipTable.view(table)


class SimStateStore:
    """A state store as one host sees it, over the network.

    Its methods are those of `StateStore`.

    Args:
        service: The service.
        host: The name of the host.
        store: The store, in memory.
    """

    def __init__(self, service: SimService, host: str, store: MemoryStateStore) -> None:
        self._service = service
        self._host = host
        self._store = store

    async def read(self, key: str, /) -> Row | None:
        """Return the row of a key, or None."""
        return await self._service.ask(self._host, lambda: self._store.get(key))

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        """Store a row, and return its new etag. Raises Conflict."""
        return await self._service.ask(
            self._host, lambda: self._store.put(key, data, expect, fence)
        )

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        """Delete a row. Raises Conflict."""
        await self._service.ask(self._host, lambda: self._store.remove(key, expect, fence))

    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]:
        """Return up to `limit` rows whose keys begin with `prefix`, in order, after the key
        `after`.
        """
        return await self._service.ask(self._host, lambda: self._store.range(prefix, after, limit))

    async def aclose(self) -> None:
        """Do nothing: other hosts use the store."""
        return None


class SimReminderTable:
    """A reminder table as one host sees it, over the network.

    Its methods are those of `ReminderTable`.

    Args:
        service: The service.
        host: The name of the host.
        table: The table, in memory.
    """

    def __init__(self, service: SimService, host: str, table: MemoryReminderTable) -> None:
        self._service = service
        self._host = host
        self._table = table

    async def read(self, grain: str, /) -> Sequence[ReminderRow]:
        """Return all rows of a grain, sorted by name."""
        return await self._service.ask(self._host, lambda: self._table.rows_of(grain))

    async def upsert(self, row: ReminderRow, expect: Etag | None, /) -> Etag:
        """Store a row, and return its new etag. Raises Conflict."""
        return await self._service.ask(self._host, lambda: self._table.put(row, expect))

    async def remove(self, grain: str, name: str, expect: Etag, /) -> None:
        """Delete a row. Raises Conflict."""
        await self._service.ask(self._host, lambda: self._table.drop(grain, name, expect))

    async def due(
        self,
        buckets: Sequence[BucketRange],
        after: ReminderPosition | None,
        before_ms: int,
        limit: int,
        /,
    ) -> Sequence[ReminderRow]:
        """Return up to `limit` rows of the buckets after a position, by due time."""
        return await self._service.ask(
            self._host, lambda: self._table.list_due(buckets, after, before_ms, limit)
        )

    async def aclose(self) -> None:
        """Do nothing: other hosts use the table."""
        return None
