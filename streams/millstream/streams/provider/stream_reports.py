"""The reports of one silo about a stream and its queue, for `why`.

Owns the reports of an agent (`QueueReport`, `SubscriptionReport`), and the target
`$why/<provider>`. `insight/verdict` draws the conclusions. Reports cost nothing until somebody
asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from millstream.runtime import MillstreamError, StateStore, StreamError
from millstream.runtime.extending import Clock, SiloServices
from millstream.streams.agent.agent import PullingAgent
from millstream.streams.agent.delivery.steps import DeliveryState
from millstream.streams.agent.delivery.subscriber import Subscriber
from millstream.streams.api.rendezvous import rendezvous_key, rendezvous_of
from millstream.streams.api.subscription_rows import WHOLE_STREAM, row_key
from millstream.streams.contracts.identity import QueueId, StreamId
from millstream.streams.contracts.mapping import QueueMapper
from millstream.streams.failures.letters import DeadLetter, LetterRows
from millstream.streams.insight.report import (
    LETTERS_MAX,
    HolderReport,
    LaggingStream,
    LetterReport,
    QueueReport,
    StreamReport,
    SubscriptionReport,
)
from millstream.streams.insight.target import WhyTarget
from millstream.streams.insight.verdict import Why, verdict
from millstream.streams.ownership.manager import QueueManager
from millstream.streams.ownership.store import OwnershipStore

__all__ = ["StreamReports", "queue_report"]

ASKED_FOR_LETTERS_MAX = 20
"""Limit of the subscriptions of one stream whose dead letters are searched."""
BETWEEN_S = 0.5  # between two looks, which give the rates


class StreamReports:
    """Reports of one provider's streams, from the silo that owns the queue (`Reports`)."""

    def __init__(
        self,
        provider: str,
        services: SiloServices,
        mapper: QueueMapper,
        records: OwnershipStore,
        agents: QueueManager[PullingAgent],
        rows: StateStore,
        letters: LetterRows,
    ) -> None:
        self._letters = letters
        self._provider = provider
        self._rows = rows
        self._target = f"{WhyTarget.target_name}/{provider}"
        self._services = services
        self._mapper = mapper
        self._records = records
        self._agents = agents

    async def why(self, stream: StreamId, /) -> Why:
        """Look twice, and return the verdict. Raises StorageError."""
        before = await self._look(stream)
        await asyncio.sleep(BETWEEN_S)
        after = await self._look(stream)
        is_paused = await self._is_paused(stream)
        letters = await self._dead(stream, after.subscriptions)
        after = msgspec.structs.replace(after, is_paused=is_paused, letters=letters)
        return verdict(before, after)

    async def _dead(
        self, stream: StreamId, known: Sequence[SubscriptionReport] | None
    ) -> list[LetterReport]:
        """Return the dead letters of the stream, up to the limit of a report. Raises
        StorageError."""
        if known is None:
            key = rendezvous_key(self._provider, stream)
            try:
                rows = await self._services.grain(rendezvous_of(self._provider), key).everyone()
            except MillstreamError:
                return []
            names = [row.id for row in rows]
        else:
            names = [one.id for one in known]
        found: list[LetterReport] = []
        for name in names[:ASKED_FOR_LETTERS_MAX]:
            letters = await self._letters.list(name, stream, "", LETTERS_MAX - len(found))
            found += [letter_report(one) for one in letters]
            if len(found) >= LETTERS_MAX:
                break
        return found

    async def lagging(self, namespace: str, limit: int, /) -> list[LaggingStream]:
        """Return the `limit` streams of a namespace with the largest lag, of all silos that
        answer."""
        call = self._services.targets.call
        answers = await asyncio.gather(
            *(
                call(silo, self._target, WhyTarget.lagging_here, namespace, limit)
                for silo in self._services.members.active()
            ),
            return_exceptions=True,
        )
        found = [one for answer in answers if isinstance(answer, list) for one in answer]
        return sorted(found, key=lambda one: one.lag, reverse=True)[:limit]

    async def lagging_here(self, namespace: str, limit: int, /) -> list[LaggingStream]:
        """Return the `limit` streams of a namespace with the largest lag, of the queues that this
        silo reads. Cost: O(known streams)."""
        found: list[LaggingStream] = []
        for agent in self._agents.agents():
            for stream in agent.work.list_undelivered(namespace):
                found.append(lagging_stream(agent, stream, self._services))
            await asyncio.sleep(0)
        return sorted(found, key=lambda one: one.lag, reverse=True)[:limit]

    async def _is_paused(self, stream: StreamId) -> bool:
        key = row_key(rendezvous_key(self._provider, stream), WHOLE_STREAM)
        return await self._rows.read(key) is not None

    async def _look(self, stream: StreamId) -> StreamReport:
        try:
            queue = self._mapper.queue_for(stream)
        except StreamError as error:
            return StreamReport(stream, "", trouble=str(error))
        stored = await self._records.read(queue)
        if stored is None or not stored.record.owner:
            return StreamReport(stream, queue, is_held=stored is not None and stored.record.is_held)
        owner, state = stored.record.owner, stored.record.state.value
        is_live = self._services.members.is_live(owner)
        is_held = stored.record.is_held
        found = StreamReport(stream, queue, owner, state, is_live, is_held=is_held)
        if not is_live:
            return found
        try:
            call = self._services.targets.call
            told = await call(owner, self._target, WhyTarget.look, queue, stream)
        except MillstreamError:
            return found
        return msgspec.structs.replace(
            told, owner=owner, owner_state=state, is_owner_live=True, is_held=is_held
        )

    async def look(self, queue: QueueId, stream: StreamId, /) -> StreamReport:
        """Return the report of this silo's agent of the queue."""
        agent, clock = self._agents.agent(queue), self._services.clock
        if agent is None:
            return StreamReport(stream, queue)
        await agent.reader.measure()
        known = agent.subscribers.of(stream)
        reports = (
            None if known is None else [subscription_report(one, agent, clock) for one in known]
        )
        return StreamReport(
            stream,
            queue,
            agent=queue_report(agent, self._services.address, clock),
            at_s=clock.wall_s(),
            subscriptions=reports,
            reason=agent.work.waits_for(stream),
        )


