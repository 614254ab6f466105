"""The state of one stream's way through the cluster, hop by hop, at one instant.

Owns: the values. Not: gathering them (`provider/stream_reports`), the conclusions (`verdict`).
Invariant: each hop has a lag in seconds and a count, so that hops can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millstream.streams.contracts.identity import StreamId

__all__ = [
    "LETTERS_MAX",
    "HolderReport",
    "LaggingStream",
    "LetterReport",
    "QueueReport",
    "StreamReport",
    "SubscriptionReport",
]


LETTERS_MAX = 5
"""Dead letters that a report names."""


class SubscriptionReport(msgspec.Struct, array_like=True, frozen=True):
    """One subscription, as the agent of its queue sees it.

    Attributes:
        id: id of the subscription.
        grain: type and key of the grain.
        state: state of its delivery: `ready`, `in_flight`, `backoff`, `lagging`, `giving_up`,
            `unacked` (events wait for an acknowledgement by hand), `idle` (no event is
            undelivered), `faulted`, `paused`, or `stream_paused` (the whole stream is paused).
        lag_events: events that were read and are not processed.
        lag_s: age of the oldest of these events, in seconds.
        event_s: time that one event takes, smoothed, in seconds; 0: not known.
        out_s: seconds since the current call began.
        window: events that the next call may have.
        attempts: failed attempts of the next event.
        trouble: the last error, while it lasts.
        gaps: gaps that were reported to the subscription, since this owner knows the stream.
        gone_max: largest number of messages of the queue, of any stream, that went missing in these
            gaps. None: not known.
        retries: calls that brought a failed event again, since this owner knows the stream.
        reason: what the subscription waits for, while an event is not processed.
        still_s: for how long the subscription has made no progress, in seconds.
    """

    id: str
    grain: str
    state: str
    lag_events: int = 0
    lag_s: float = 0.0
    event_s: float = 0.0
    out_s: float = 0.0
    window: int = 1
    attempts: int = 0
    trouble: str = ""
    gaps: int = 0
    gone_max: int | None = 0
    retries: int = 0
    reason: str = ""
    still_s: float = 0.0

    @property
    def rate(self) -> float:
        """Events per second that the handler can process, or 0 if that is not known."""
        return 1.0 / self.event_s if self.event_s > 0 else 0.0

    @property
    def gaps_text(self) -> str:
        """The reported gaps, in words, or "" if there were none."""
        if not self.gaps:
            return ""
        times = "a gap" if self.gaps == 1 else f"{self.gaps:,} gaps"
        gone = "an unknown number of"
        if self.gone_max is not None:
            gone = f"at most {self.gone_max:,}"
        return f"{times}, in which {gone} messages of the queue were lost"


class HolderReport(msgspec.Struct, array_like=True, frozen=True):
    """The stream and subscription that hold the oldest message of a cache.

    Attributes:
        stream: the stream.
        subscription: the subscription. None: the subscriptions of the stream are being looked up.
    """

    stream: StreamId
    subscription: SubscriptionReport | None = None


class QueueReport(msgspec.Struct, array_like=True, frozen=True):
    """One queue, as its owner sees it.

    Attributes:
        queue: name of the queue.
        silo: address of the owner.
        epoch: number of the ownership.
        state: state of the reader: `starting`, `reading`, `full`, `paused` or `fenced`.
        trouble: the adapter's last fault, until a read succeeds.
        backlog: events that are not read yet, if the provider can count them.
        read: events read since the agent began.
        delivered: events delivered since the agent began.
        cached_events: events in the cache.
        cached_bytes: bytes in the cache.
        events_max: limit of events in the cache.
        bytes_max: limit of bytes in the cache.
        lag_s: age of the oldest event in the cache, in seconds.
        calls_out: delivery calls that are in flight.
        calls_out_max: limit of these calls.
        holder: the holder of the oldest message of the cache. None: the cache is empty.
        purged: as in `QueueStats`.
        evicted: as in `QueueStats`.
        full_count: as in `QueueStats`.
        full_s: as in `QueueStats`.
    """

    queue: str
    silo: str
    epoch: int
    state: str
    trouble: str
    backlog: int
    read: int
    delivered: int
    cached_events: int
    cached_bytes: int
    events_max: int
    bytes_max: int
    lag_s: float
    calls_out: int
    calls_out_max: int
    holder: HolderReport | None = None
    purged: int = 0
    evicted: int = 0
    full_count: int = 0
    full_s: float = 0.0


class LetterReport(msgspec.Struct, array_like=True, frozen=True):
    """A dead letter of a stream.

    Attributes:
        id: the id, for `dead_letters(...)`.
        subscription: id of the subscription that failed.
        attempts: number of attempts.
        error: the first line of the error.
    """

    id: str
    subscription: str
    attempts: int
    error: str


class StreamReport(msgspec.Struct, array_like=True, frozen=True):
    """One stream of one provider.

    Attributes:
        stream: the stream.
        queue: the queue that carries it; empty: the mapper has none.
        owner: the silo that the queue's record names.
        owner_state: state in the record: `free`, `owned` or `pausing`.
        is_owner_live: whether that silo is alive.
        agent: the queue as its owner sees it. None: the owner does not answer, or does not read the
            queue yet.
        at_s: the owner's wall time, in seconds since 1970.
        subscriptions: the subscriptions. None: the stream had no event lately, or its subscriptions
            are being looked up.
        is_held: the queue is paused by a user.
        is_paused: the stream is paused by a user.
        trouble: why the mapper has no queue for the stream.
        reason: what the whole stream waits for, while its subscriptions are not known or are very
            many.
        letters: dead letters of the stream, at most five.
    """

    stream: StreamId
    queue: str
    owner: str = ""
    owner_state: str = "free"
    is_owner_live: bool = False
    agent: QueueReport | None = None
    at_s: float = 0.0
    subscriptions: Sequence[SubscriptionReport] | None = None
    is_held: bool = False
    is_paused: bool = False
    trouble: str = ""
    reason: str = ""
    letters: Sequence[LetterReport] = ()


class LaggingStream(msgspec.Struct, array_like=True, frozen=True):
    """A stream with events that are not processed, as the owner of its queue sees it.

    Attributes:
        stream: the stream.
        queue: name of the queue.
        silo: address of the owner.
        subscription: the subscription with the largest lag. None: the subscriptions are not known
            yet.
        reason: what that subscription waits for.
    """

    stream: StreamId
    queue: str
    silo: str
    subscription: SubscriptionReport | None
    reason: str

    @property
    def lag(self) -> tuple[float, float, int]:
        """The sort key of streams: seconds without progress, age of the oldest event, number of
        events."""
        one = self.subscription
        return (0.0, 0.0, 0) if one is None else (one.still_s, one.lag_s, one.lag_events)
