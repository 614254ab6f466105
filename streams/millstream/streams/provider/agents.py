"""Calls the agent of a queue, in any silo, about subscriptions that begin, pause or end.

The queue's record names the silo. `rendezvous` owns the rows. Invariant: `attach` returns when the
agent knows the subscription, or when there is no agent: the next owner asks the rendezvous. A
subscription that begins at an earlier event waits for an agent that has stored it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from millstream.runtime import MillstreamError, QueueUnavailable, StreamError
from millstream.runtime.extending import SiloServices
from millstream.streams.agent.absence import Absence
from millstream.streams.api.implicit import ImplicitSubscription, implicit_in
from millstream.streams.api.subscription_rows import HERE, SubscriptionRow
from millstream.streams.contracts.capability import Capability, has_positions
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.ownership.layout import Layout
from millstream.streams.ownership.record import QueueState, StoredRecord
from millstream.streams.ownership.store import OwnershipStore

from .target import StreamsTarget, target_of

__all__ = ["AgentCalls"]

log = logging.getLogger("millstream.streams")

TRIES_MAX = 100
RETRY_S = 0.05
RETRY_STEPS_MAX = 20

Tell = Callable[[str, QueueId], Coroutine[Any, Any, bool]]


class AgentCalls:
    """The agents of one provider, as its rendezvous grains call them (`SubscriptionAgents`)."""

    def __init__(
        self,
        provider: str,
        services: SiloServices,
        layout: Layout,
        records: OwnershipStore,
        store: str,
        retention_s: float,
        *,
        capabilities: frozenset[Capability],
    ) -> None:
        self.can_seek = Capability.REWIND in capabilities
        self.has_positions = has_positions(capabilities)
        self._provider = provider
        self._retention_s = retention_s
        self._absence = Absence(provider, services.members, services.clock, retention_s)
        self._target = target_of(provider)
        self._services = services
        self._layout = layout
        self._records = records
        self._store = store

    @property
    def store(self) -> str:
        """The name of the store that keeps the provider's rows."""
        return self._store

    def implicit(self, stream: StreamId, /) -> Sequence[ImplicitSubscription]:
        """Return the implicit subscriptions of a stream, by the present view."""
        now_s, view = self._services.clock.wall_s(), self._services.members.view
        found = implicit_in(view, self._provider, now_s, self._retention_s)
        return list(found.of(stream).values())

    def is_absent(self, stream: StreamId, row: SubscriptionRow, /) -> bool:
        """Say whether no silo has hosted the consumer for so long that its row must be
        forgotten."""
        return self._absence.is_over(stream, row)

    async def attach(self, stream: StreamId, row: SubscriptionRow, /) -> None:
        """Tell the agent about a subscription. Raises QueueUnavailable if it cannot be reached."""

        def tell(silo: str, queue: QueueId) -> Coroutine[Any, Any, bool]:
            call, target = self._services.targets.call, self._target
            return call(silo, target, StreamsTarget.attach, queue, *stream, row)

        await self._tell(stream, tell, needs_agent=row.start not in (HERE, "next"))

    async def pause(self, stream: StreamId, row: SubscriptionRow, /) -> None:
        """Tell the agent that a subscription is paused. Raises QueueUnavailable if it cannot be
        reached."""

        def tell(silo: str, queue: QueueId) -> Coroutine[Any, Any, bool]:
            call, target = self._services.targets.call, self._target
            return call(silo, target, StreamsTarget.hold, queue, *stream, row)

        await self._tell(stream, tell)

    async def detach(self, stream: StreamId, subscription: str, /) -> None:
        """Tell the agent that a subscription ended. Raises QueueUnavailable."""

        def tell(silo: str, queue: QueueId) -> Coroutine[Any, Any, bool]:
            call, target = self._services.targets.call, self._target
            return call(silo, target, StreamsTarget.detach, queue, *stream, subscription)

        await self._tell(stream, tell)

    async def _tell(self, stream: StreamId, tell: Tell, *, needs_agent: bool = False) -> None:
        try:
            queues = self._layout.queues_of(stream)
        except StreamError:
            if needs_agent:
                raise
            return  # no queue carries the stream; an agent that ever does asks the rendezvous
        for queue in queues:
            await self._tell_queue(stream, queue, tell, needs_agent=needs_agent)

    async def _tell_queue(
        self, stream: StreamId, queue: QueueId, tell: Tell, *, needs_agent: bool
    ) -> None:
        """Call the silo that reads the queue, with retries. Raises QueueUnavailable.

        If no silo reads the queue, the next owner asks the rendezvous. With `needs_agent`, that is
        not enough, so this call waits for an owner.
        """
        for attempt in range(TRIES_MAX):
            owner = await self.owner(queue)
            if owner is None and not needs_agent:
                return
            try:
                if owner is not None and await tell(owner, queue):
                    return
            except MillstreamError as error:
                text = "silo %s did not answer for queue %s; retrying: %s"
                log.info(text, owner, queue, error)
            await asyncio.sleep(RETRY_S * min(attempt + 1, RETRY_STEPS_MAX))
        raise QueueUnavailable(f"{stream}: the agent of queue {queue} could not be reached")

    async def owner(self, queue: QueueId) -> str | None:
        """Return the silo that reads a queue, if it is alive, or None if no silo does.

        Raises StorageError.
        """
        return self._owner(await self._records.read(queue))

    def _owner(self, stored: StoredRecord | None) -> str | None:
        """Return the owner in a record, if it is alive."""
        if stored is None or stored.record.state is QueueState.FREE:
            return None
        owner = stored.record.owner
        return owner if self._services.members.is_live(owner) else None
