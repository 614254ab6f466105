"""A membership table and a state store on a host of their own, reached over the simulated network.

Owns: `SimService` (asking a host that never crashes) and the two that use it. Not: what a row means
(`cluster.table`, `definition.storage`). Invariants: a change happens at one instant, at the
service; who cannot hear the answer learns only that there was none: the change may have happened,
or may yet happen, also when its caller has died meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, TypeVar

from millstream.runtime.cluster.table import MemberRow, MemoryMembershipTable, Status, TableView
from millstream.runtime.definition.storage import Etag, MemoryStateStore, Row
from millstream.runtime.errors import MillstreamError, StorageUnavailable

from .history import History, SiloDeclaredDead
from .world.network import SimNetwork

__all__ = ["SimMembershipTable", "SimService", "SimStateStore", "Unanswered"]

T = TypeVar("T")
ANSWER_S = 2.0


class Unanswered(MillstreamError):
    """Raised by what a service does: its caller gets no answer, ever, not even that."""


class SimService:
    """A service at `name` on the network, asked from other hosts.

    Args:
        name: the service's host name for the network's verbs; it runs no simulated program.
        answer_s: how long a caller waits for an answer.
    """

    def __init__(self, network: SimNetwork, name: str, answer_s: float = ANSWER_S) -> None:
        self.name = name
        self._network = network
        self._answer_s = answer_s
        self._requests: dict[asyncio.Task[None], None] = {}
        self.late_count = 0

    async def ask(self, caller: str, act: Callable[[], T]) -> T:
        """Do `act` at the service. Raises what it raises, or StorageUnavailable without answer."""
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
            return await never  # until the caller gives up

    async def _serve(
        self, caller: str, act: Callable[[], T], answer: asyncio.Future[Callable[[], T]]
    ) -> None:
        """A request's way: what is on the network belongs to nobody, and may arrive late."""
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
        """Drop what is still under way."""
        for request in list(self._requests):
            request.cancel()


def _returns(answer: T) -> Callable[[], T]:
    return lambda: answer


def _raises(error: MillstreamError) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


class SimMembershipTable:
    """The table as one host sees it. Deaths that are written are noted in the history."""

    def __init__(
        self, service: SimService, host: str, table: MemoryMembershipTable, history: History
    ) -> None:
        self._service = service
        self._host = host
        self._table = table
        self._history = history

    def secret(self, fresh: bytes, /) -> bytes:
        return self._table.secret(fresh)

    async def read(self) -> TableView:
        return await self._service.ask(self._host, self._table.view)

    async def write(self, row: MemberRow, expect_version: int, /) -> bool:
        def act() -> bool:
            before = read_table(self._table)
            try:
                return self._table.replace_row(row, expect_version)
            finally:  # a table may say that it failed, and have done it
                if row.status is Status.DEAD and read_table(self._table) is not before:
                    self._history.record(SiloDeclaredDead(row.silo, expect_version + 1, self._host))

        return await self._service.ask(self._host, act)

    async def heartbeat(self, silo: str, alive_s: float, /) -> None:
        await self._service.ask(self._host, lambda: self._table.stamp(silo, alive_s))

    async def forget(self, silo: str, expect_version: int, /) -> bool:
        return await self._service.ask(self._host, lambda: self._table.drop(silo, expect_version))

    async def identity(self) -> str:
        return await self._table.identity()

    async def aclose(self) -> None:
        return None


def read_table(table: MemoryMembershipTable) -> TableView:
    """What a table holds, also where reading it would fail."""
    return MemoryMembershipTable.view(table)


class SimStateStore:
    """The store as one host sees it."""

    def __init__(self, service: SimService, host: str, store: MemoryStateStore) -> None:
        self._service = service
        self._host = host
        self._store = store

    async def read(self, key: str, /) -> Row | None:
        return await self._service.ask(self._host, lambda: self._store.get(key))

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        return await self._service.ask(
            self._host, lambda: self._store.put(key, data, expect, fence)
        )

    async def clear(self, key: str, expect: Etag, fence: int, /) -> None:
        await self._service.ask(self._host, lambda: self._store.remove(key, expect, fence))

    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]:
        return await self._service.ask(self._host, lambda: self._store.range(prefix, after, limit))

    async def aclose(self) -> None:
        return None