def queue_report(agent: PullingAgent, silo: str, clock: Clock) -> QueueReport:
    """Return the report of one queue by its agent; the backlog is that of the last `measure`."""
    reader, cache, limits = agent.reader, agent.cache, agent.options.cache
    return QueueReport(
        agent.queue,
        silo,
        agent.epoch,
        reader.core.state.value,
        reader.trouble,
        reader.backlog,
        reader.core.read_count,
        agent.dispatch.delivered_count,
        cache.events,
        cache.size_bytes,
        limits.events_max,
        limits.bytes_max,
        age_s(cache.oldest_s, clock),
        agent.dispatch.calls_out,
        agent.options.calls_out_max,
        holder_report(agent, clock),
        cache.purged,
        cache.evicted,
        *reader.stops(),
    )


def letter_report(letter: DeadLetter) -> LetterReport:
    """Return the report of a dead letter, without its event."""
    failure = letter.failure
    lines = failure.error.splitlines() or [""]
    return LetterReport(letter.id, failure.subscription, failure.attempts, lines[0])


def lagging_stream(agent: PullingAgent, stream: StreamId, services: SiloServices) -> LaggingStream:
    """Return the report of one stream, by the subscription with the largest lag."""
    known = agent.subscribers.of(stream)
    reason = agent.work.waits_for(stream)
    ones = [one for one in known or () if one.work is not None]
    reports = [subscription_report(one, agent, services.clock) for one in ones]
    worst = max(reports, key=lambda one: (one.still_s, one.lag_s, one.lag_events), default=None)
    reason = reason or ("" if worst is None else worst.reason)
    return LaggingStream(stream, agent.queue, services.address, worst, reason)


def holder_report(agent: PullingAgent, clock: Clock) -> HolderReport | None:
    """Return the report of the subscription that pins the oldest message of the cache; None if the
    cache is empty."""
    oldest = agent.cache.oldest
    if oldest is None:
        return None
    for one in agent.subscribers.of(oldest.stream) or ():
        token = None if one.work is None else one.work.cursor.next_token
        if token is not None and token[:2] == oldest.token[:2]:
            return HolderReport(oldest.stream, subscription_report(one, agent, clock))
    return HolderReport(oldest.stream)


def subscription_report(one: Subscriber, agent: PullingAgent, clock: Clock) -> SubscriptionReport:
    """Return the report of one subscription."""
    grain, delivery = f"{one.grain_type}/{one.grain_key}", one.work
    if delivery is None:
        return SubscriptionReport(
            one.id,
            grain,
            show_held(one) or "idle",
            event_s=0.0 if one.delivery is None else one.delivery.event_s,
            gaps=one.gaps_told,
            gone_max=one.gone_max,
            retries=one.retries,
        )
    events, since_s = delivery.cursor.lag()
    return SubscriptionReport(
        one.id,
        grain,
        delivery_state(one, delivery.state),
        events,
        age_s(since_s, clock),
        delivery.event_s,
        delivery.out_s(clock.now()),
        delivery.window,
        delivery.attempts,
        delivery.trouble,
        one.gaps_told,
        one.gone_max,
        one.retries,
        agent.work.reason_of(one),
        agent.watch.standstills.still_s(str(one.stream), one.id, clock.now()),
    )


def delivery_state(one: Subscriber, state: DeliveryState) -> str:
    """Return the state of the delivery; if the subscription is stopped, the reason."""
    return show_held(one) or state.value if state is DeliveryState.FAULTED else state.value


def show_held(one: Subscriber) -> str:
    """Return the reason why a subscription is stopped; empty if it is not."""
    return one.held or ("stream_paused" if one.is_paused else "")


def age_s(since_s: float | None, clock: Clock) -> float:
    """Return the seconds since a wall-clock time; 0 if there is none."""
    return max(0.0, clock.wall_s() - since_s) if since_s else 0.0
