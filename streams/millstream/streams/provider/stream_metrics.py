"""The metrics of a stream provider in one silo.

Owns their descriptions, `SubscriptionLags`, and `read_queues`. The figures of queues exist anyway
(`target.QueueStats`). The lags of subscriptions are computed now and then, in slices, because a
computation costs as much as all undelivered messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from millstream.runtime.extending import Clock, Metric, Sample
from millstream.streams.agent.agent import PullingAgent
from millstream.streams.agent.delivery.subscriber import Subscriber

from .target import QueueStats

__all__ = ["STREAM_METRICS", "SubscriptionLags", "read_queues"]

LOOK_EVERY_S = 5.0
"""Least time between two looks at the undelivered events of a provider, in seconds."""
SHARE = 100
"""The looks take at most one part in so many of the time."""
STREAMS_AT_ONCE = 50  # streams between two moments in which the loop may run others

QUEUE = ("provider", "queue")
SUBSCRIPTION = ("provider", "namespace", "grain_type", "handler")

BACKLOG = Metric(
    name="millstream_queue_backlog_events",
    type="gauge",
    help="Events that are not read yet, at the last look; 0 if the provider cannot count them.",
    labels=QUEUE,
)
CACHED = Metric(
    name="millstream_queue_cached_events",
    type="gauge",
    help="Events in the cache of the queue's owner.",
    labels=QUEUE,
)
CACHED_BYTES = Metric(
    name="millstream_queue_cached_bytes",
    type="gauge",
    unit="bytes",
    help="Bytes in the cache of the queue's owner.",
    labels=QUEUE,
)
READ = Metric(
    name="millstream_queue_read_events_total",
    type="counter",
    help="Events read from the queue.",
    labels=QUEUE,
)
DELIVERED = Metric(
    name="millstream_queue_delivered_events_total",
    type="counter",
    help="Events delivered, once for each subscription.",
    labels=QUEUE,
)
GIVEN_UP = Metric(
    name="millstream_queue_given_up_events_total",
    type="counter",
    help="Events given up after their last attempt, once for each subscription.",
    labels=QUEUE,
)
UNHEARD = Metric(
    name="millstream_queue_unheard_events_total",
    type="counter",
    help="Events without a subscription.",
    labels=QUEUE,
)
EVICTED = Metric(
    name="millstream_queue_evicted_events_total",
    type="counter",
    help="Events that left the cache while a lagging subscription needed them.",
    labels=QUEUE,
)
OLDEST = Metric(
    name="millstream_queue_oldest_event_age_seconds",
    type="gauge",
    unit="seconds",
    help="Age of the oldest event in the cache, from its enqueue time; 0 if the cache is empty.",
    labels=QUEUE,
)
STREAMS = Metric(
    name="millstream_queue_streams",
    type="gauge",
    help="Streams of the queue that had events recently.",
    labels=QUEUE,
)
DELIVERIES = Metric(
    name="millstream_queue_deliveries",
    type="gauge",
    help="Delivery calls in flight.",
    labels=QUEUE,
)
LAGGING = Metric(
    name="millstream_queue_lagging_subscriptions",
    type="gauge",
    help="Subscriptions whose next event is not in the cache, and is read again.",
    labels=QUEUE,
)
READING = Metric(
    name="millstream_queue_reading",
    type="gauge",
    help="1 if the receiver of the queue runs, else 0.",
    labels=QUEUE,
)
FAULTS = Metric(
    name="millstream_queue_faults_total",
    type="counter",
    help="Calls of the queue's receiver that raised, were answered wrongly, or were late.",
    labels=QUEUE,
)
GAPS = Metric(
    name="millstream_queue_gaps_total",
    type="counter",
    help="How often events were gone before they were read.",
    labels=QUEUE,
)
FULL = Metric(
    name="millstream_queue_full_total",
    type="counter",
    help="How often reading stopped because the cache was full.",
    labels=QUEUE,
)
FULL_TIME = Metric(
    name="millstream_queue_full_seconds_total",
    type="counter",
    unit="seconds",
    help="Time for which reading was stopped because the cache was full.",
    labels=QUEUE,
)
LAG_EVENTS = Metric(
    name="millstream_subscription_lag_events",
    type="gauge",
    help="Events that were read and are not processed, of all streams together.",
    labels=SUBSCRIPTION,
)
LAG_SECONDS = Metric(
    name="millstream_subscription_lag_seconds",
    type="gauge",
    unit="seconds",
    help="Age of the oldest event that is not processed, of the stream with the largest lag.",
    labels=SUBSCRIPTION,
)
UNDELIVERED = Metric(
    name="millstream_subscription_streams",
    type="gauge",
    help="Streams with events that are not processed.",
    labels=SUBSCRIPTION,
)
STANDSTILL = Metric(
    name="millstream_subscription_standstill_seconds",
    type="gauge",
    unit="seconds",
    help="Time without progress, of the stream with the longest standstill.",
    labels=SUBSCRIPTION,
)
STOPPED = Metric(
    name="millstream_subscription_stopped_streams",
    type="gauge",
    help="Streams with unprocessed events at which the subscription is paused or faulted.",
    labels=(*SUBSCRIPTION, "state"),
)

QUEUE_METRICS = (
    *(BACKLOG, CACHED, CACHED_BYTES, READ, DELIVERED, GIVEN_UP, UNHEARD, EVICTED),
    *(OLDEST, STREAMS, DELIVERIES, LAGGING, READING, FAULTS, GAPS, FULL, FULL_TIME),
)
LAG_METRICS = (LAG_EVENTS, LAG_SECONDS, UNDELIVERED, STANDSTILL, STOPPED)
STREAM_METRICS = (*QUEUE_METRICS, *LAG_METRICS)
"""The metrics of a provider."""


def read_queues(provider: str, queues: Iterable[tuple[QueueStats, int]], /) -> Iterator[Sample]:
    """Yield the samples of the queues that a silo reads, each with the bytes of its cache."""
    for stats, cached_bytes in queues:
        labels = (provider, stats.queue)
        yield Sample(BACKLOG, labels, stats.backlog)
        yield Sample(CACHED, labels, stats.cached)
        yield Sample(CACHED_BYTES, labels, cached_bytes)
        yield Sample(READ, labels, stats.read)
        yield Sample(DELIVERED, labels, stats.delivered)
        yield Sample(GIVEN_UP, labels, stats.given_up)
        yield Sample(UNHEARD, labels, stats.unheard)
        yield Sample(EVICTED, labels, stats.evicted)
        yield Sample(OLDEST, labels, stats.lag_s)
        yield Sample(STREAMS, labels, stats.streams)
        yield Sample(DELIVERIES, labels, stats.calls_out)
        yield Sample(LAGGING, labels, stats.behind)
        yield Sample(READING, labels, int(stats.is_reading))
        yield Sample(FAULTS, labels, stats.faults)
        yield Sample(GAPS, labels, stats.gaps)
        yield Sample(FULL, labels, stats.full_count)
        yield Sample(FULL_TIME, labels, stats.full_s)


class Lag(NamedTuple):
    """The undelivered events of one subscription, of one stream or of all together.

    Attributes:
        events: their number.
        since_s: the enqueue time of the oldest one, in wall-clock seconds. 0: not known.
        streams: the streams that have some.
        still_since_s: when the last progress was made, by the loop's clock.
        stopped: the streams at which the subscription is stopped, by the reason.
    """

    events: int
    since_s: float
    streams: int
    still_since_s: float
    stopped: dict[str, int]

    def plus(self, other: Lag) -> Lag:
        """Return the lag of both together."""
        known = [one for one in (self.since_s, other.since_s) if one]
        reasons = {*self.stopped, *other.stopped}
        return Lag(
            self.events + other.events,
            min(known, default=0.0),
            self.streams + other.streams,
            min(self.still_since_s, other.still_since_s),
            {one: self.stopped.get(one, 0) + other.stopped.get(one, 0) for one in reasons},
        )


class SubscriptionLags:
    """The undelivered events of all subscriptions of one provider, in the queues of one silo.

    Args:
        agents: returns the agents of the queues that this silo reads.
    """

    def __init__(
        self, provider: str, agents: Callable[[], Sequence[PullingAgent]], clock: Clock
    ) -> None:
        self._provider = provider
        self._agents = agents
        self._clock = clock
        self._found: dict[tuple[str, str, str], Lag] = {}

    async def look_while_running(self) -> None:
        """Look again and again; never ends by itself."""
        while True:
            took_s = await self.look()
            await asyncio.sleep(max(LOOK_EVERY_S, SHARE * took_s))

    async def look(self) -> float:
        """Look once. Returns the seconds that this took, without those of other code."""
        found: dict[tuple[str, str, str], Lag] = {}
        took_s, began_s = 0.0, self._clock.now()
        for agent in self._agents():
            agent.reader.ask_backlog()
            began_s = self._clock.now()
            for at, entry in enumerate(list(agent.subscribers.streams.values())):
                for one in entry.subscribers.values():
                    if one.work is not None:
                        key = (one.stream.namespace, one.grain_type, one.handler)
                        lag = lag_of(one, agent, self._clock.now())
                        found[key] = lag if key not in found else found[key].plus(lag)
                if not (at + 1) % STREAMS_AT_ONCE:
                    took_s += self._clock.now() - began_s
                    await asyncio.sleep(0)
                    began_s = self._clock.now()
            took_s += self._clock.now() - began_s
        self._found = found
        return took_s

    def read(self) -> Iterator[Sample]:
        """Yield the samples of the last look, those with the largest lag first."""
        wall_s, now = self._clock.wall_s(), self._clock.now()
        for key, lag in sorted(self._found.items(), key=lambda item: item[1].since_s or wall_s):
            labels = (self._provider, *key)
            yield Sample(LAG_EVENTS, labels, lag.events)
            age_s = max(0.0, wall_s - lag.since_s) if lag.since_s else 0.0
            yield Sample(LAG_SECONDS, labels, age_s)
            yield Sample(UNDELIVERED, labels, lag.streams)
            yield Sample(STANDSTILL, labels, max(0.0, now - lag.still_since_s))
            for state, streams in lag.stopped.items():
                yield Sample(STOPPED, (*labels, state), streams)


def lag_of(one: Subscriber, agent: PullingAgent, now_s: float) -> Lag:
    """Return the undelivered events of a subscription of one stream. It has some."""
    assert one.work is not None
    events, since_s = one.work.cursor.lag()
    still_s = agent.watch.standstills.still_s(str(one.stream), one.id, now_s)
    stopped = one.held or ("paused" if one.is_paused else "")
    return Lag(events, since_s, 1, now_s - still_s, {stopped: 1} if stopped else {})
