"""What is known of one stream's way through the cluster, hop by hop, at one instant.

Owns: the values. Not: gathering them (`provider/reporting`), what follows from them (`verdict`).
Invariant: each hop has a lag in seconds beside a count, so that hops can be compared.
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

    `grain`: type and key. `state`: that of its delivery: ready, in_flight, backoff, lagging,
    giving_up, unacked (it is to acknowledge by hand), idle (nothing is undelivered), faulted,
    paused, or stream_paused (its whole stream is).
    `lag_events`: read and not done; `lag_s`: age of the oldest of them. `event_s`: what one event
    takes, smoothed; 0: not known. `out_s`: since when the present call is out. `attempts`:
    failures of the event that is next. `trouble`: what went wrong last, while it is. `gaps`: so
    many it was told of, since this owner knows its stream; `gone_max`: messages of the queue that
    went in them at most, of whichever stream; None: not known. `retries`: calls, since then, that
    brought an event again which had failed: whose `attempt` was above 1. `reason`: what it waits
    for, while something is not done; `still_s`: for how long it has not moved.
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
        """Events per second that it can do; 0: not known."""
        return 1.0 / self.event_s if self.event_s > 0 else 0.0

    @property
    def gaps_text(self) -> str:
        """The gaps that it was told of, in words; empty: there were none."""
        if not self.gaps:
            return ""
        times = "a gap" if self.gaps == 1 else f"{self.gaps:,} gaps"
        gone = "an unknown number of"
        if self.gone_max is not None:
            gone = f"at most {self.gone_max:,}"
        return f"{times}, in which {gone} messages of the queue went"


class HolderReport(msgspec.Struct, array_like=True, frozen=True):
    """Who holds the oldest message of a cache; None: its subscriptions are being asked for."""

    stream: StreamId
    subscription: SubscriptionReport | None = None


class QueueReport(msgspec.Struct, array_like=True, frozen=True):
    """One queue, as its owner sees it.

    `state`: of the reader: starting, reading, full, paused, fenced. `trouble`: the adapter's last
    fault, while reading has not succeeded since. `backlog`: events not read yet, as far as the
    provider tells. `lag_s`: age of the oldest event in the cache. `read`: events since the agent
    began; so are the last four, which are those of `QueueStats`.
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
    """A dead letter of a stream: its id, as `dead_letters(...)` takes it, and the first line of the
    error that its event was given up for."""

    id: str
    subscription: str
    attempts: int
    error: str


class StreamReport(msgspec.Struct, array_like=True, frozen=True):
    """One stream of one provider.

    `owner`: the silo that the queue's record names, with its state (free, owned, pausing).
    `agent`: None: that silo does not answer, or does not read the queue yet. `at_s`: seconds since
    1970, of the owner. `subscriptions`: None: the stream had no event lately, or they are being
    asked for. `is_held`: the queue is paused by hand; `is_paused`: the stream is. `trouble`: why
    the mapper has no queue for the stream; `queue` is empty then. `reason`: what all of the stream
    waits for, while its subscriptions are not known, or are very many. `letters`: its dead letters,
    `LETTERS_MAX` at most.
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
    """A stream of which something is not done, as the owner of its queue sees it.

    `subscription`: the one that is furthest behind; None: those of the stream are not known yet.
    `reason`: what that waits for.
    """

    stream: StreamId
    queue: str
    silo: str
    subscription: SubscriptionReport | None
    reason: str

    @property
    def lag(self) -> tuple[float, float, int]:
        """What orders streams: for how long nothing moved, age of the oldest event, events."""
        one = self.subscription
        return (0.0, 0.0, 0) if one is None else (one.still_s, one.lag_s, one.lag_events)
