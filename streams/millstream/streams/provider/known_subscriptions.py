"""The subscriptions that a provider knows: implicit ones by the members' rows, explicit ones by
reading.

`implicit` computes the implicit subscriptions of a view. Invariants: a subscription that only the
marks of dead silos declare ends in time. Agents are told only about changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from millstream.runtime import StateStore
from millstream.runtime.extending import SiloServices
from millstream.streams.agent.absence import Absence
from millstream.streams.api.implicit import ImplicitSet, implicit_in
from millstream.streams.api.rendezvous import rendezvous_key, rendezvous_of
from millstream.streams.api.subscription_rows import (
    SubscriptionRow,
    row_key,
    rows_of_namespace,
    rows_of_streams,
)
from millstream.streams.contracts.identity import StreamId

__all__ = ["KnownSubscriptions"]

log = logging.getLogger("millstream.streams")


class KnownSubscriptions:
    """The subscriptions of one provider (`Known`)."""

    def __init__(
        self,
        provider: str,
        services: SiloServices,
        store: StateStore,
        retention_s: float,
        changed: Callable[[], None],
    ) -> None:
        self._provider = provider
        self._services = services
        self._store = store
        self._retention_s = retention_s
        self._changed = changed
        self._absence = Absence(provider, services.members, services.clock, retention_s)
        self._timer: asyncio.TimerHandle | None = None
        self.implicit = ImplicitSet()

    async def rows_of(
        self, streams: Collection[StreamId], /
    ) -> Mapping[StreamId, Sequence[SubscriptionRow]]:
        """Return the rows of these streams, straight from the store. Raises StorageUnavailable."""
        return await rows_of_streams(self._store, self._provider, streams)

    async def read_stored(self, stream: StreamId, /) -> Sequence[SubscriptionRow]:
        """Return the rows of a stream, straight from the store. Raises StorageUnavailable."""
        return (await self.rows_of([stream]))[stream]

    async def is_stored(self, stream: StreamId, subscription: str, /) -> bool:
        """Say whether a subscription has a row. Raises StorageUnavailable."""
        key = row_key(rendezvous_key(self._provider, stream), subscription)
        return await self._store.read(key) is not None

    async def look_again(self, stream: StreamId, /) -> None:
        """Let the stream's rendezvous read its stored rows again. Raises the errors of calls."""
        key = rendezvous_key(self._provider, stream)
        await self._services.grain(rendezvous_of(self._provider), key).look_again()

    def is_absent(self, stream: StreamId, row: SubscriptionRow, /) -> bool:
        """Say whether no silo has hosted the consumer for so long that its row must be
        forgotten."""
        return self._absence.is_over(stream, row)

    async def forget(self, stream: StreamId, subscription: str, /) -> None:
        """Remove a row, unless its consumer is hosted again. Raises the errors of calls."""
        key = rendezvous_key(self._provider, stream)
        await self._services.grain(rendezvous_of(self._provider), key).forget(subscription)

    def implicit_now(self) -> ImplicitSet:
        """Return the implicit subscriptions in the present view, even in a silo that reads no
        queues."""
        now_s = self._services.clock.wall_s()
        return implicit_in(self._services.members.view, self._provider, now_s, self._retention_s)

    def read_held(self, namespace: str, /) -> Awaitable[Sequence[tuple[StreamId, SubscriptionRow]]]:
        """Return the rows of a namespace with implicit subscriptions only. Raises
        StorageUnavailable."""
        return rows_of_namespace(self._store, self._provider, namespace)

    def refresh(self) -> None:
        """Compute the implicit subscriptions of the present view, and tell the agents about
        changes."""
        self.close()
        now_s, before = self._services.clock.wall_s(), self.implicit
        self.implicit = after = self.implicit_now()
        if after.until_s is not None:
            wait_s = max(0.0, after.until_s - now_s)
            self._timer = self._services.tasks.call_later(wait_s, self.refresh)
        for grain_type in sorted(after.absent - before.absent):
            text = "%s: no silo hosts grain type %s; its events wait for one, at most %g s (%s)"
            name = "absent_type_retention_s"
            log.warning(text, self._provider, grain_type, self._retention_s, name)
        if after.of_namespace != before.of_namespace:
            self._changed()

    def close(self) -> None:
        """Cancel the next refresh."""
        if self._timer is not None:
            self._timer.cancel()
